"""Voices are found in recordings of every kind, to 20 ms, and an echo is nobody's voice."""

from __future__ import annotations

import numpy as np
import pytest
from lab_calls import CALLS, LINES, LineQuality, RecordedCall, Utterance, wav_of

from voxlane.codecs.pcm import Floats
from voxlane.codecs.resample import resample
from voxlane.codecs.wav import decode_wav
from voxlane_lab.values import USER_RATE, Interval
from voxlane_lab.voicing import find_leak, voiced_parts

NEAR_S = 0.0201


def channels(call: RecordedCall, line: LineQuality) -> tuple[Floats, Floats]:
    samples, rate = decode_wav(wav_of(call, line), mono=False)
    return resample(samples[:, 0], rate, USER_RATE), resample(samples[:, 1], rate, USER_RATE)


def check(found: tuple[Interval, ...], spoken: tuple[Utterance, ...]) -> None:
    places = [(first / USER_RATE, end / USER_RATE) for first, end in found]
    assert len(places) == len(spoken), places
    for (first, end), utterance in zip(places, spoken, strict=True):
        assert first == pytest.approx(utterance.at_s, abs=NEAR_S)
        assert end == pytest.approx(utterance.until_s, abs=NEAR_S)


@pytest.mark.parametrize("line", LINES)
def test_both_voices_are_found(line: str) -> None:
    call = next(call for call in CALLS if len(call.person) == 3)
    person, agent = channels(call, LINES[line])
    check(voiced_parts(person, agent), call.person)
    check(voiced_parts(agent, person), call.agent)


@pytest.mark.parametrize(("level_db", "delay_ms"), [(-30.0, 0.0), (-24.0, 90.0), (-14.0, 250.0)])
def test_a_leak_is_measured(level_db: float, delay_ms: float) -> None:
    person, agent = channels(CALLS[0], LineQuality(crosstalk_db=level_db, crosstalk_delay_ms=delay_ms))
    leak = find_leak(agent, person)
    assert leak is not None
    assert 20 * np.log10(leak.gain) == pytest.approx(level_db, abs=1.0)
    assert leak.lag / USER_RATE * 1000 == pytest.approx(delay_ms, abs=0.1)


def test_separate_channels_have_no_leak() -> None:
    person, agent = channels(CALLS[0], LineQuality())
    assert find_leak(agent, person) is None
    assert find_leak(person, agent) is None


def test_an_echo_alone_is_no_person() -> None:
    alone = next(call for call in CALLS if not call.person)
    person, agent = channels(alone, LineQuality(crosstalk_db=-20.0, crosstalk_delay_ms=120.0))
    assert voiced_parts(person, np.zeros_like(agent)), "the echo is loud enough to be heard"
    assert voiced_parts(person, agent) == ()


def test_noise_alone_is_no_voice() -> None:
    generator = np.random.default_rng(1)
    noise, other = (generator.normal(0, 0.03, 5 * USER_RATE).astype(np.float32) for _ in range(2))
    assert voiced_parts(noise, other) == ()


def test_a_click_is_no_voice() -> None:
    track = np.zeros(2 * USER_RATE, np.float32)
    track[USER_RATE : USER_RATE + 200] = 0.5 * np.sin(np.arange(200))
    assert voiced_parts(track, np.zeros_like(track)) == ()


def test_noise_with_holes_of_silence_is_no_voice() -> None:
    """A line that loses packets plays silence where they were."""
    call = CALLS[0]
    person, agent = channels(call, LineQuality(noise_db=-50.0))
    for at in range(USER_RATE // 4, len(person), USER_RATE):
        person[at : at + 480] = 0.0
    check(voiced_parts(person, agent), call.person)
