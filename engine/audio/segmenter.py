"""Cut a stream of audio into segments of speech, frame by frame.

The input is one probability of speech per frame, and the frames' energies where a segment without a pause must be cut.
So segments depend on the audio alone: not on how it was cut into pieces, nor on what was decoded meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

RATE = 16_000
FRAME_SAMPLES = 512
"""32 ms: the voice detector's frame."""


@dataclass(frozen=True, slots=True)
class ListenPolicy:
    """When to cut segments, when to decode them, and when to settle words. Seconds are seconds of audio.

    A "look" is one decode of a segment. Segments were tuned with Moonshine on 2.4 minutes of speech, plain and with
    noise 10 dB below it: 5.6 % of words were wrong. With segments of at most 18 s instead of 12 s, 8.3 % were wrong.
    With pauses of 0.8 s instead of 1.5 s, two more words were wrong, in short sentences cut off from their neighbours.

    Settling late keeps more text open; settling early settles words that a decode of the whole segment would change.
    89 segments with looks at random times, settled after 1, 1.5, 2, 2.5 and 3 s: 16, 12, 8, 1 and 0 segments differed
    from a decode of the whole (mostly by a comma); on average 7, 9, 10, 11 and 11 words were still open. Holding back
    the newest words as well changed nothing. Segments of less than 4 s settle when they close.
    """

    # Segments
    voiced_on: float = 0.5  # a frame is voiced from this probability on
    voiced_off: float = 0.35  # after a voiced frame, this probability is enough
    min_voiced_s: float = 0.16  # a segment with less voice is dropped: clicks have less; "I", said alone, has 0.26
    before_s: float = 0.2  # kept before the first voiced frame: the detector is late on soft consonants
    after_s: float = 0.19  # kept after the last voiced frame; at most `short_pause_s`
    long_pause_s: float = 1.5  # a pause that closes a segment of up to `short_segment_s`
    short_pause_s: float = 0.3  # a pause that closes a segment of `max_segment_s`; linear between the two lengths
    short_segment_s: float = 5.0
    max_segment_s: float = 12.0
    cut_s: float = 2.0  # speech without a pause is cut at the quietest place of this last stretch
    # Looks
    first_look_s: float = 0.6  # the first look comes this long after the voice began
    look_every_s: float = 0.48
    look_share: float = 0.06  # interval as a share of the segment, if that is longer: long segments cost more
    # Settling
    settle_s: float = 3.0  # a word settles when every look of this last stretch has found it

    @property
    def min_voiced(self) -> int:
        """Return the number of voiced frames in the shortest segment."""
        return max(1, round(self.min_voiced_s * RATE / FRAME_SAMPLES))


@dataclass(slots=True)
class Stretch:
    """A segment's place in the stream, in samples; its end moves while it is open."""

    start: int
    first_voiced: int  # sample at which the first voiced frame begins
    last_voiced: int  # sample at which the last voiced frame ends
    voiced: int  # voiced frames
    end: int


@dataclass(frozen=True, slots=True)
class _Frame:
    number: int
    voiced: bool


class Segmenter:
    """Finds segments. At most one is open at a time."""

    def __init__(self, policy: ListenPolicy, max_samples: int, energies: Callable[[int, int], list[int]]) -> None:
        """Begin a stream; `energies(start, end)` returns the energy of each frame between two samples."""
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
        """Return the number of samples in the frames so far."""
        return self._frames * FRAME_SAMPLES

    @property
    def needed(self) -> int:
        """Return the first sample that the open segment, or one that may open next, can need."""
        return self.open.start if self.open else max(self._closed_end, self.framed - self._before, 0)

    @property
    def paused(self) -> bool:
        """Return whether the open segment's end stays where it is unless the voice comes back."""
        return self.open is not None and self.framed >= self.open.last_voiced + self._after

    def uncut(self, start: int) -> int:
        """Return the sample before which a segment that begins at `start` is never cut because of its length."""
        return start + self._max - (self._recent.maxlen or 0) * FRAME_SAMPLES

    def feed(self, speech: float) -> Stretch | None:
        """Take the next frame's probability of speech; return the segment that it closes, if any."""
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
        # Cut now if the next frame would not fit.
        if self.framed + FRAME_SAMPLES - self.open.start > self._max:
            return self._cut()
        return None

    def finish(self, total: int) -> Stretch | None:
        """Take the end of the stream after `total` samples; return the segment that it closes, if any."""
        return None if self.open is None else self._close(min(total, self.open.last_voiced + self._after))

    def _extend(self, frame: _Frame) -> None:
        start = frame.number * FRAME_SAMPLES
        if self.open is None:
            self.open = Stretch(max(self._closed_end, start - self._before, 0), start, start, 0, start)
        self.open.voiced += 1
        self.open.last_voiced = start + FRAME_SAMPLES

    def _pause(self, length: int) -> float:
        """Return the pause, in samples, that closes a segment of `length`: longer segments need shorter pauses."""
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
        """Close the open segment at the quietest recent place; the rest begins another segment."""
        assert self.open is not None
        frames = [frame for frame in self._recent if frame.number * FRAME_SAMPLES >= self.open.start]
        energies = self._energies(frames[0].number * FRAME_SAMPLES, self.framed)
        # Sum three frames: a gap between words lasts longer than the closure of a consonant.
        around = [sum(energies[max(0, at - 1) : at + 2]) for at in range(len(frames))]
        # The voice may stop right after the cut: the rest must have enough voice for a segment, or it would be lost.
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
        """Return whether frames have enough voice for a segment, or none at all."""
        voiced = sum(frame.voiced for frame in frames)
        return not voiced or voiced >= self._policy.min_voiced
