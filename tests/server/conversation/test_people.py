"""Portraits, strangers, and when the person is told to speak up."""

from __future__ import annotations

import numpy as np
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from voxlane.server.conversation.hearing.audibility import Audibility
from voxlane.server.conversation.hearing.portrait import Portrait, spectrum
from voxlane.server.conversation.hearing.stranger import Stance, Stranger

RATE = 16_000


def coloured(slope: float, level: float, seed: int = 0, samples: int = RATE) -> bytes:
    """Return noise whose spectrum falls by `slope` dB from 100 to 5,000 Hz."""
    power = np.fft.rfft(np.random.default_rng(seed).standard_normal(samples))
    octaves = np.log2(np.maximum(np.fft.rfftfreq(samples, 1 / RATE), 50) / 100) / np.log2(50)
    sound = np.fft.irfft(power * 10 ** (-slope * octaves / 20))
    sound *= 10 ** (level / 20) / np.sqrt(np.mean(sound**2))
    return np.rint(sound * 32767).clip(-32768, 32767).astype("<i2").tobytes()


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(0, 20), st.floats(-45, -25), st.floats(-45, -25))
def test_a_portrait_does_not_depend_on_loudness_and_tells_spectra_apart(seed: int, one: float, other: float) -> None:
    portrait = Portrait()
    assert portrait.distance(coloured(30, one)) == 0
    for number in range(Portrait.LEAST):
        assert not portrait.ready
        portrait.learn(coloured(30, one, seed + 100 + number))
    assert portrait.ready
    assert portrait.distance(coloured(30, other, seed)) < 2
    assert portrait.distance(coloured(10, other, seed)) > 4


def test_a_spectrum_is_that_of_the_loud_part() -> None:
    loud, soft = coloured(30, -25, samples=512 * 16), coloured(0, -50, samples=512 * 16)
    assert np.allclose(spectrum(loud + soft), spectrum(loud))
    assert len(spectrum(bytes(2 * 512))) == len(spectrum(loud))


FRAME = 160
TENTH = RATE // 10


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 60)), max_size=20))
def test_a_stranger_is_heard_only_after_enough_speech_and_a_wait(plan: list[tuple[bool, int]]) -> None:
    stranger = Stranger(0, FRAME, -40.0, least=5 * TENTH, most=70 * TENTH, wait=7 * TENTH)
    at, last = FRAME, FRAME
    for speaks, frames in plan:
        for _ in range(frames):
            at += FRAME
            stance = stranger.feed(-42.0 if speaks else -70.0, -68.0, at)
            last = at if speaks else last
            assert stranger.last == last
            if stance is not Stance.SPEAKS:
                long_enough, too_long = last >= 5 * TENTH, last > 70 * TENTH
                assert too_long or at - last == 7 * TENTH
                assert stance is (Stance.WAITS if long_enough and not too_long else Stance.NOTHING)
                return
            assert at - last < 7 * TENTH


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.floats(0, 40), max_size=30))
def test_a_faint_person_is_told_once_and_only_after_three_misses_within_half_a_minute(gaps: list[float]) -> None:
    audibility, times, told = Audibility(), list[float](), 0
    for gap in gaps:
        times.append((times[-1] if times else 0.0) + gap)
        tells = audibility.miss(times[-1])
        often = len(times) >= 3 and times[-1] - times[-3] <= Audibility.WITHIN_S
        assert tells is (often and not told)
        told += tells
    assert told <= 1
