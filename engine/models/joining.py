"""Speak the beginning of a clause before all of it is known, and join the whole clause to it later. Pure.

A clause's first words sound much the same whatever follows them, if something follows: so a beginning is spoken with a
tail behind it, and heard up to the quietest place before its last word. When more of the clause is known, it is spoken
again as far as it is known, and what follows is laid on at the same word, where the waveforms fit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from voxlane.engine.models.synthesis import Samples, SynthesisedClause, TimedWord

TAIL = "and so on and on."
"""Spoken behind a beginning and never heard. Without it a voice falls as if the clause ended there, and the recogniser
mistook 11 more of 1,725 words."""

NEAR_S = 0.06
"""How far from a word's predicted end the join may lie: predicted times are off by as much."""

FADE_S = 0.012
SHIFT_S = 0.008
"""How far the later sound is moved for its waveform to fit: one period of a low voice, half of it each way."""

LOUDNESS_S = 0.08
MOST_GAIN = 1.4
RELEASE_S = 0.25
"""The later sound begins with the loudness of the earlier one, within limits, and takes its own in this time."""

_WINDOW_S = 0.01


@dataclass(frozen=True, slots=True)
class Beginning:
    """The sound of a clause as far as it was known, of which `heard` samples were given away."""

    speech: SynthesisedClause
    heard: int
    words: int  # how many of its words these samples hold

    @property
    def sound(self) -> SynthesisedClause:
        """The samples that were given away, and their words."""
        words = tuple(_until(word, self.heard) for word in self.speech.words[: self.words])
        return SynthesisedClause(self.speech.samples[: self.heard], words)


def beginning(speech: SynthesisedClause, certain: int, rate: int) -> Beginning | None:
    """Return what is heard of a clause that is spoken with TAIL: the words within its first characters. None: no word.

    Another word must follow them that the clause will have too, or a pause.
    """
    count = sum(word.source_start < certain for word in speech.words)
    if not 0 < count < len(speech.words) or not speech.words[count - 1].end_sample:
        return None
    return Beginning(speech, _quietest(speech, count, rate), count)


def joined(before: Beginning, speech: SynthesisedClause, rate: int) -> SynthesisedClause:
    """Return the clause with the samples of its beginning as they were heard; `speech` is it as far as known now."""
    heard, sound = before.heard, before.sound
    count = sum(word.source_start < sound.words[-1].source_end for word in speech.words)
    if not 0 < count < len(speech.words):
        return sound
    fade = round(FADE_S * rate)
    old = before.speech.samples[heard : heard + fade]
    at = _fitting(old, speech.samples, _same_moment(before, speech, count), rate)
    rest = speech.samples[at:].copy()
    rest *= _gain(before.speech.samples[heard:], rest, rate)
    over = min(len(old), len(rest))
    ramp = np.linspace(0.0, 1.0, over, dtype=np.float32)
    rest[:over] = rest[:over] * ramp + old[:over] * (1.0 - ramp)
    words = tuple(_moved(word, heard - at, heard) for word in speech.words[count:])
    return SynthesisedClause(np.concatenate((sound.samples, rest)), sound.words + words)


def _until(word: TimedWord, end: int) -> TimedWord:
    return TimedWord(word.source_start, word.source_end, min(word.start_sample, end), min(word.end_sample, end))


def _moved(word: TimedWord, by: int, least: int) -> TimedWord:
    start = max(least, word.start_sample + by)
    return TimedWord(word.source_start, word.source_end, start, max(start, word.end_sample + by))


def _quietest(speech: SynthesisedClause, count: int, rate: int) -> int:
    """Return the middle of the quietest 10 ms near the end of a clause's first `count` words; another one follows."""
    window, near = round(_WINDOW_S * rate), round(NEAR_S * rate)
    last, after = speech.words[count - 1 : count + 1]
    begin = max(last.start_sample, last.end_sample - near)
    end = min(len(speech.samples), max(after.start_sample, last.end_sample) + near)
    if end - begin <= window:
        return last.end_sample
    power = np.convolve(speech.samples[begin:end].astype(np.float64) ** 2, np.ones(window), "valid")
    return begin + int(np.argmin(power)) + window // 2


def _same_moment(before: Beginning, speech: SynthesisedClause, count: int) -> int:
    """Return the place in a clause's sound at which its beginning ended, by the times of the words around it."""
    old, new = (
        [edge for word in words[place - 1 : place + 1] for edge in (word.start_sample, word.end_sample)]
        for words, place in ((before.speech.words, before.words), (speech.words, count))
    )
    if before.heard > old[2]:  # in the next word, which may be another one now: its pace says nothing
        return new[2] + before.heard - old[2]
    return round(float(np.interp(before.heard, old[:3], new[:3])))


def _fitting(old: Samples, samples: Samples, place: int, rate: int) -> int:
    """Return the place near another at which samples continue most like `old`."""
    shift = round(SHIFT_S * rate)
    first = max(0, place - shift)
    area = samples[first : place + shift + len(old)].astype(np.float64)
    if len(old) == 0 or len(area) <= len(old):
        return place
    likeness = np.correlate(area, old.astype(np.float64), "valid")
    power = np.convolve(area**2, np.ones(len(old)), "valid")
    return first + int(np.argmax(likeness / np.sqrt(power + 1e-6)))


def _gain(old: Samples, new: Samples, rate: int) -> Samples:
    """Return the factors by which new samples begin as loud as the old ones would have gone on."""
    span = min(round(LOUDNESS_S * rate), len(old), len(new))
    if span == 0:
        return np.ones(len(new), np.float32)
    loudness = [float(np.sqrt(np.mean(one[:span].astype(np.float64) ** 2))) + 1e-4 for one in (old, new)]
    factor = float(np.clip(loudness[0] / loudness[1], 1 / MOST_GAIN, MOST_GAIN))
    gains = np.ones(len(new), np.float32)
    release = min(len(new), round(RELEASE_S * rate))
    gains[:release] = np.linspace(factor, 1.0, release, dtype=np.float32)
    return gains
