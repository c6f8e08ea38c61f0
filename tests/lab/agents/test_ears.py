"""What is a turn to a planted agent, and what is not."""

from __future__ import annotations

import numpy as np
import pytest
from planted_call import voice_track

from voxlane_lab.agents.ears import Ears
from voxlane_lab.sounds.corpus import Corpus
from voxlane_lab.values import USER_RATE, USER_TICK, Pcm

SECOND: Pcm = np.zeros(USER_RATE, np.int16)


def is_ever_turn(*sounds: Pcm) -> bool:
    ears = Ears()
    track = np.concatenate([SECOND, *sounds])
    found = False
    for first in range(0, len(track), USER_TICK):
        ears.push(track[first : first + USER_TICK])
        found = found or ears.is_turn
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["cough", "throat", "breath", "knock", "door", "typing", "click", "dtmf:1234"])
def test_noises_are_no_turns(name: str, seed: int) -> None:
    assert not is_ever_turn(Corpus().sound(name, seed).pcm, SECOND)


def test_length_decides() -> None:
    assert not is_ever_turn(voice_track((0.0, 0.75), seconds=1.5))
    assert is_ever_turn(voice_track((0.0, 0.85), seconds=1.5))
    assert is_ever_turn(voice_track((0.0, 0.4), (0.6, 0.8), seconds=1.5))
    assert not is_ever_turn(voice_track((0.0, 0.4), (1.2, 1.6), seconds=2.5))  # two sounds


def test_noise_is_no_sound_and_hides_nothing() -> None:
    ears = Ears()
    ears.push(voice_track(seconds=4, noise_db=-40))
    assert ears.sounds == 0
    ears = Ears()
    ears.push(voice_track((2.0, 3.0), seconds=4, noise_db=-45))
    assert ears.is_turn
    assert ears.onset == pytest.approx(2.0 * USER_RATE, abs=0.1 * USER_RATE)
    assert ears.last == pytest.approx(3.0 * USER_RATE, abs=0.1 * USER_RATE)


def test_the_cut_of_the_sound_does_not_matter() -> None:
    track = np.concatenate([SECOND, voice_track((0.013, 0.913), seconds=1.5)])
    whole, cut = Ears(), Ears()
    whole.push(track)
    for first in range(0, len(track), 137):
        cut.push(track[first : first + 137])
    assert (whole.onset, whole.last, whole.heard) == (cut.onset, cut.last, cut.heard)
    assert whole.onset == pytest.approx(1.013 * USER_RATE, abs=160)
    assert whole.last == pytest.approx(1.913 * USER_RATE, abs=160)
