"""Where a clean sound is voiced, and how loud it is there. Pure.

The sounds come from generators and a speech model, without any noise behind them, so that a level is enough to tell
sound from silence.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from voxlane_lab.sounds.shaping import Sound
from voxlane_lab.values import USER_RATE, Clip, Interval, Pcm

CLIP_DB = -23.0
"""Loudness of every clip over its voiced parts, in dB of full scale."""

FLOOR_DB = -40.0
"""A frame is voiced if it is louder than this against the clip's loudest frame."""

SPEECH_GAP_S = 0.15
"""Silence in speech that is shorter belongs to the speech: the closure of a "t", a breath of the rhythm."""

SHORTEST_SPEECH_S = 0.03
"""Speech that stands alone and is shorter is none: a model's breath behind the last word is not the end of a turn."""

NOISE_GAP_S = 0.03
"""The same for noises: the keys of a keyboard are sounds of their own."""

CEILING = 0.95
"""The highest sample of a clip; higher ones are bent below it, as a microphone does."""

_KNEE = 0.7  # samples below stay as they are
_FRAME = USER_RATE // 100
_EXACT_DB = 0.01
_ROUNDS = 12  # of bringing a clip to its loudness: bending peaks makes it quieter


def spoken_intervals(sound: Sound, loudest: float = 0.0) -> tuple[Interval, ...]:
    """Return where speech is voiced; `loudest` as in voiced_intervals."""
    found = voiced_intervals(sound, SPEECH_GAP_S, loudest)
    return tuple(one for one in found if one[1] - one[0] >= SHORTEST_SPEECH_S * USER_RATE)


def voiced_intervals(sound: Sound, gap_s: float, loudest: float = 0.0) -> tuple[Interval, ...]:
    """Return where frames of 10 ms lie above the floor; shorter gaps than `gap_s` belong to the sound.

    The ends are exact: the first and the last sample of a stretch that reach the floor. `loudest` is the loudest frame
    of the clip that the sound is a part of; 0 if it is the whole clip.
    """
    level = _levels(sound)
    loudest = loudest or loudest_frame(sound)
    if loudest <= 0:
        return ()
    floor = loudest * 10 ** (FLOOR_DB / 20)
    loud = np.repeat(level > floor, _FRAME)[: len(sound)] & (np.abs(sound) >= floor)
    return _stretches(np.flatnonzero(loud), round(gap_s * USER_RATE))


def loudest_frame(sound: Sound) -> float:
    """Return the RMS of the loudest frame of 10 ms."""
    return float(_levels(sound).max(initial=0.0))


def _levels(sound: Sound) -> Sound:
    """Return the RMS of every frame of 10 ms; the last one is filled up with silence."""
    count = -(-len(sound) // _FRAME)
    frames = np.pad(sound, (0, count * _FRAME - len(sound))).reshape(count, _FRAME)
    result: Sound = np.sqrt((frames**2).mean(axis=1))
    return result


def _stretches(places: NDArray[np.intp], gap: int) -> tuple[Interval, ...]:
    """Return the stretches of sorted places with less than `gap` between them."""
    if not len(places):
        return ()
    breaks = np.flatnonzero(np.diff(places) > gap)
    firsts = places[np.concatenate([[0], breaks + 1])]
    lasts = places[np.concatenate([breaks, [len(places) - 1]])]
    return tuple((int(first), int(last) + 1) for first, last in zip(firsts, lasts, strict=True))


def loudness_db(sound: Sound, voiced: tuple[Interval, ...]) -> float:
    """Return the RMS of the voiced parts in dB of full scale."""
    power = sum(float((sound[first:end] ** 2).sum()) for first, end in voiced)
    return float(10 * np.log10(max(power / max(1, sum(end - first for first, end in voiced)), 1e-20)))


def levelled(sound: Sound, voiced: tuple[Interval, ...], level_db: float = CLIP_DB) -> Pcm:
    """Return the samples of a sound at a loudness; peaks are bent so that none is cut off."""
    gain_db = level_db - loudness_db(sound, voiced)
    for _ in range(_ROUNDS):
        result = _bent(sound * 10 ** (gain_db / 20))
        missing_db = level_db - loudness_db(result, voiced)
        if abs(missing_db) < _EXACT_DB:
            break
        gain_db += missing_db
    return as_pcm(result)


def as_pcm(sound: Sound) -> Pcm:
    """Return a sound as 16-bit samples."""
    return np.rint(np.clip(sound, -1, 1) * 32767).astype(np.int16)


def as_sound(pcm: Pcm) -> Sound:
    """Return 16-bit samples as a sound."""
    return pcm.astype(np.float64) / 32767


def made_clip(name: str, sound: Sound, voiced: tuple[Interval, ...] | None = None, words: str = "") -> Clip:
    """Return a clip at the usual loudness; without `voiced`, its intervals are those of a noise."""
    if voiced is None:
        voiced = voiced_intervals(sound, NOISE_GAP_S)
    return Clip(name, levelled(sound, voiced), voiced, words)


def _bent(sound: Sound) -> Sound:
    """Return samples with the part above the knee bent below the ceiling."""
    size = np.abs(sound)
    over = np.maximum(size - _KNEE, 0.0) / (CEILING - _KNEE)
    return np.where(size > _KNEE, np.sign(sound) * (_KNEE + (CEILING - _KNEE) * np.tanh(over)), sound)
