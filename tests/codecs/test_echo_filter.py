"""The filter subtracts what is played, and little else."""

from __future__ import annotations

import numpy as np
import pytest

from voxlane.codecs.echo_filter import BLOCK, EchoFilter

CHANCE = np.random.default_rng(7)
PLAYED = CHANCE.normal(0, 0.1, 200 * BLOCK).astype(np.float32)
PERSON = CHANCE.normal(0, 0.02, 200 * BLOCK).astype(np.float32)


def echo(gain: float, length: int = 1600) -> np.ndarray:
    """Return what a room makes of PLAYED."""
    response = np.random.default_rng(3).normal(0, 1, length) * np.exp(-np.arange(length) / 300)
    response *= gain / np.sqrt((response**2).sum())
    return np.convolve(PLAYED, response)[: len(PLAYED)].astype(np.float32)


def left(heard: np.ndarray, played: np.ndarray = PLAYED, *, learns: bool = True) -> np.ndarray:
    kept = EchoFilter()
    blocks = range(0, len(heard), BLOCK)
    return np.concatenate(
        [kept.step(played[at : at + BLOCK], heard[at : at + BLOCK], learns=learns)[0] for at in blocks]
    )


def db(sound: np.ndarray) -> float:
    return 10 * np.log10(float((sound**2).mean()) + 1e-12)


@pytest.mark.parametrize("gain", [0.03, 0.25, 1.0])
def test_an_echo_is_subtracted(gain) -> None:
    heard = echo(gain)
    half = len(heard) // 2
    assert db(left(heard)[half:]) < db(heard[half:]) - 20


def test_a_person_stays() -> None:
    heard = echo(0.25) + PERSON
    half = len(heard) // 2
    assert db((left(heard) - PERSON)[half:]) < db(PERSON) - 6


def test_a_person_alone_is_not_touched() -> None:
    assert np.array_equal(left(PERSON, np.zeros_like(PERSON)), PERSON)


def test_a_filter_that_does_not_learn_subtracts_nothing() -> None:
    heard = echo(0.25)
    assert np.array_equal(left(heard, learns=False), heard)


@pytest.mark.parametrize("change", [0.18, 3.0])
def test_a_change_of_loudness_is_followed_within_a_few_blocks(change) -> None:
    heard, half = echo(0.25), len(PLAYED) // 2
    heard[half:] *= change
    soon = slice(half + 6 * BLOCK, half + 20 * BLOCK)
    assert db(left(heard)[soon]) < db(heard[soon]) - 8


def test_a_path_that_changes_is_learnt_again() -> None:
    heard, half = echo(0.25), len(PLAYED) // 2
    heard[half:] = np.roll(heard, 40)[half:]
    last = slice(-30 * BLOCK, None)
    assert db(left(heard)[last]) < db(heard[last]) - 6
