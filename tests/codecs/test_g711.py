"""G.711 against its definition: levels by formula, codes by the decision values between them, and audioop."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from voxlane.codecs.errors import InvalidAudio
from voxlane.codecs.g711 import decode_alaw, decode_mulaw, encode_alaw, encode_mulaw

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import audioop
except ImportError:
    audioop = None  # type: ignore[assignment]

WORDS = np.arange(-32768, 32768)
CODES = bytes(range(256))
LAWS = {"mulaw": (encode_mulaw, decode_mulaw), "alaw": (encode_alaw, decode_alaw)}


def levels(decode: Callable[[bytes], Any]) -> np.ndarray:
    return (decode(CODES) * 32768).astype(int)


def positive_levels(law: str) -> list[int]:
    """Return the 128 magnitudes in order, segment by segment, at 16 bits, as G.711's tables 1 and 2 list them."""
    if law == "mulaw":
        return [((33 + 2 * step) * 2**segment - 33) * 4 for segment in range(8) for step in range(16)]
    first = [(2 * step + 1) * 8 for step in range(16)]
    return first + [(33 + 2 * step) * 2 ** (segment - 1) * 8 for segment in range(1, 8) for step in range(16)]


def positive_codes(law: str) -> list[int]:
    """Return the line codes of the positive magnitudes in order."""
    return [0xFF - index for index in range(128)] if law == "mulaw" else [(0x80 | index) ^ 0x55 for index in range(128)]


@pytest.mark.parametrize("law", LAWS)
def test_levels_follow_the_standard(law: str) -> None:
    decoded = levels(LAWS[law][1])
    for code, level in zip(positive_codes(law), positive_levels(law), strict=True):
        assert decoded[code] == level
        assert decoded[code ^ 0x80] == -level


@pytest.mark.parametrize("law", LAWS)
def test_codes_follow_the_decision_values(law: str) -> None:
    """A magnitude gets the code of the interval it lies in; intervals meet half way between two levels."""
    ladder = np.array(positive_levels(law))
    decisions = (ladder[1:] + ladder[:-1]) // 2
    # Between segments the steps differ: a segment ends half of its own step above its last level.
    for segment in range(1, 8):
        last = 16 * segment - 1
        decisions[last] = ladder[last] + (ladder[last] - ladder[last - 1]) // 2
    magnitude = np.where(WORDS < 0, -WORDS - 1, WORDS)
    index = np.searchsorted(decisions, magnitude, side="right")
    expected = np.array(positive_codes(law))[index] ^ np.where(WORDS < 0, 0x80, 0)
    coded = np.frombuffer(LAWS[law][0](WORDS / 32768), dtype=np.uint8)
    assert (coded == expected).all()


@pytest.mark.parametrize("law", LAWS)
def test_codes_come_back(law: str) -> None:
    encode, decode = LAWS[law]
    back = encode(decode(CODES))
    changed = [code for code in range(256) if back[code] != code]
    assert changed == ([0x7F] if law == "mulaw" else [])  # μ-law has a negative zero; zero is sent as a positive one


@pytest.mark.parametrize("law", LAWS)
def test_noise_is_that_of_the_standard(law: str) -> None:
    """A full-scale sine keeps 37 dB or more against quantising noise, a faint one 26 dB."""
    encode, decode = LAWS[law]
    sine = np.sin(np.arange(8000) * 0.7071)
    for level, least in ((0.7, 37), (0.01, 26)):
        error = decode(encode(level * sine)) - level * sine
        assert 20 * np.log10(level * np.std(sine) / np.std(error)) > least


@pytest.mark.skipif(audioop is None, reason="audioop left Python with 3.13")
def test_audioop_agrees() -> None:
    words = WORDS.astype("<i2").tobytes()
    assert encode_alaw(WORDS / 32768) == audioop.lin2alaw(words, 2)
    assert (levels(decode_alaw) == np.frombuffer(audioop.alaw2lin(CODES, 2), "<i2")).all()
    assert (levels(decode_mulaw) == np.frombuffer(audioop.ulaw2lin(CODES, 2), "<i2")).all()
    ours = np.frombuffer(encode_mulaw(WORDS / 32768), dtype=np.uint8)
    theirs = np.frombuffer(audioop.lin2ulaw(words, 2), dtype=np.uint8)
    assert (ours == theirs)[WORDS >= 0].all()
    # Below zero audioop rounds away before it decides: four words at each of the 127 decision values.
    different = WORDS[ours != theirs]
    assert len(different) == 4 * 127
    assert np.abs(ours.astype(int) - theirs).max() == 1


@pytest.mark.parametrize("law", LAWS)
def test_non_finite_samples_are_refused(law: str) -> None:
    with pytest.raises(InvalidAudio, match="not finite"):
        LAWS[law][0]([np.nan])
