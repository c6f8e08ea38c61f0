"""Speech with pauses of exact length: a text is spoken once, cut between its words, and put together again. Pure.

A part that is spoken by itself ends as a sentence does: the voice falls. A person who pauses in mid sentence does not
sound like that. So all parts are spoken as one text, and the pauses are put in afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from voxlane_lab.errors import LabError, quote
from voxlane_lab.rates import converted
from voxlane_lab.sounds.intervals import levelled, loudest_frame, spoken_intervals
from voxlane_lab.sounds.shaping import Sound, samples_of
from voxlane_lab.values import USER_RATE, Clip, Interval, Pcm, WordSpan

LEAD_S, TAIL_S = 0.03, 0.08
"""The most that is kept of what lies before the first voiced sample and behind the last."""

FADE_S = 0.005
"""Length of the fade where a word was cut off from the next one."""

MOST_PAUSE_S = 600.0

_LOOK_S = 0.03  # word times are coarse: the quietest place is looked for this much further
_QUIET_S = 0.01  # the quietest place is judged over this long


@dataclass(frozen=True, slots=True)
class Wanted:
    """Something to be said: words, and pauses between them in seconds."""

    parts: tuple[str | float, ...]
    voice: str

    def __post_init__(self) -> None:
        texts = [part for part in self.parts if isinstance(part, str)]
        if not texts or not all(text.strip() for text in texts):
            raise LabError("there is nothing to say: a step has no words, or an empty part")
        if not all(0 <= part <= MOST_PAUSE_S for part in self.parts if not isinstance(part, str)):
            raise LabError(f"a pause lasts from 0 to {MOST_PAUSE_S:g} seconds")

    @property
    def texts(self) -> tuple[str, ...]:
        """The parts that are words; parts without a pause between them are one."""
        return self._taken_apart()[0]

    @property
    def pauses(self) -> tuple[int, ...]:
        """The samples of silence before each of `texts`, and behind the last."""
        return self._taken_apart()[1]

    @property
    def words(self) -> str:
        """All words as one text."""
        return " ".join(self.texts)

    def _taken_apart(self) -> tuple[tuple[str, ...], tuple[int, ...]]:
        texts: list[str] = []
        pauses = [0]
        for part in self.parts:
            if not isinstance(part, str):
                pauses[-1] += samples_of(part)
            elif texts and not pauses[-1]:
                texts[-1] += f" {part.strip()}"
            else:
                texts.append(part.strip())
                pauses.append(0)
        return tuple(texts), tuple(pauses)


@dataclass(frozen=True, slots=True)
class Rendition:
    """A text as a model has said it."""

    pcm: Pcm
    rate: int
    words: tuple[WordSpan, ...]  # their places in the text and in the samples


def assembled(wanted: Wanted, spoken: Rendition) -> Clip:
    """Return a clip with the pauses that are wanted; raise LabError if a part cannot be heard."""
    sound: Sound = converted(spoken.pcm / np.float32(32768), spoken.rate, USER_RATE).astype(np.float64)
    pieces = _pieces(sound, _cuts(wanted, spoken, sound))
    loudest = max(loudest_frame(piece) for piece in pieces)
    result: list[Sound] = []
    voiced: list[Interval] = []
    length = 0
    for number, (piece, pause) in enumerate(zip(pieces, wanted.pauses, strict=False)):
        inside = spoken_intervals(piece, loudest)
        if not inside:
            raise LabError(f"there is nothing to hear in {quote(wanted.texts[number])}: write words")
        first, last = inside[0][0], inside[-1][1]
        before = min(first, samples_of(LEAD_S)) if number == 0 and not pause else 0
        behind = samples_of(TAIL_S) if number == len(pieces) - 1 and not wanted.pauses[-1] else 0
        kept = piece[first - before : last + behind]
        result += [np.zeros(pause), kept]
        start = length + pause + before - first
        voiced += [(begin + start, end + start) for begin, end in inside]
        length += pause + len(kept)
    result.append(np.zeros(wanted.pauses[-1]))
    whole = np.concatenate(result)
    return Clip("speech", levelled(whole, tuple(voiced)), tuple(voiced), wanted.words)


def _cuts(wanted: Wanted, spoken: Rendition, sound: Sound) -> list[int]:
    """Return where each part but the first begins in the sound."""
    cuts = []
    place = 0
    for text in wanted.texts[:-1]:
        place += len(text)
        before = [word for word in spoken.words if word.start < place]
        behind = [word for word in spoken.words if word.start >= place]
        if not before or not behind:
            raise LabError(f"there is nothing to hear beside {quote(text)}: write words")
        to_ours = USER_RATE / spoken.rate
        cuts.append(_quietest(sound, round(before[-1].end_sample * to_ours), round(behind[0].start_sample * to_ours)))
        place += 1  # the space
    return cuts


def _quietest(sound: Sound, end: int, start: int) -> int:
    """Return the quietest place between the end of a word and the start of the next."""
    window, look = samples_of(_QUIET_S), samples_of(_LOOK_S)
    first = max(0, min(end, start) - look)
    power = np.convolve(sound[first : max(end, start) + look] ** 2, np.ones(window), "valid")
    return first + int(np.argmin(power)) + window // 2 if len(power) else first


def _pieces(sound: Sound, cuts: list[int]) -> list[Sound]:
    """Return the pieces between cuts; each cut is faded out and in, because one word may run into the next."""
    pieces = [sound[first:end].copy() for first, end in pairwise([0, *cuts, len(sound)])]
    count = samples_of(FADE_S)
    for number, piece in enumerate(pieces):
        fade = np.linspace(0, 1, min(count, len(piece)), endpoint=False)
        if number:
            piece[: len(fade)] *= fade
        if number < len(pieces) - 1:
            piece[len(piece) - len(fade) :] *= fade[::-1]
    return pieces
