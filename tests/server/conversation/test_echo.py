"""The assistant's own voice is taken out of the microphone's sound, and nothing else is."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle

import numpy as np
import pytest
from examples import examples, sweep
from hypothesis import given, settings
from hypothesis import strategies as st

from voxlane.codecs.echo_filter import BLOCK
from voxlane.server.conversation.hearing.ear import Confirmed, Ear, Onset
from voxlane.server.conversation.hearing.echo import RATE, EchoCanceller

STEP = 320
CHANCE = np.random.default_rng(5)
BURSTS = (CHANCE.normal(0, 0.1, 3 * RATE) * (np.arange(3 * RATE) // 2400 % 3 > 0)).astype(np.float32)
"""Noise in bursts, as fast as syllables."""


def pcm(sound: np.ndarray) -> bytes:
    return np.rint(np.clip(sound, -1, 0.9999) * 32768).astype("<i2").tobytes()


def delayed(sound: np.ndarray, samples: int, gain: float) -> np.ndarray:
    return np.float32(gain) * np.concatenate([np.zeros(samples, np.float32), sound])[: len(sound)]


def background(samples: int) -> np.ndarray:
    return np.random.default_rng(1).normal(0, 10 ** (-75 / 20), samples).astype(np.float32)


def cleaned(heard: bytes, played: np.ndarray, sizes: Iterator[int]) -> bytes:
    canceller, at, out = EchoCanceller(), 0, b""
    while at < len(played):
        size = next(sizes)
        out += canceller.hear(heard[2 * at : 2 * (at + size)], played[at : at + size])
        at += size
    return out


@settings(max_examples=examples(8), deadline=None)
@given(sizes=st.lists(st.integers(1, 5_000), min_size=1, max_size=6))
def test_any_cut_of_the_two_sounds_gives_the_same(sizes) -> None:
    heard = pcm(delayed(BURSTS, 1_000, 0.2) + background(len(BURSTS)))
    whole = cleaned(heard, BURSTS, cycle([len(BURSTS)]))
    cut = cleaned(heard, BURSTS, cycle(sizes))
    assert cut == whole[: len(cut)]
    assert len(whole) - len(cut) < 2 * BLOCK
    assert whole != heard


@settings(max_examples=examples(20), deadline=None)
@given(pieces=st.lists(st.binary(max_size=2_000).map(lambda data: data[: len(data) // 2 * 2]), max_size=10))
def test_sound_passes_unchanged_and_at_once_while_nothing_was_played(pieces) -> None:
    canceller = EchoCanceller()
    for piece in pieces:
        assert canceller.hear(piece, None) == piece


def test_with_headphones_sound_passes_unchanged_and_at_once() -> None:
    """At once after the first second of playback: until then any voice might be an echo."""
    person = np.roll(BURSTS[::-1], 700)
    person[: 3 * RATE // 2] = 0
    canceller, sound, heard = EchoCanceller(), pcm(person + background(len(person))), b""
    for at in range(0, len(BURSTS), 500):
        piece = sound[2 * at : 2 * at + 1000]
        out = canceller.hear(piece, BURSTS[at : at + 500])
        assert at < 5 * RATE // 4 or out == piece
        heard += out
    assert heard == sound
    assert not canceller.found


@pytest.mark.parametrize("delay_s", sweep([0.6, 0.02, 0.25]))
def test_an_ear_hears_no_echo_before_it_is_found(said, delay_s) -> None:
    """The first second of a conversation: nothing is known of the echo, nor of the person."""
    played = np.concatenate([said(REPLY, -20), np.zeros(RATE, np.float32)])
    heard = delayed(played, round(delay_s * RATE), 0.18) + background(len(played))
    canceller, ear = EchoCanceller(), Ear()
    ear.guarded = True
    onsets = [
        event
        for at in range(0, len(played) - STEP, STEP)
        for event in ear.feed(canceller.hear(pcm(heard[at : at + STEP]), played[at : at + STEP]))
        if isinstance(event, Onset)
    ]
    assert canceller.found
    assert not onsets


def test_sound_passes_unchanged_again_when_the_echo_has_faded() -> None:
    canceller = EchoCanceller()
    canceller.hear(pcm(delayed(BURSTS, 1_000, 0.2)), BURSTS)
    assert canceller.found
    canceller.hear(pcm(background(2 * RATE)), None)
    for size in (100, 333, 320, 7):
        piece = pcm(BURSTS[:size])
        assert canceller.hear(piece, None) == piece


def test_nothing_comes_out_if_nothing_comes_in() -> None:
    canceller = EchoCanceller()
    assert canceller.hear(b"", None) == b""
    canceller.hear(pcm(delayed(BURSTS, 1_000, 0.2)), BURSTS)
    assert canceller.hear(b"", np.zeros(0, np.float32)) == b""


REPLY = (
    "The train to the coast leaves from platform four, stops at every small station on the way, and arrives a quarter"
    " of an hour after the last ferry has gone."
)


@pytest.mark.parametrize("delay_s", sweep([0.6, 0.02, 0.25]))
def test_an_ear_hears_no_echo_that_was_found_and_every_person(said, delay_s) -> None:
    played = np.concatenate([said(REPLY, -20)] * 2)
    echo = delayed(played, round(delay_s * RATE), 10 ** (-10 / 20)) + background(len(played))
    at = len(played) * 3 // 4 // BLOCK * BLOCK
    question = said("Wait, which platform was that?", -26)
    both = echo.copy()
    both[at : at + len(question)] += question[: len(both) - at]

    def events(sound: np.ndarray, canceller: EchoCanceller | None) -> list[tuple[type, int]]:
        ear, found = Ear(), []
        ear.guarded = True
        for start in range(0, len(sound) // BLOCK * BLOCK, BLOCK):
            piece = pcm(sound[start : start + BLOCK])
            if canceller is not None:
                piece = canceller.hear(piece, played[start : start + BLOCK])
            found += [(type(event), event.heard) for event in ear.feed(piece)]
            if ear.silence(ear.heard) > RATE // 4:
                ear.rest()
        return [(kind, heard) for kind, heard in found if heard > round((delay_s + 1.0) * RATE)]

    assert Confirmed in {kind for kind, _ in events(echo, None)}, "without the guard the echo is a voice"
    assert not events(echo, EchoCanceller())
    onsets = [heard for kind, heard in events(both, EchoCanceller()) if kind is Onset]
    assert onsets
    assert at < onsets[0] < at + RATE // 4
