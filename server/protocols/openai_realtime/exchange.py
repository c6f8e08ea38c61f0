"""All responses of one conversation in OpenAI Realtime: requested ones, running ones, and how the last one ended.

It finds the response of an event and notes whether the client or the person ended it. responses.py writes each
response's events.
"""

from __future__ import annotations

from voxlane.server.conversation.server_events import (
    Fault,
    ReplyDone,
    ReplyStarted,
    ReplyText,
    Speech,
    SpeechDone,
    Thought,
    ToolCalled,
)
from voxlane.server.protocols.dialect import Packet
from voxlane.server.protocols.openai_realtime.items import KnownItems
from voxlane.server.protocols.openai_realtime.responses import Response, ResponseSettings
from voxlane.server.protocols.openai_realtime.values import Wrong

MOST_REQUESTED = 64
"""Requested responses that have not begun; older ones were refused."""

Part = Speech | ReplyText | ToolCalled | Thought | SpeechDone | ReplyDone
"""Events that belong to one response."""


class Exchange:
    """The responses of a conversation."""

    def __init__(self, known: KnownItems, rate: int) -> None:
        self._known = known
        self._rate = rate
        self._under_way: dict[int, Response] = {}  # by epoch
        self._requested: dict[str, ResponseSettings] = {}  # by tag
        self._cut_short = False  # the person interrupted the last response
        self._cancels_next = False  # the client has cancelled a response that has not begun

        # ---- requests of the client

    def ask(self, tag: str, settings: ResponseSettings) -> None:
        """Note that the client asks for a response."""
        self._requested[tag] = settings
        if len(self._requested) > MOST_REQUESTED:
            del self._requested[next(iter(self._requested))]

    def cancel(self, name: str) -> int:
        """Mark a response as cancelled by the client; return its epoch."""
        for epoch, response in self._under_way.items():
            if response.name == name:
                response.cancelled = True
                return epoch
        raise Wrong("", "Cancellation failed: no response of this id is under way", "response_cancel_not_active")

    def cancel_any(self) -> bool:
        """Mark the conversation's response as cancelled by the client; return whether there may be one.

        A cancel that crosses an interruption by the person is not an error.
        """
        inside = [response for response in self._under_way.values() if not response.aside]
        if self._cut_short and not inside and not self._requested:
            return False
        for response in inside:
            response.cancelled = True
        self._cancels_next = not inside  # it was requested and has not begun
        return True

    def end_by_client(self) -> None:
        """Mark the conversation's running response as cancelled by the client."""
        for response in self._under_way.values():
            response.cancelled = response.cancelled or not response.aside

    def truncate(self, item: str) -> None:
        """Mark the response of an item as cancelled: the client has stopped playing it."""
        for response in self._under_way.values():
            response.cancelled = response.cancelled or response.item == item

    def refused(self) -> None:
        """Note that a request of the client was refused."""
        self._cancels_next = False

    # ---- events of the conversation

    def start(self, event: ReplyStarted, conversation: str, usual: ResponseSettings) -> list[Packet]:
        """Begin the response that the client asked for, or one with the session's settings."""
        settings = self._requested.pop(event.tag, None) or usual
        name, item = f"resp_{conversation}_{event.epoch}", event.item or f"item_{conversation}_a{event.epoch}"
        response = Response(name, item, f"conv_{conversation}", settings, self._known, self._rate)
        if not settings.aside:
            self._cut_short = False
            response.cancelled, self._cancels_next = self._cancels_next, False
        self._under_way[event.epoch] = response
        return response.created()

    def encode(self, event: Part) -> list[Packet]:
        """Return the packets for an event of a response; none if the response is over."""
        response = self._under_way.get(event.epoch)
        if response is None:
            return []
        match event:
            case Speech():
                return response.sound(event)
            case ReplyText(text=words):
                return response.say(words)
            case ToolCalled():
                return response.call(event)
            case Thought():
                return response.think(event)
            case SpeechDone(epoch, samples):
                del self._under_way[epoch]
                return response.finish(epoch, samples)
            case ReplyDone(epoch):  # a text response
                del self._under_way[epoch]
                return response.finish(epoch, 0)

    def words(self, event: Speech) -> list[Packet]:
        """Return the packets for the words that begin in a response's sound, without the sound."""
        response = self._under_way.get(event.epoch)
        return [] if response is None else response.words(event)

    def interrupt(self, epoch: int) -> tuple[list[Packet], bool]:
        """End a response at once; return the packets, and whether it was an aside."""
        response = self._under_way.pop(epoch, None)
        closing = [] if response is None else response.cut()
        if response is not None and response.aside:
            return closing, True
        self._cut_short = response is not None and not response.cancelled
        return closing, False

    def fail(self, fault: Fault) -> bool:
        """Make a response end with a fault; return whether the fault concerns that response alone."""
        response = self._under_way.get(fault.epoch)
        if response is not None:
            response.fault = fault
        return response is not None and fault.code != "engine_lost"
