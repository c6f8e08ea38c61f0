"""One conversation's channel to the engine: commands go out, messages about its requests come in.

A conversation outlives an engine process: while no engine runs, commands wait, up to a bound, for the next one.
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
"""Bytes that may wait for the next engine: half a minute of sound, or forty prompts of the longest kind."""

GATHERED_BYTES = 1920
"""Sound that is gathered into one message, 60 ms: a message costs both sides more than its content. Gathering delays no
decision: the first sound of a voice, all sound of an interruption and sound before another command are sent at once."""

Receive = Callable[[FromEngine | RequestsLost], None]


class EngineTransport(Protocol):
    """What a channel needs of the engine process."""

    def send(self, message: ToEngine) -> None:
        """Send a message; raise Overloaded if too much waits."""

    def send_soon(self, message: Append) -> None:
        """Send a message within a few milliseconds, in one packet with others; raise Overloaded if too much waits."""

    @property
    def connected(self) -> bool:
        """Whether an engine takes messages now."""

    @property
    def starting(self) -> bool:
        """Whether an engine is being started."""


class Channel:
    """The requests of one conversation. Their names begin with the conversation's and a slash."""

    def __init__(self, name: str, transport: EngineTransport, receive: Receive, leave: Callable[[], None]) -> None:
        self.name = name
        self._transport = transport
        self._receive = receive
        self._leave = leave
        self._live: set[str] = set()
        self._waiting: list[ToEngine] = []
        self._waiting_bytes = 0
        self._gathers_for = ""  # id of the request whose sound may be gathered
        self._begun = False  # its first sound was sent
        self._gathered = bytearray()
        self._closed = False

    def tell(self, message: ToEngine) -> FromEngine | None:
        """Send a command to the engine, or keep it; return a Refused if its request cannot go on."""
        if isinstance(message, Append) and message.request_id == self._gathers_for:
            begun = self._begun
            if self._gather(message.audio):
                return None
            message = Append(message.request_id, audio=self._take_gathered())
            if begun and self._transport.connected:
                return self._send(message, soon=True)
        elif self._gathered:
            refused = self._send(Append(self._gathers_for, audio=self._take_gathered()))
            if refused is not None and getattr(message, "request_id", "") == self._gathers_for:
                return refused  # its request is over
        if isinstance(message, Submit):
            if not self._transport.connected and not self._transport.starting:
                return Refused(message.request_id, message.epoch, "overloaded", "there is no engine")
            self._live.add(message.request_id)
            if message.task == "asr":
                self._gathers_for = "" if message.priority is Priority.CRITICAL else message.request_id
                self._begun = False
        elif isinstance(message, Cancel):
            self._live.discard(message.request_id)
        if self._transport.connected:
            return self._send(message)
        return self._wait(message)

    def deliver(self, message: FromEngine) -> None:
        """Pass on a message about one of the requests."""
        if isinstance(message, Finished | Refused):
            self._live.discard(message.request_id)
        self._receive(message)

    def lost(self) -> None:
        """Note that the engine is gone, and all requests with it."""
        self._live.clear()
        self._forget()
        self._receive(RequestsLost())

    def give_up(self) -> None:
        """Note that no other engine will be started."""
        if self._live:
            self.lost()

    def back(self) -> None:
        """Note that an engine is ready again: send the commands that waited."""
        waiting = self._waiting
        self._forget()
        for message in waiting:
            answer = self._send(message)
            if answer is not None:
                self._receive(answer)

    def close(self) -> None:
        """Cancel every request that may still run, and close the channel."""
        if self._closed:
            return
        self._closed = True
        for request_id in list(self._live):
            if self._transport.connected:
                self._transport.send(Cancel(request_id))
        self._live.clear()
        self._forget()
        self._leave()

    def _gather(self, audio: bytes) -> bool:
        """Gather sound; return False if it is to be sent now."""
        self._gathered += audio
        begun, self._begun = self._begun, True
        return begun and len(self._gathered) < GATHERED_BYTES and self._transport.connected

    def _take_gathered(self) -> bytes:
        audio = bytes(self._gathered)
        self._gathered.clear()
        return audio

    def _send(self, message: ToEngine, *, soon: bool = False) -> FromEngine | None:
        try:
            if soon and isinstance(message, Append):
                self._transport.send_soon(message)
            else:
                self._transport.send(message)
        except (VoxlaneError, UndecodableMessage):
            return self._refuse(message)
        return None

    def _wait(self, message: ToEngine) -> FromEngine | None:
        request_id = getattr(message, "request_id", None)
        if request_id is not None and request_id not in self._live:  # cancelled, refused, or gone with the last engine
            self._drop_waiting(request_id)
            return None
        size = _size(message)
        if self._waiting_bytes + size > WAITING_BYTES:
            return self._refuse(message)
        self._waiting_bytes += size
        self._waiting.append(message)
        return None

    def _drop_waiting(self, request_id: str) -> None:
        """Drop the waiting commands of a request."""
        self._waiting = [one for one in self._waiting if getattr(one, "request_id", None) != request_id]
        self._waiting_bytes = sum(map(_size, self._waiting))

    def _refuse(self, message: ToEngine) -> FromEngine | None:
        """End the request of a message that cannot be delivered."""
        request_id = getattr(message, "request_id", None)
        if request_id not in self._live:
            return None
        self._live.discard(request_id)
        self._drop_waiting(request_id)
        if self._transport.connected and not isinstance(message, Submit):
            self._transport.send(Cancel(request_id))
        return Refused(request_id, 0, "overloaded", "the engine has too much to do")

    def _forget(self) -> None:
        self._waiting, self._waiting_bytes = [], 0
        self._gathered.clear()


def _size(message: ToEngine) -> int:
    """Return the approximate size of a message in bytes."""
    match message:
        case Append(audio=audio, text=text):
            return 64 + len(audio) + len(text)
        case Submit(messages=messages):
            return 256 + sum(len(one.content) + len(one.sound) for one in messages)
        case _:
            return 64
