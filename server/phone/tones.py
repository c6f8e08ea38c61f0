"""The tones of telephone keys: each key is the sum of two sines, one for its row and one for its column. Pure."""

from __future__ import annotations

import numpy as np

_ROWS = (697, 770, 852, 941)
_COLUMNS = (1209, 1336, 1477, 1633)
_KEYS = ("123A", "456B", "789C", "*0#D")
_PAIRS = {key: (_ROWS[row], _COLUMNS[column]) for row, keys in enumerate(_KEYS) for column, key in enumerate(keys)}

KEYS = frozenset(_PAIRS)
"""The keys of a telephone, with the four letters that only networks use."""

TONE_S = 0.12
"""The length of a tone: networks ask for 40 ms at least, old machines for 100."""

GAP_S = 0.08
"""Silence between two tones."""

_LEVEL = 0.25  # of full scale, for each of the two sines
_PAUSE = ","  # in a number to send: wait half a second
_PAUSE_S = 0.5


def key_tones(keys: str, rate: int) -> bytes:
    """Return the tones of keys, as 16-bit samples; a comma is a pause of half a second."""
    return b"".join(_tone(key, rate) for key in keys)


def _tone(key: str, rate: int) -> bytes:
    if key == _PAUSE:
        return bytes(2 * round(_PAUSE_S * rate))
    low, high = _PAIRS[key]
    time = np.arange(round(TONE_S * rate)) / rate
    wave = _LEVEL * (np.sin(2 * np.pi * low * time) + np.sin(2 * np.pi * high * time))
    edge = np.minimum(1.0, np.minimum(time, time[::-1]) / 0.005)  # no clicks
    sound = np.concatenate([wave * edge, np.zeros(round(GAP_S * rate))])
    return np.round(sound * 32767).astype("<i2").tobytes()
