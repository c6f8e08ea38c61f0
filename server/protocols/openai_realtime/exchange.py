"""All responses of one conversation in OpenAI Realtime: those that were asked for, those under way, how the last ended.

It knows which response an event belongs to, and whose wish it was that one ends. What is said of each of them is
realtime_responses.py's business.
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
from voxlane.server.protocols.openai_realtime.responses import Response, Wish
from voxlane.server.protocols.openai_realtime.values import Wrong

WISHES = 64
"""Responses that were asked for and have not begun; what is older was refused."""

Part = Speech | ReplyText | ToolCalled | Thought | SpeechDone | ReplyDone
"""What belongs to one response, and can end it."""


class Exchange:
    """The responses of a conversation."""

    def __init__(self, known: KnownItems, rate: int) -> None:
        self._known = known
        self._rate = rate
        self._under_way: dict[int, Response] = {}  # by epoch
        self._wishes: dict[str, Wish] = {}  # by tag
        self._cut_short = False  # the last one, by the person
        self._cancels_next = False

    # ---- what a client wants

    def ask(self, tag: str, wish: Wish) -> None:
        """Take the wish for a response."""
        self._wishes[tag] = wish
        if len(self._wishes) > WISHES:
            del self._wishes[next(iter(self._wishes))]

    def cancel(self, name: str) -> int:
        """Take it that a response is to end; return its epoch."""
        for epoch, response in self._under_way.items():
            if response.name == name:
                response.cancelled = True
                return epoch
        raise Wrong("", "Cancellation failed: no response of this id is under way", "response_cancel_not_active")

    def cancel_any(self) -> bool:
        """Take it that the conversation's response is to end; return whether there may be one.

        A wish that crosses the end which the server has put to it is no mistake.
        """
        inside = [response for response in self._under_way.values() if not response.aside]
        if self._cut_short and not inside and not self._wishes:
            return False
        for response in inside:
            response.cancelled = True
        self._cancels_next = not inside  # one that was asked for and has not begun
        return True

    def truncate(self, item: str) -> None:
        """Take it that the client has stopped playing the response of an item."""
        for response in self._under_way.values():
            response.cancelled = response.cancelled or response.item == item

    def refused(self) -> None:
        """Take it that something a client wanted cannot be."""
        self._cancels_next = False

    # ---- what becomes of them

    def start(self, event: ReplyStarted, conversation: str, usual: Wish) -> list[Packet]:
        """Begin the response that was wished for, or the usual one."""
        wish = self._wishes.pop(event.tag, None) or usual
        name, item = f"resp_{conversation}_{event.epoch}", event.item or f"item_{conversation}_a{event.epoch}"
        response = Response(name, item, f"conv_{conversation}", wish, self._known, self._rate)
        if not wish.aside:
            self._cut_short = False
            response.cancelled, self._cancels_next = self._cancels_next, False
        self._under_way[event.epoch] = response
        return response.created()

    def take(self, event: Part) -> list[Packet]:
        """Return what to write for more of a response; nothing, if it is over."""
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
            case ReplyDone(epoch):  # it was not spoken
                del self._under_way[epoch]
                return response.finish(epoch, 0)

    def interrupt(self, epoch: int) -> tuple[list[Packet], bool]:
        """End a response at once; return what to write, and whether it was an aside, which nobody hears end."""
        response = self._under_way.pop(epoch, None)
        closing = [] if response is None else response.cut()
        if response is not None and response.aside:
            return closing, True
        self._cut_short = response is not None and not response.cancelled
        return closing, False

    def fail(self, fault: Fault) -> bool:
        """Have a response end with what befell it; return whether it befell that one alone."""
        if fault.epoch in self._under_way:
            self._under_way[fault.epoch].fault = fault
            return True
        if fault.code == "engine_lost":
            for response in self._under_way.values():
                response.fault = fault
        return False
