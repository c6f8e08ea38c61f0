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
        self._rate = form.rate
        self._next: int | None = None  # the order of the next packet
        self._waiting: dict[int, Media] = {}
        self._next_ms: float | None = None  # the time of the next sample, by the system's clock
        self._packet_s = 0.0  # the length of the last packet
        self._made_up_s = 0.0  # silence that no packet has paid for
        self._came_s: float | None = None  # when the last packet came, or silence was made up

    @property
    def seconds(self) -> float:
        """Seconds of sound so far."""
        return self._microphone.seconds

    def push(self, media: Media, now: float) -> list[bytes]:
        """Return the sound that is complete now, as 16-bit samples at 16 kHz."""
        self._came_s = now
        if media.order is None:
            return self._sound(media)
        if self._next is None:
            self._next = media.order
        if media.order < self._next:
            return []  # it comes twice, or too late
        self._waiting[media.order] = media
        found: list[bytes] = []
        if len(self._waiting) > MOST_WAITING:
            first = min(self._waiting)  # those before it are lost
            if media.at_ms is None:
                found.append(silence((first - self._next) * self._packet_s))
            self._next = first
        while self._next in self._waiting:
            found += self._sound(self._waiting.pop(self._next))
            self._next += 1
        return found

    def _sound(self, media: Media) -> list[bytes]:
        before = self._microphone.seconds
        pcm = self._microphone.push(media.data)
        self._packet_s = seconds = self._microphone.seconds - before
        missing_s = self._missing(media, seconds)
        return [*([silence(missing_s)] if missing_s else []), *([pcm] if pcm else [])]

    def _missing(self, media: Media, seconds: float) -> float:
        """Return the seconds of silence to insert before a packet."""
        if media.at_ms is None:
            self._made_up_s = 0.0
            return 0.0
        gap_s = 0.0 if self._next_ms is None else (media.at_ms - self._next_ms) / 1000
        if abs(gap_s) > LARGEST_GAP_S or gap_s < SMALLEST_GAP_S:
            if gap_s >= -SMALLEST_GAP_S and abs(gap_s) <= LARGEST_GAP_S:
                self._next_ms = (self._next_ms or media.at_ms) + seconds * 1000  # rounding must not add up
            else:
                self._next_ms = media.at_ms + seconds * 1000
            if abs(gap_s) > LARGEST_GAP_S:
                self._made_up_s = 0.0
            return 0.0
        self._next_ms = media.at_ms + seconds * 1000
        paid_s = min(gap_s, self._made_up_s)
        self._made_up_s -= paid_s
        return gap_s - paid_s

    def quiet(self, now: float) -> bytes:
        """Return the silence of a caller from whom nothing has come for long; b"" if that is not so."""
        if self._came_s is None or now < self._came_s + QUIET_S:
            return b""
        self._came_s += QUIET_PIECE_S
        self._made_up_s += QUIET_PIECE_S
        return silence(QUIET_PIECE_S)

    def quiet_at(self) -> float | None:
        """Return when `quiet` has sound if nothing comes; None before the first packet."""
        return None if self._came_s is None else self._came_s + QUIET_S


def silence(seconds: float) -> bytes:
    """Return silence in the session's format."""
    return bytes(2 * round(seconds * LISTEN_RATE))
