"""Sounds that people make without words, and sounds of the things around them. Every one is made from a seed. Pure.

A cough, a cleared throat and a breath are air through a vocal tract: noise or a rough voice through its resonances.
Knocks, doors, keys and clicks are blows on things that ring: short noise through the modes of wood, metal and plastic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.random import Generator

from voxlane_lab.sounds.shaping import (
    Sound,
    added,
    at_rms,
    band,
    drift,
    envelope,
    in_room,
    resonant,
    samples_of,
    swell,
    times,
    white,
)
from voxlane_lab.values import USER_RATE

Modes = Sequence[tuple[float, float, float]]
"""Resonances: frequency, bandwidth and gain of each."""


def cough(chance: Generator) -> Sound:
    """Return one to three coughs after each other, each weaker than the one before."""
    person = chance.uniform(0.88, 1.18)  # how short the vocal tract is: a woman's is shorter than a man's
    pitch = 150 * person**3
    at_s, pieces = 0.02, []
    for number in range(int(chance.integers(1, 4))):
        one = _one_cough(chance, person, pitch)
        pieces.append((at_s, one * 10 ** (-chance.uniform(2, 5) * number / 20)))
        at_s += len(one) / USER_RATE + chance.uniform(0.02, 0.12)
    return _close(added(samples_of(at_s + 0.1), pieces), chance)


def _one_cough(chance: Generator, person: float, pitch: float) -> Sound:
    """Return a burst as the glottis opens, then air, then often a short rough voice as it closes."""
    burst_s, air_s = chance.uniform(0.03, 0.06), chance.uniform(0.1, 0.18)
    voice_s = chance.uniform(0.06, 0.12) if chance.random() < 0.7 else 0.0
    count = samples_of(burst_s + air_s + voice_s + 0.06)
    end_s = burst_s + air_s
    noise = white(chance, count) * (1 + 0.35 * drift(chance, count, 90.0))
    open_tract: Modes = [
        (520 * person, 220, 1.0), (1150 * person, 260, 0.9), (2300 * person, 420, 0.6),
        (3300 * person, 600, 0.32), (4600 * person, 1200, 0.1),
    ]  # fmt: skip
    burst = resonant(noise * envelope(count, (0, -18), (0.004, 0), (burst_s, -9), (burst_s * 2.2, -60)), open_tract)
    burst += 0.25 * _padded(
        band(white(chance, count), 300, 5000) * envelope(count, (0, -20), (0.003, 0), (0.025, -24), (0.06, -80)),
        len(burst),
    )
    air = resonant(
        white(chance, count) * envelope(count, (0, -40), (burst_s, -7), (end_s, -17), (end_s + 0.06, -60)),
        [(frequency * 0.93, width * 1.3, gain) for frequency, width, gain in open_tract],
    )
    sound = burst + air
    if voice_s:
        voice = _rough_voice(chance, count, pitch * 1.5, pitch * 0.9, roughness=0.25)
        shape = envelope(
            count,
            (0, -70),
            (end_s - 0.03, -30),
            (end_s + 0.015, -8),
            (end_s + voice_s, -20),
            (end_s + voice_s + 0.05, -70),
        )
        voiced = resonant(
            (voice + 0.25 * white(chance, count)) * shape,
            [(450 * person, 110, 1.0), (1050 * person, 150, 0.5), (2400 * person, 250, 0.2)],
        )
        sound += voiced * (0.55 * _peak(sound) / max(_peak(voiced), 1e-9))
    return sound[: count + samples_of(0.05)]


def throat(chance: Generator) -> Sound:
    """Return a cleared throat: two stretches of a low, creaking voice in a narrow throat."""
    person = chance.uniform(0.88, 1.15)
    pitch = 88 * person**2
    tract: Modes = [(480 * person, 130, 1.0), (980 * person, 160, 0.8), (2150 * person, 300, 0.35), (3000, 500, 0.15)]
    at_s, pieces = 0.02, []
    for length in (chance.uniform(0.12, 0.2), chance.uniform(0.26, 0.4)):
        count = samples_of(length)
        voice = _rough_voice(chance, count, pitch * 1.15, pitch * 0.85, roughness=0.5)
        rasp = white(chance, count) * (0.4 + 0.6 * np.maximum(0, voice / max(_peak(voice), 1e-9)))
        source = (at_rms(voice, 1.0) + 0.7 * rasp) * swell(count, 0.03, 0.06)
        pieces.append((at_s, resonant(source, tract, 0.06)))
        at_s += length + chance.uniform(0.03, 0.07)
    return _close(added(samples_of(at_s + 0.1), pieces), chance)


def breath(chance: Generator) -> Sound:
    """Return a breath in through the mouth and a softer one out."""
    person = chance.uniform(0.9, 1.15)
    inward_s, outward_s = chance.uniform(0.35, 0.6), chance.uniform(0.5, 0.8)
    inward = _air(chance, inward_s, [(750 * person, 400, 0.5), (1700 * person, 500, 1.0), (3600, 1500, 0.6)], 0.6)
    outward = _air(chance, outward_s, [(550 * person, 350, 1.0), (1300 * person, 450, 0.6), (2600, 1200, 0.2)], 0.25)
    gap_s = chance.uniform(0.05, 0.2)
    length = samples_of(inward_s + gap_s + outward_s + 0.1)
    return added(length, [(0.02, inward), (0.02 + inward_s + gap_s, outward * 0.6)])


def _air(chance: Generator, seconds: float, tract: Modes, rise: float) -> Sound:
    """Return air that streams: noise that swells for the share `rise` of its time."""
    count = samples_of(seconds)
    source = white(chance, count) * swell(count, seconds * rise, seconds * (1 - rise))
    return resonant(source * (1 + 0.15 * drift(chance, count, 30.0)), tract, 0.02)


def knock(chance: Generator) -> Sound:
    """Return two to four knocks of knuckles on a wooden door."""
    size = chance.uniform(0.85, 1.2)
    modes: Modes = [
        (115 * size, 22, 0.5), (205 * size, 24, 0.8), (340 * size, 28, 1.0), (520 * size, 36, 0.9),
        (790 * size, 50, 0.8), (1240 * size, 80, 0.7), (1900 * size, 140, 0.6), (3100, 300, 0.5),
    ]  # fmt: skip
    apart_s = chance.uniform(0.17, 0.26)
    pieces = []
    for number in range(int(chance.integers(2, 5))):
        at_s = 0.02 + number * apart_s * chance.uniform(0.95, 1.05)
        one = _blow(chance, 0.0015, _varied(chance, modes, 0.2))
        count = samples_of(0.012)
        tap = band(white(chance, count), 900, 5000) * envelope(count, (0, -6), (0.001, 0), (0.012, -40))
        one[:count] += tap * 0.35 * _peak(one) / _peak(tap)
        pieces.append((at_s, one * chance.uniform(0.75, 1.0)))
    sound = added(samples_of(0.3 + apart_s * len(pieces)), pieces)
    return in_room(sound, chance, 0.25, 0.03)


def door(chance: Generator) -> Sound:
    """Return a door that falls shut: the latch, the leaf against its frame, and a rattle."""
    size = chance.uniform(0.85, 1.15)
    leaf: Modes = [
        (62 * size, 9, 0.5), (94 * size, 10, 0.8), (147 * size, 12, 1.0), (238 * size, 16, 1.0), (410 * size, 26, 0.8),
        (700 * size, 45, 0.6), (1150 * size, 90, 0.5), (1900, 200, 0.4),
    ]  # fmt: skip
    metal: Modes = [(1850 * size, 45, 0.7), (2900 * size, 60, 1.0), (4300 * size, 90, 0.6), (5900, 150, 0.3)]
    shut_s = chance.uniform(0.06, 0.11)
    slam = _blow(chance, 0.003, _varied(chance, leaf, 0.15), 0.5)
    count = samples_of(0.15)
    air = band(white(chance, count), 120, 1800) * envelope(count, (0, -20), (0.006, 0), (0.12, -40), (0.15, -80))
    slam[:count] += air * 0.6 * _peak(slam) / _peak(air)
    latch = _blow(chance, 0.002, _varied(chance, metal, 0.15), 0.08)
    pieces = [(0.02, latch * 0.25 * _peak(slam) / _peak(latch)), (0.02 + shut_s, slam)]
    at_s = 0.02 + shut_s
    for level in (0.3, 0.16, 0.08):
        at_s += chance.uniform(0.025, 0.05)
        rattle = _blow(chance, 0.003, _varied(chance, metal, 0.2), 0.06)
        pieces.append((at_s, rattle * level * _peak(slam) / _peak(rattle)))
    return in_room(added(samples_of(0.7), pieces), chance, 0.4, 0.06)


def typing(chance: Generator, seconds: float = 2.0) -> Sound:
    """Return keys of a keyboard, in bursts as people type."""
    keys: list[tuple[float, Sound]] = []
    at_s = 0.02
    while at_s < seconds - 0.2:
        strength = 10 ** (chance.normal(0, 2.0) / 20)
        wide = chance.random() < 0.12  # the space bar is larger and lower
        keys.append((at_s, strength * _key(chance, 0.6 if wide else chance.uniform(0.9, 1.1))))
        pause = chance.random() < 0.1  # between words
        at_s += float(np.clip(chance.lognormal(np.log(0.13), 0.3), 0.07, 0.3)) + (chance.uniform(0.15, 0.3) * pause)
    return added(samples_of(seconds), keys)


def _key(chance: Generator, size: float) -> Sound:
    """Return a key: the finger touches it, it hits the bottom, and it comes back up."""
    plastic: Modes = [
        (190 * size, 90, 0.25), (430 * size, 120, 0.35), (1150 * size, 190, 0.6), (2300 * size, 280, 1.0),
        (3700 * size, 420, 1.0), (5400 * size, 700, 0.7),
    ]  # fmt: skip
    bottom_s, up_s = chance.uniform(0.008, 0.016), chance.uniform(0.06, 0.1)
    touch = _blow(chance, 0.001, _varied(chance, plastic[3:], 0.3), 0.03)
    bottom = _blow(chance, 0.001, _varied(chance, plastic, 0.3), 0.06)
    release = _blow(chance, 0.001, _varied(chance, plastic[2:], 0.3), 0.04)
    height = _peak(bottom)
    pieces = [
        (0.0, touch * 0.3 * height / _peak(touch)),
        (bottom_s, bottom),
        (up_s, release * chance.uniform(0.25, 0.5) * height / _peak(release)),
    ]
    return added(samples_of(up_s + 0.05), pieces)


def click(chance: Generator) -> Sound:
    """Return a button of a mouse: pressed and let go."""
    size = chance.uniform(0.9, 1.15)
    plastic: Modes = [(1450 * size, 220, 0.5), (2700 * size, 300, 1.0), (4100 * size, 420, 0.9), (6100, 800, 0.4)]
    down = _blow(chance, 0.001, _varied(chance, plastic, 0.2), 0.03)
    up = _blow(chance, 0.001, _varied(chance, [(f * 1.15, width, gain) for f, width, gain in plastic], 0.2), 0.03)
    apart_s = chance.uniform(0.07, 0.12)
    return added(samples_of(apart_s + 0.08), [(0.01, down), (0.01 + apart_s, up * 0.6 * _peak(down) / _peak(up))])


def _blow(chance: Generator, contact_s: float, modes: Modes, ring_s: float = 0.25) -> Sound:
    """Return a thing that is hit once: the shorter the contact, the brighter it rings."""
    count = max(4, samples_of(contact_s))
    push = np.sin(np.pi * (np.arange(count) + 0.5) / count) ** 2
    hit = push * (1 + 0.8 * white(chance, count))
    # Divided by its bandwidth, every mode begins with its gain, however long it rings.
    return resonant(hit, [(f, width, gain * 100 / width) for f, width, gain in modes], ring_s)


def _varied(chance: Generator, modes: Modes, share: float) -> Modes:
    """Return modes with other gains: no two blows hit the same place."""
    return [
        (f, width, gain * chance.uniform(1 - share, 1 + share) * chance.choice((-1, 1))) for f, width, gain in modes
    ]


def _rough_voice(chance: Generator, count: int, first_hz: float, last_hz: float, roughness: float) -> Sound:
    """Return pulses of a glottis with uneven periods and strengths; every second one is weaker, as in a creak."""
    result = np.zeros(count)
    place, number = 0.0, 0
    while place < count:
        weak = 1 - roughness * (number % 2)
        result[int(place)] = weak * (1 + 0.5 * roughness * chance.standard_normal())
        pitch = first_hz + (last_hz - first_hz) * place / count
        place += USER_RATE / pitch * float(np.clip(1 + 0.3 * roughness * chance.standard_normal(), 0.6, 1.6))
        number += 1
    pulse = np.exp(-times(samples_of(0.004)) / 0.0007)  # falls by about 6 dB an octave from 230 Hz on
    return np.convolve(result, pulse)[:count] - float(result.mean() * pulse.sum())


def _close(sound: Sound, chance: Generator) -> Sound:
    """Return a sound of a person near the microphone, in a room of cloth and books."""
    return band(in_room(sound, chance, 0.15, 0.01), 90, 7400, 0.3)


def _peak(sound: Sound) -> float:
    return float(np.abs(sound).max())


def _padded(sound: Sound, count: int) -> Sound:
    return np.pad(sound, (0, count - len(sound)))


NOISES: dict[str, tuple[str, Callable[[Generator], Sound]]] = {
    "cough": ("one to three coughs", cough),
    "throat": ("a throat is cleared", throat),
    "breath": ("a breath in and out, near the microphone", breath),
    "knock": ("two to four knocks on a door", knock),
    "door": ("a door falls shut", door),
    "typing": ("two seconds of a keyboard", typing),
    "click": ("a mouse button", click),
}
"""Name, what it is, and its generator."""
