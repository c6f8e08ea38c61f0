"""The tones of telephone keys: each key is the sum of two sines, one for its row and one for its column. Pure."""

from __future__ import annotations

import numpy as np

from voxlane_lab.sounds.shaping import Sound, samples_of, times

ROWS, COLUMNS = (697, 770, 852, 941), (1209, 1336, 1477, 1633)
KEYS = "123A456B789C*0#D"
PAUSE = ","
TONE_S, GAP_S, PAUSE_S = 0.12, 0.08, 0.5


def key_tones(keys: str) -> Sound:
    """Return the tones of keys, each with the silence behind it; a comma is a pause of half a second."""
    return np.concatenate([_tone(key) for key in keys])


def _tone(key: str) -> Sound:
    if key == PAUSE:
        return np.zeros(samples_of(PAUSE_S))
    place, time = KEYS.index(key), times(samples_of(TONE_S))
    wave = np.sin(2 * np.pi * ROWS[place // 4] * time) + np.sin(2 * np.pi * COLUMNS[place % 4] * time)
    edge = np.minimum(1.0, np.minimum(time, time[::-1]) / 0.005)  # no clicks
    return np.concatenate([0.25 * wave * edge, np.zeros(samples_of(GAP_S))])
