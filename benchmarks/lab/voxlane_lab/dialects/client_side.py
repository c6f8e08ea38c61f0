"""What the lab's dialects share: the state of a call's client, its event log, and how garbage becomes a failure. Pure.

A server may send anything. A message that no client could understand raises NotUnderstood inside a dialect, and the
call's `failure` then says in one sentence what was wrong. Messages that are merely unknown are noted and ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, Literal

import msgspec
import numpy as np

from voxlane_lab.dialects.dialect import DialectOptions, LabTool
from voxlane_lab.dialects.wire import NotUnderstood, json_text
from voxlane_lab.errors import quote
from voxlane_lab.loudspeaker import VirtualLoudspeaker
from voxlane_lab.rates import RateConverter
from voxlane_lab.values import TICK_S, USER_RATE, Arrival, Message, Occurrence, Pcm
from voxlane_lab.waveform import floats_of, quantise

DETAIL_CHARACTERS = 300
"""Characters of a message that the event log shows."""

NO_ARGUMENTS = {"type": "object", "properties": {}}
"""The JSON schema of a tool without arguments."""


class ClientSide:
    """The client's side of one call; each dialect adds its messages."""

    name = ""
    pauses = False
    names_responses = True

    def __init__(self, options: DialectOptions, rate: int) -> None:
        self.speaker = VirtualLoudspeaker(rate, naive=options.naive)
        self.arrivals: list[Arrival] = []
        self.texts: dict[str, str] = {}
        self.history: list[tuple[str, str]] = []
        self.occurrences: list[Occurrence] = []
        self.failure = ""
        self.complaint = ""  # the last error that the server told and that did not end the call
        self.ready = False
        self.finished: set[str] = set()
        self.calling_tool = False
        self._options = options

    def receive(self, message: Message, at_s: float) -> list[Message]:
        """Process a message of the server; return what must be sent at once."""
        if self.failure:
            return []
        try:
            return self._read(message, at_s)
        except NotUnderstood as garbage:
            self.failure = f"the server sent {garbage}"
            return []

    def _read(self, message: Message, at_s: float) -> list[Message]:
        raise NotImplementedError

    # ---- sound

    def _arrived(self, response: str, pcm: Pcm, at_s: float, *, late: bool = False) -> None:
        """Queue the next sound of a response; late sound is noted and not played."""
        if len(pcm):
            offset = self.speaker.add(response, pcm, queue=not late)
            self.arrivals.append(Arrival(at_s, response, offset, len(pcm), late))

    def _drop(self, at_s: float, responses: Iterable[str] | None = None) -> None:
        """Drop what waits, or what waits of some responses; a naive loudspeaker does not."""
        if self._options.naive:
            return
        dropped = sum(map(self.speaker.clear, (None,) if responses is None else responses))
        self._note(at_s, "card", "clear", f"{dropped * 1000 // self.speaker.rate} ms dropped")

    # ---- the event log

    def _note(self, at_s: float, side: Literal["sent", "got", "card"], name: str, detail: str = "") -> None:
        """Add to the event log; a naive card obeys nothing, so it has nothing to tell."""
        if side != "card" or not self._options.naive:
            self.occurrences.append(Occurrence(at_s, side, name[:80], self._without_key(detail)[:DETAIL_CHARACTERS]))

    def _note_body(self, at_s: float, side: Literal["sent", "got"], name: str, body: Mapping[str, Any]) -> None:
        """Add a JSON message to the event log."""
        self._note(at_s, side, name, json_text(body))

    def _told(self, code: object, text: object) -> str:
        """Return the words of a server's error, for a sentence: its code, and what it says of it."""
        words = [one for one in (code, text) if isinstance(one, str) and one]
        return ": ".join(quote(self._without_key(one)) for one in words) or "no reason given"

    def _without_key(self, text: str) -> str:
        key = self._options.key
        if key:
            for written in (key, msgspec.json.encode(key).decode()[1:-1]):
                text = text.replace(written, "[key]")
        return text


# ---- the microphone


class MicrophoneFeed:
    """Converts the microphone to a dialect's rate: every 20 ms in are 20 ms out, at most 2 ms late."""

    def __init__(self, rate: int) -> None:
        self._converter = RateConverter(USER_RATE, rate)
        self._tick = round(TICK_S * rate)
        # The resampler holds back its newest samples. As much silence goes before the first, so that no tick is short.
        self._waiting: Pcm = np.zeros(ceil(self._converter.hold_back_ms * rate / 1000), np.int16)

    def push(self, pcm: Pcm) -> Pcm:
        """Return the next 20 ms at the dialect's rate."""
        fresh = quantise(self._converter.push(floats_of(pcm)))
        self._waiting = np.concatenate((self._waiting, fresh))
        tick, self._waiting = self._waiting[: self._tick], self._waiting[self._tick :]
        return tick


# ---- the server's messages


class SampleJoiner:
    """Makes samples of bytes; half a sample at the end of a piece waits for the next piece."""

    def __init__(self) -> None:
        self._half: dict[str, bytes] = {}  # by response

    def push(self, response: str, data: bytes) -> Pcm:
        """Return the whole samples of a response."""
        data = self._half.pop(response, b"") + data
        if len(data) % 2:
            self._half[response], data = data[-1:], data[:-1]
        return np.frombuffer(data, "<i2").astype(np.int16)


# ---- tools


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """The result of a call, and when it is there."""

    at_s: float
    call_id: str
    output: str


class ToolTable:
    """The tools of a call, and the calls of the agent that wait for their results."""

    def __init__(self, tools: Iterable[LabTool]) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._waiting: list[ToolAnswer] = []
        self._called: set[str] = set()

    @property
    def waiting(self) -> bool:
        """Whether a result is due later."""
        return bool(self._waiting)

    def call(self, call_id: str, name: str, at_s: float) -> bool:
        """Begin a call; return whether it is a new one."""
        if call_id in self._called:
            return False
        self._called.add(call_id)
        tool = self._tools.get(name)
        answer = (
            ToolAnswer(at_s, call_id, '{"error": "there is no such tool"}')
            if tool is None
            else ToolAnswer(at_s + tool.takes_s, call_id, tool.result)
        )
        self._waiting.append(answer)
        return True

    def due(self, at_s: float) -> list[ToolAnswer]:
        """Return the results that are there now."""
        there = [one for one in self._waiting if one.at_s <= at_s + 1e-9]
        self._waiting = [one for one in self._waiting if one not in there]
        return there
