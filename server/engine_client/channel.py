"""One conversation's line to the engine: what it says goes out, what is said about its requests comes in.

A conversation does not end with an engine: while there is none, what is said waits, up to a bound, and is said to the
next one. It knows requests by name; what they are for is the conversation's business.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from voxlane.engine.api import (
    Append,
    Cancel,
    Finished,
    FromEngine,
    Priority,
    Refused,
    Submit,
    ToEngine,
    UndecodableMessage,
)
from voxlane.server.conversation.effects import RequestsLost
from voxlane.server.errors import VoxlaneError

WAITING_BYTES = 1 << 20
"""What may wait for the next engine: half a minute of a voice, or forty prompts of the longest kind."""

GATHERED_BYTES = 1920
"""Sound that is sent at once, 60 ms: a message costs both sides more than what is in it. Nobody waits for it: the first
sound of a voice, all of one that interrupts, and the last before anything else is said are sent as they come."""

Receive = Callable[[FromEngine | RequestsLost], None]


class EngineTransport(Protocol):
    """What a channel needs of the link to the engine."""

    def send(self, message: ToEngine) -> None:
        """Send a message; raise Overloaded if too much waits."""

    @property
    def listening(self) -> bool:
        """Whether there is an engine now."""

    @property
    def hopeful(self) -> bool:
        """Whether there will be one."""


class Channel:
    """The requests of one conversation. Their names begin with the conversation's and a slash."""

    def __init__(self, name: str, line: EngineTransport, receive: Receive, leave: Callable[[], None]) -> None:
        self.name = name
        self._line = line
        self._receive = receive
        self._leave = leave
        self._live: set[str] = set()
        self._waiting: list[ToEngine] = []
        self._waiting_bytes = 0
        self._unhurried = ""  # the request whose sound may be gathered,
        self._begun = False  # once its first has gone
        self._gathered = bytearray()
        self._closed = False

    def tell(self, message: ToEngine) -> FromEngine | None:
        """Tell the engine; return the answer where it can be known at once: a request that cannot be."""
        if isinstance(message, Append) and message.request_id == self._unhurried:
            if self._gather(message.audio):
                return None
            message = Append(message.request_id, audio=self._take_gathered())
        elif self._gathered:
            refused = self._say(Append(self._unhurried, audio=self._take_gathered()))
            if refused is not None and getattr(message, "request_id", "") == self._unhurried:
                return refused  # what there is to say about it is of no use
        if isinstance(message, Submit):
            if not self._line.listening and not self._line.hopeful:
                return Refused(message.request_id, message.epoch, "overloaded", "there is no engine")
            self._live.add(message.request_id)
            if message.task == "asr":
                self._unhurried = "" if message.priority is Priority.CRITICAL else message.request_id
                self._begun = False
        elif isinstance(message, Cancel):
            self._live.discard(message.request_id)
        if self._line.listening:
            return self._say(message)
        return self._wait(message)

    def take(self, message: FromEngine) -> None:
        """Pass on what the engine says about one of the requests."""
        if isinstance(message, Finished | Refused):
            self._live.discard(message.request_id)
        self._receive(message)

    def lost(self) -> None:
        """Take it that the engine is gone, and all requests with it."""
        self._live.clear()
        self._forget()
        self._receive(RequestsLost())

    def give_up(self) -> None:
        """Take it that there will be no other engine."""
        if self._live:
            self.lost()

    def back(self) -> None:
        """Take it that there is an engine again: say what has waited."""
        waiting = self._waiting
        self._forget()
        for message in waiting:
            answer = self._say(message)
            if answer is not None:
                self._receive(answer)

    def close(self) -> None:
        """Cancel every request that may still run, and leave the line."""
        if self._closed:
            return
        self._closed = True
        for request_id in self._live:
            if self._line.listening:
                self._line.send(Cancel(request_id))
        self._live.clear()
        self._forget()
        self._leave()

    def _gather(self, audio: bytes) -> bool:
        """Keep sound for later; return False if it is to be sent now."""
        self._gathered += audio
        begun, self._begun = self._begun, True
        return begun and len(self._gathered) < GATHERED_BYTES and self._line.listening

    def _take_gathered(self) -> bytes:
        audio = bytes(self._gathered)
        self._gathered.clear()
        return audio

    def _say(self, message: ToEngine) -> FromEngine | None:
        try:
            self._line.send(message)
        except (VoxlaneError, UndecodableMessage):
            return self._refuse(message)
        return None

    def _wait(self, message: ToEngine) -> FromEngine | None:
        request_id = getattr(message, "request_id", None)
        if request_id is not None and request_id not in self._live:  # cancelled, refused, or gone with the last engine
            self._unsay(request_id)
            return None
        size = _size(message)
        if self._waiting_bytes + size > WAITING_BYTES:
            return self._refuse(message)
        self._waiting_bytes += size
        self._waiting.append(message)
        return None

    def _unsay(self, request_id: str) -> None:
        """Forget what waits of a request."""
        self._waiting = [one for one in self._waiting if getattr(one, "request_id", None) != request_id]
        self._waiting_bytes = sum(map(_size, self._waiting))

    def _refuse(self, message: ToEngine) -> FromEngine | None:
        """End the request that a message which cannot be delivered belongs to."""
        request_id = getattr(message, "request_id", None)
        if request_id not in self._live:
            return None
        self._live.discard(request_id)
        self._unsay(request_id)
        if self._line.listening and not isinstance(message, Submit):
            self._line.send(Cancel(request_id))
        return Refused(request_id, 0, "overloaded", "the engine has too much to do")

    def _forget(self) -> None:
        self._waiting, self._waiting_bytes = [], 0
        self._gathered.clear()


def _size(message: ToEngine) -> int:
    """Return about how many bytes a message is."""
    match message:
        case Append(audio=audio, text=text):
            return 64 + len(audio) + len(text)
        case Submit(messages=messages):
            return 256 + sum(len(one.content) for one in messages)
        case _:
            return 64
