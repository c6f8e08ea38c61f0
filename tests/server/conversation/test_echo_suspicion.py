"""What may be an echo while its delay is not known."""

from __future__ import annotations

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from voxlane.codecs.echo_filter import BLOCK
from voxlane.server.conversation.hearing.echo_suspicion import EchoSuspicion

RATE = 16_000
SECONDS = 4


def syllables(seed: int) -> np.ndarray:
    """Return noise in bursts of 60 to 300 ms with pauses between them."""
    chance, parts = np.random.default_rng(seed), []
    while sum(map(len, parts)) < SECONDS * RATE:
        loud, pause = chance.integers(960, 4_800), chance.integers(960, 3_200)
        parts += [chance.normal(0, 0.1, loud), np.zeros(pause)]
    return np.concatenate(parts)[: SECONDS * RATE].astype(np.float32)


def blocks(*sounds: np.ndarray) -> zip:
    return zip(*(sound.reshape(-1, BLOCK) for sound in sounds), strict=True)


def echo(sound: np.ndarray, delay: int, db: float) -> np.ndarray:
    late = np.concatenate([np.zeros(delay, np.float32), sound])[: len(sound)]
    noise = np.random.default_rng(1).normal(0, 10 ** (-70 / 20), len(sound))
    return (late * 10 ** (db / 20) + noise).astype(np.float32)


def loud(block: np.ndarray) -> bool:
    return float((block**2).mean()) > 1e-6


def suspected(suspicion: EchoSuspicion, heard: np.ndarray, played: np.ndarray, after_s: float = 0.0) -> float:
    """Return the share of the loud blocks after `after_s` that may be an echo."""
    told = [(loud(block), suspicion.explains(block, now)) for block, now in blocks(heard, played)]
    found = [explained for is_loud, explained in told[round(after_s * RATE) // BLOCK :] if is_loud]
    assert len(found) > 20
    return sum(found) / len(found)


@settings(max_examples=examples(20), deadline=None)
@given(st.integers(0, 12_000), st.sampled_from([-10.0, -15.0, -25.0, -35.0]), st.integers(0, 1000))
def test_an_echo_is_suspect_from_its_first_sound_on(delay: int, db: float, seed: int) -> None:
    played = syllables(seed)
    assert suspected(EchoSuspicion(), echo(played, delay, db), played) >= 0.97


def test_a_person_is_not_suspect_after_a_silent_second() -> None:
    played, person, suspicion = syllables(1), syllables(2), EchoSuspicion()
    quiet = np.random.default_rng(3).normal(0, 10 ** (-70 / 20), len(played)).astype(np.float32)
    for heard, now in list(blocks(quiet, played))[: 3 * RATE // 2 // BLOCK]:
        suspicion.explains(heard, now)
    assert not suspicion.expects
    assert suspected(suspicion, person * np.float32(0.2) + quiet, syllables(3)) == 0.0


@pytest.mark.parametrize("person_db", [0.0, -10.0])
def test_a_person_who_talks_from_the_beginning_is_soon_not_suspect(person_db: float) -> None:
    heard = syllables(2) * np.float32(10 ** (person_db / 20))
    assert suspected(EchoSuspicion(), heard, syllables(1), after_s=2.5) < 0.1


def test_a_new_delay_is_suspect_where_the_old_one_is_forgotten_and_a_louder_voice_is_not() -> None:
    suspicion = EchoSuspicion()
    for number, delay in enumerate((3_200, 8_000)):
        played = syllables(number)
        played[-3 * RATE // 2 :] = 0  # its last echo is heard before the next begins
        assert suspected(suspicion, echo(played, delay, -20), played) >= 0.9
        suspicion.forget_delay()
    assert suspected(suspicion, syllables(5), syllables(4)) < 0.1


def test_no_other_delay_is_suspect_once_it_is_known() -> None:
    played = syllables(6)
    same, other = EchoSuspicion(), EchoSuspicion()
    for one in (same, other):
        one.settle(3_200)
    assert suspected(same, echo(played, 3_200, -15), played) >= 0.97
    assert suspected(other, echo(played, 9_600, -15), played, after_s=1.0) < 0.5
