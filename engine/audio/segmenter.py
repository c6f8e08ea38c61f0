"""Where speech begins and ends in a stream of audio, decided frame by frame.

It sees one probability of speech per frame, and how loud frames were where it has to cut between them. So where the
segments lie depends on the audio alone: not on how it was cut into pieces, nor on what was decoded meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

RATE = 16_000
FRAME_SAMPLES = 512
"""32 ms: what the detector of speech looks at at a time."""


@dataclass(frozen=True, slots=True)
class ListenPolicy:
    """When to look and what to believe. Seconds are seconds of audio.

    Segments were tuned with Moonshine on 2.4 minutes of speech, plain and at 10 dB of noise: 5.6 % of words wrong. At
    most 18 s instead of 12: 8.3 %; pauses of 0.8 s instead of 1.5: two more in short sentences that lost their
    neighbours.

    Settling is a trade: how far behind the voice the settled text runs against how often the whole clip would have
    been heard otherwise. Of 89 segments with looks at random times, settled after 1, 1.5, 2, 2.5 and 3 s, 16, 12,
    8, 1 and 0 were not what the whole segment gave (mostly by a comma); on average 7, 9, 10, 11 and 11 words were
    not yet settled. Holding words back besides changed nothing. Segments of less than 4 s settle when they close.
    """

    # Segments
    voiced_on: float = 0.5  # the probability that makes a frame voiced,
    voiced_off: float = 0.35  # and the one that keeps the next one voiced
    min_voiced_s: float = 0.16  # a click or a held vowel's onset has less; "I", said alone, has 0.26
    before_s: float = 0.2  # kept before the first voiced frame: the detector hears a soft consonant late
    after_s: float = 0.25  # kept after the last one; not more than `short_pause_s`
    long_pause_s: float = 1.5  # closes a segment of up to `short_segment_s`;
    short_pause_s: float = 0.3  # closes one of `max_segment_s`; in between, in between
    short_segment_s: float = 5.0
    max_segment_s: float = 12.0
    cut_s: float = 2.0  # speech without a pause is cut where these last seconds are quietest
    # Looks
    first_look_s: float = 0.6  # after the voice began
    look_every_s: float = 0.48
    look_share: float = 0.06  # of the segment so far, if that is longer: a look at a long segment costs more
    # Settling
    settle_s: float = 3.0  # a word settles when every look since this long ago has found it

    @property
    def min_voiced(self) -> int:
        """Voiced frames in the shortest segment."""
        return max(1, round(self.min_voiced_s * RATE / FRAME_SAMPLES))


@dataclass(slots=True)
class Stretch:
    """Where a segment lies; its end moves while it is open."""

    start: int
    first_voiced: int  # sample at which the first voiced frame begins
    last_voiced: int  # sample at which the last one ends
    voiced: int  # frames
    end: int


@dataclass(frozen=True, slots=True)
class _Frame:
    number: int
    voiced: bool


class Segmenter:
    """Finds segments; at most one is open."""

    def __init__(self, policy: ListenPolicy, max_samples: int, energies: Callable[[int, int], list[int]]) -> None:
        """Ask `energies` for those of the frames from one sample to another of an open segment."""
        self._policy = policy
        self._energies = energies
        self._before = round(policy.before_s * RATE)
        self._after = round(policy.after_s * RATE)
        self._max = min(round(policy.max_segment_s * RATE), max_samples)
        self._recent: deque[_Frame] = deque(maxlen=max(1, round(policy.cut_s * RATE / FRAME_SAMPLES)))
        self._frames = 0
        self._voiced = False
        self._closed_end = 0
        self.open: Stretch | None = None

    @property
    def framed(self) -> int:
        """Samples in the frames so far."""
        return self._frames * FRAME_SAMPLES

    @property
    def needed(self) -> int:
        """The first sample that an open segment, or one that may yet open, can need."""
        return self.open.start if self.open else max(self._closed_end, self.framed - self._before, 0)

    @property
    def paused(self) -> bool:
        """Whether the open segment's end stays where it is unless the voice comes back."""
        return self.open is not None and self.framed >= self.open.last_voiced + self._after

    def uncut(self, start: int) -> int:
        """Return the sample before which a segment that begins at `start` is never cut for its length."""
        return start + self._max - (self._recent.maxlen or 0) * FRAME_SAMPLES

    def feed(self, speech: float) -> Stretch | None:
        """Take the next frame; return the segment it closes, if it does."""
        policy = self._policy
        self._voiced = speech >= (policy.voiced_off if self._voiced else policy.voiced_on)
        frame = _Frame(self._frames, self._voiced)
        self._frames += 1
        self._recent.append(frame)
        if self._voiced:
            self._extend(frame)
        if self.open is None:
            return None
        self.open.end = min(self.framed, self.open.last_voiced + self._after)
        if self.framed - self.open.last_voiced >= self._pause(self.open.end - self.open.start):
            return self._close(self.open.end)
        # The next frame must still fit.
        if self.framed + FRAME_SAMPLES - self.open.start > self._max:
            return self._cut()
        return None

    def finish(self, total: int) -> Stretch | None:
        """Take the end of the stream after `total` samples; return the segment it closes, if it does."""
        return None if self.open is None else self._close(min(total, self.open.last_voiced + self._after))

    def _extend(self, frame: _Frame) -> None:
        start = frame.number * FRAME_SAMPLES
        if self.open is None:
            self.open = Stretch(max(self._closed_end, start - self._before, 0), start, start, 0, start)
        self.open.voiced += 1
        self.open.last_voiced = start + FRAME_SAMPLES

    def _pause(self, length: int) -> float:
        """Return the pause, in samples, that closes a segment of `length`: the longer it is, the shorter."""
        policy = self._policy
        short, longest = policy.short_segment_s * RATE, policy.max_segment_s * RATE
        share = min(1.0, max(0.0, (length - short) / (longest - short)))
        return (policy.long_pause_s + share * (policy.short_pause_s - policy.long_pause_s)) * RATE

    def _close(self, end: int) -> Stretch | None:
        stretch, self.open = self.open, None
        assert stretch is not None
        stretch.end = self._closed_end = end
        return stretch if stretch.voiced >= self._policy.min_voiced else None

    def _cut(self) -> Stretch | None:
        """Close the open segment in its quietest place; what follows is the beginning of another."""
        assert self.open is not None
        frames = [frame for frame in self._recent if frame.number * FRAME_SAMPLES >= self.open.start]
        energies = self._energies(frames[0].number * FRAME_SAMPLES, self.framed)
        # Three frames together: a gap between words lasts longer than the closure of one consonant.
        around = [sum(energies[max(0, at - 1) : at + 2]) for at in range(len(frames))]
        # The voice may stop at once: what is left of it must still be one, or it would be nobody's.
        inner = [at for at in range(1, len(frames) - 1) if self._is_voice(frames[at:])]
        quietest = min(inner or range(len(frames)), key=lambda at: (around[at], at))
        rest = [frame for frame in frames[quietest:] if frame.voiced]
        self.open.voiced -= len(rest)
        closed = self._close(frames[quietest].number * FRAME_SAMPLES + FRAME_SAMPLES // 2)
        for frame in rest:
            self._extend(frame)
        if self.open is not None:
            self.open.end = min(self.framed, self.open.last_voiced + self._after)
        return closed

    def _is_voice(self, frames: list[_Frame]) -> bool:
        """Return whether frames have enough voice in them for a segment, or none at all."""
        voiced = sum(frame.voiced for frame in frames)
        return not voiced or voiced >= self._policy.min_voiced
