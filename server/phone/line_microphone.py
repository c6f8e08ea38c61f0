"""The caller's sound: put in order, filled up where packets are missing, and converted to the session's format.

Telephone systems number their packets, give them times, or do neither. A packet that comes too early waits for those
before it; a packet that is missing becomes silence. A system that sends nothing while the caller is silent is given
silence by the clock: a turn could not end without it. Pure: the clock is an argument.
"""

from __future__ import annotations

from voxlane.engine.api import LISTEN_RATE
from voxlane.server.protocols.dialect import AudioFormat
from voxlane.server.protocols.phone.line_events import Media
from voxlane.server.protocols.sound import Microphone

MOST_WAITING = 8
"""Packets that wait for a missing one: 160 ms, as much as a telephone's jitter buffer."""

FAR_PACKETS = 250
"""A packet whose number is so far from the next one begins a new count: five seconds of packets."""

QUIET_S = 0.75
"""Time without a packet after which the caller counts as silent."""

QUIET_PIECE_S = 0.1
"""Silence that is made up at once."""

LARGEST_GAP_S = 5.0
"""A larger jump of the times is a new clock, not a gap."""

SMALLEST_GAP_S = 0.015
"""A smaller jump is the rounding of the times."""


class LineMicrophone:
    """The microphone of one call."""

    def __init__(self, form: AudioFormat) -> None:
        self._microphone = Microphone(form)
        self._next: int | None = None  # the order of the next packet
        self._waiting: dict[int, Media] = {}
        self._late = 0  # packets in a row that came too late
        self._next_ms: float | None = None  # the time of the next sample, by the system's clock
        self._packet_s = 0.0  # the length of the last packet
        self._silence_s = 0.0  # all silence that was inserted
        self._made_up_s = 0.0  # made-up silence that no gap in the times has covered yet
        self._came_s: float | None = None  # when the last packet came, or silence was made up

    @property
    def seconds(self) -> float:
        """Seconds of sound so far, with the silence that was inserted."""
        return self._microphone.seconds + self._silence_s

    def push(self, media: Media, now: float) -> list[bytes]:
        """Return the sound that is complete now, as 16-bit samples at 16 kHz."""
        self._came_s = now
        if media.order is None:
            return self._sound(media)
        found: list[bytes] = []
        if self._next is None or abs(media.order - self._next) > FAR_PACKETS:  # the first one, or a new count
            found += self._hand_out()
            self._next = media.order
        if media.order < self._next:  # it comes twice, or too late
            self._late += 1
            if self._late <= MOST_WAITING:
                return found
            self._next = media.order  # so many of them are a new count
        self._late = 0
        self._waiting[media.order] = media
        if len(self._waiting) > MOST_WAITING:
            found += self._skip()
        while self._next in self._waiting:
            found += self._sound(self._waiting.pop(self._next))
            self._next += 1
        return found

    def _skip(self) -> list[bytes]:
        """Give up the packets before those that wait; return silence in their place, unless the times tell it."""
        assert self._next is not None
        first = min(self._waiting)
        lost_s = (first - self._next) * self._packet_s
        self._next = first
        timed = self._waiting[first].at_ms is not None
        return [] if timed or lost_s > LARGEST_GAP_S else self._inserted(lost_s)

    def _hand_out(self) -> list[bytes]:
        """Return the sound of all packets that wait."""
        found: list[bytes] = []
        for order in sorted(self._waiting):
            found += self._sound(self._waiting.pop(order))
            self._next = order + 1
        return found

    def _sound(self, media: Media) -> list[bytes]:
        before = self._microphone.seconds
        pcm = self._microphone.push(media.data)
        self._packet_s = self._microphone.seconds - before
        return [*self._inserted(self._missing(media.at_ms)), *([pcm] if pcm else [])]

    def _inserted(self, seconds: float) -> list[bytes]:
        self._silence_s += seconds
        return [silence(seconds)] if seconds else []

    def _missing(self, at_ms: int | None) -> float:
        """Return the seconds of silence to insert before a packet whose sound begins at this time."""
        if at_ms is None:
            self._made_up_s = 0.0
            return 0.0
        expected_ms = at_ms if self._next_ms is None else self._next_ms
        gap_s = (at_ms - expected_ms) / 1000
        rounding = abs(gap_s) < SMALLEST_GAP_S
        self._next_ms = (expected_ms if rounding else at_ms) + self._packet_s * 1000  # rounding must not add up
        if rounding or gap_s < 0 or gap_s > LARGEST_GAP_S:
            if not rounding:
                self._made_up_s = 0.0
            return 0.0
        covered_s = min(gap_s, self._made_up_s)
        self._made_up_s -= covered_s
        return gap_s - covered_s

    def quiet(self, now: float) -> bytes:
        """Return what waits and the silence of a caller from whom nothing has come for long; b"" if that is not so."""
        if self._came_s is None or now < self._came_s + QUIET_S:
            return b""
        self._came_s += QUIET_PIECE_S
        self._made_up_s += QUIET_PIECE_S
        return b"".join([*self._hand_out(), *self._inserted(QUIET_PIECE_S)])

    def quiet_at(self) -> float | None:
        """Return when `quiet` has sound if nothing comes; None before the first packet."""
        return None if self._came_s is None else self._came_s + QUIET_S


def silence(seconds: float) -> bytes:
    """Return silence in the session's format."""
    return bytes(2 * round(seconds * LISTEN_RATE))
