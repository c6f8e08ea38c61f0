"""The delay of an echo is found where there is one, and none where there is none."""

from __future__ import annotations

import numpy as np
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from voxlane.codecs.echo_delay import LONGEST, WINDOW, DelayFinder


def noise(seed: int, level: float = 0.1) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, level, LONGEST + 2 * WINDOW).astype(np.float32)


def looks(heard: np.ndarray, played: np.ndarray) -> list[int | None]:
    finder = DelayFinder()
    ends = range(LONGEST + WINDOW, len(played) + 1, WINDOW // 4)
    return [finder.find(heard[end - WINDOW : end], played[end - WINDOW - LONGEST : end]) for end in ends]


@settings(max_examples=examples(10), deadline=None)
@given(delay=st.integers(0, LONGEST - 1), db=st.integers(-30, 0), inverted=st.booleans(), seed=st.integers(0, 99))
def test_the_delay_of_an_echo_is_found_by_the_second_look(delay, db, inverted, seed) -> None:
    played = noise(seed)
    gain = (-1 if inverted else 1) * 10 ** (db / 20)
    heard = np.float32(gain) * np.concatenate([np.zeros(delay, np.float32), played])[: len(played)]
    first, *later = looks(heard + noise(1000 + seed, 0.001), played)
    assert first is None  # one look may be chance
    assert all(found is not None and abs(found - delay) <= 2 for found in later)


@settings(max_examples=examples(10), deadline=None)
@given(seed=st.integers(0, 10_000))
def test_a_sound_that_was_not_played_has_no_delay(seed) -> None:
    assert set(looks(noise(seed + 20_000), noise(seed))) == {None}


def test_a_delay_that_was_forgotten_is_found_anew() -> None:
    played, finder = noise(1), DelayFinder()
    heard = np.concatenate([np.zeros(500, np.float32), played])[: len(played)]
    window = heard[-WINDOW:], played[-WINDOW - LONGEST :]
    assert [finder.find(*window), finder.find(*window)] == [None, 500]
    finder.forget()
    assert [finder.find(*window), finder.find(*window)] == [None, 500]
