"""A telephone line in memory: it plays what it is sent in real time, answers marks and clears, and records the sound.

It is the far end of a `LinePlayer`, written from the systems' documents and not from our player.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from voxlane.server.protocols.phone.line_events import LineTraits


@dataclass
class PlainCodec:
    """Messages as text: `media:HEX`, `mark:NAME`, `clear`."""

    traits: LineTraits

    def read(self, message: bytes | str) -> list[object]:
        return []

    def media(self, data: bytes) -> str:
        return f"media:{data.hex()}"

    def mark(self, name: str) -> str | None:
        return f"mark:{name}" if self.traits.marks else None

    def clear(self) -> str | None:
        return "clear" if self.traits.clears else None

    def hang_up(self) -> None:
        return None


@dataclass
class FarEnd:
    """The far end: 16-bit samples at `rate`, a delay each way, and a wait before the first sound of a stretch."""

    rate: int = 8000
    delay_s: float = 0.0
    wait_s: float = 0.0  # a stretch begins to play so long after its first sound came
    returns_cleared_marks: bool = False
    heard: bytearray = field(default_factory=bytearray)  # all that was played, without the silence between
    events: list[tuple[float, str]] = field(default_factory=list)  # mark names on their way back, and when they arrive
    _coming: deque[tuple[float, str]] = field(default_factory=deque)
    _buffer: deque[bytes | str] = field(default_factory=deque)  # one sample, or the name of a mark
    _now_s: float = 0.0
    _plays_from_s: float | None = None

    def send(self, messages: list[str], now: float) -> None:
        self._coming.extend((now + self.delay_s, message) for message in messages)

    def run(self, until_s: float) -> None:
        """Let time pass."""
        while self._coming and self._coming[0][0] <= until_s:
            at_s, message = self._coming.popleft()
            self._play(at_s)
            self._take(message, at_s)
        self._play(until_s)

    def _take(self, message: str, now: float) -> None:
        kind, _, rest = message.partition(":")
        if kind == "media":
            if not self._buffer and self._plays_from_s is None:
                self._plays_from_s = now + self.wait_s
            data = bytes.fromhex(rest)
            self._buffer.extend(data[at : at + 2] for at in range(0, len(data), 2))
        elif kind == "mark":
            self._buffer.append(rest)
            self._play(now)
        else:
            marks = [item for item in self._buffer if isinstance(item, str)]
            self._buffer.clear()
            self._plays_from_s = None
            if self.returns_cleared_marks:
                self.events.extend((now + self.delay_s, name) for name in marks)

    def _play(self, until_s: float) -> None:
        while self._buffer:
            if isinstance(self._buffer[0], str):
                at_s = self._plays_from_s if self._plays_from_s is not None else max(self._now_s, until_s)
                if at_s > until_s:
                    break
                self.events.append((at_s + self.delay_s, str(self._buffer.popleft())))
                continue
            assert self._plays_from_s is not None
            if self._plays_from_s + 1 / self.rate > until_s + 1e-9:
                break
            sample = self._buffer.popleft()
            assert isinstance(sample, bytes)
            self.heard += sample
            self._plays_from_s += 1 / self.rate
        if not self._buffer and self._plays_from_s is not None and self._plays_from_s <= until_s:
            self._plays_from_s = None
        self._now_s = until_s

    def returned(self, now: float) -> list[str]:
        """Return the marks that have arrived at the server."""
        arrived = [name for at_s, name in self.events if at_s <= now]
        self.events = [(at_s, name) for at_s, name in self.events if at_s > now]
        return arrived
