"""Where the ear hears a voice: real speech and real detectors, sounds that are none, and any chunking."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import cycle

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from voxlane.codecs.resample import resample
from voxlane.codecs.voicing import FRAME_SAMPLES, RATE, Voicing
from voxlane.engine.models.hibari.model import Hibari
from voxlane.server.conversation.ear import Confirmed, Dropped, Ear, EarEvent, EarPolicy, Hearing, Onset, Silent, Voiced

Floats = NDArray[np.float64]

LEAD = RATE  # samples of background before a sound


def noise(samples: int, level: float, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(samples) * 10 ** (level / 20)


def loud(sound: Floats, level: float) -> Floats:
    """Return a sound whose loud parts have this level, in dB of full scale."""
    power = np.square(sound)
    return sound * 10 ** (level / 20) / np.sqrt(np.mean(power[power > power.max() * 1e-3]))


def stream(*sounds: Floats, background: float = -75.0) -> bytes:
    joined = np.concatenate(sounds)
    return np.clip(np.rint((joined + noise(len(joined), background)) * 32767), -32768, 32767).astype("<i2").tobytes()


def quiet(seconds: float) -> Floats:
    return np.zeros(round(seconds * RATE))


@pytest.fixture(scope="module")
def say() -> Callable[[str], Floats]:
    voice = Hibari()

    def said(text: str) -> Floats:
        speech = voice.synthesise(voice.prepare(text))
        samples = np.asarray(resample(speech.samples, voice.sample_rate, RATE), np.float64)
        audible = np.flatnonzero(np.abs(samples) > 0.05 * np.abs(samples).max())
        return samples[audible[0] : audible[-1]]

    return said


def only(events: Iterable[EarEvent], kind: type[EarEvent]) -> list[EarEvent]:
    return [event for event in events if isinstance(event, kind)]


def ms(samples: int) -> float:
    return samples * 1000 / RATE


@pytest.mark.parametrize(("level", "background"), [(-20, -75), (-38, -75), (-25, -45)])
@pytest.mark.parametrize("text", ["Actually, I have another question.", "No!", "Wait a moment."])
def test_speech_is_heard_early_and_confirmed(
    say: Callable[[str], Floats], text: str, level: float, background: float
) -> None:
    speech = loud(say(text), level)
    ear = Ear()
    events = ear.feed(stream(quiet(1), speech, quiet(1), background=background))
    onset, confirmed, *_, silent = events
    assert isinstance(onset, Onset)
    assert isinstance(confirmed, Confirmed)
    assert isinstance(silent, Silent)
    assert onset.at == confirmed.at
    assert abs(ms(onset.at - LEAD)) <= 60
    assert ms(onset.heard - LEAD) <= 80
    assert ms(confirmed.heard - LEAD) <= 400
    assert -100 <= ms(silent.since - LEAD - len(speech)) <= 150
    assert ear.hearing is Hearing.PAUSED
    assert ear.silence(silent.since + 1000) == 1000
    assert ear.silence(silent.since - 1) == 0


def test_a_pause_inside_speech_is_no_end(say: Callable[[str], Floats]) -> None:
    first, second = loud(say("I would like to know"), -25), loud(say("when the next train leaves."), -25)
    ear = Ear()
    before = ear.feed(stream(quiet(1), first, quiet(0.8)))
    voiced, pause = ear.voiced_for, ear.silence(ear.heard)
    assert [type(event) for event in before][:2] == [Onset, Confirmed]
    assert 0.6 * RATE < pause < RATE
    assert ms(abs(voiced - len(first))) < 200
    after = ear.feed(stream(second))
    assert not only(after, Onset)
    (voiced_again, *_) = only(after, Voiced)
    assert isinstance(voiced_again, Voiced)
    assert abs(ms(voiced_again.at - LEAD - len(first)) - 800) <= 120
    ear.feed(stream(quiet(1)))
    assert ms(abs(ear.voiced_for - len(first) - len(second))) < 400


def test_after_rest_a_voice_is_an_onset_again(say: Callable[[str], Floats]) -> None:
    speech = loud(say("This sentence goes on and on and on."), -25)
    half = len(speech) // 2
    ear = Ear()
    ear.feed(stream(quiet(1), speech[:half]))
    assert ear.hearing is Hearing.VOICED
    ear.rest()
    assert (ear.hearing, ear.voiced_for, ear.silence(ear.heard)) == (Hearing.QUIET, 0, 0)
    onset, confirmed = ear.feed(stream(speech[half:]))[:2]
    assert isinstance(onset, Onset)
    assert isinstance(confirmed, Confirmed)
    assert onset.at > LEAD + half - 160


def click() -> Floats:
    sound = quiet(0.01)
    sound[:40] = noise(40, 0)
    return sound


def knock() -> Floats:
    time = np.arange(RATE // 5) / RATE
    return np.sin(2 * np.pi * 150 * time) * np.exp(-time / 0.02)


def cough() -> Floats:
    time = np.arange(RATE // 3) / RATE
    rough = np.convolve(noise(len(time), 0), np.ones(4) / 4, "same")
    return rough * np.exp(-time / 0.07)


def breath() -> Floats:
    return noise(RATE, 0) * np.sin(np.linspace(0, np.pi, RATE)) ** 2


NO_SPEECH: dict[str, Callable[[], Floats]] = {
    "click": click,
    "three clicks": lambda: np.concatenate([click(), quiet(0.2)] * 3),
    "knock": knock,
    "three knocks": lambda: np.concatenate([knock(), quiet(0.1)] * 3),
    "cough": cough,
    "breath": breath,
    "white noise": lambda: noise(3 * RATE, 0),
    "hum": lambda: np.sin(2 * np.pi * 50 * np.arange(4 * RATE) / RATE),
}


@pytest.mark.parametrize("level", [-20, -40])
@pytest.mark.parametrize("sound", NO_SPEECH.values(), ids=NO_SPEECH.keys())
def test_what_is_no_speech_is_never_confirmed_and_soon_dropped(sound: Callable[[], Floats], level: float) -> None:
    ear = Ear()
    events = ear.feed(stream(quiet(1), loud(sound(), level), quiet(1)))
    assert ear.hearing is Hearing.QUIET
    onsets, dropped = only(events, Onset), only(events, Dropped)
    assert len(events) == len(onsets) + len(dropped) <= 2
    for onset, drop in zip(onsets, dropped, strict=True):
        assert isinstance(onset, Onset)
        assert isinstance(drop, Dropped)
        assert onset.at == drop.at
        assert drop.heard - onset.at <= EarPolicy().doubt_s * RATE + FRAME_SAMPLES


def test_a_noise_that_goes_on_is_asked_about_once_and_costs_no_more() -> None:
    heard_by_silero = [0]

    class Counting(Voicing):
        def __call__(self, samples: NDArray[np.float32]) -> list[float]:
            heard_by_silero[-1] += 1
            return super().__call__(samples)

    ear = Ear(detector=Counting)
    hum = 0.1 * np.sign(np.sin(2 * np.pi * 120 * np.arange(RATE) / RATE))
    onsets = 0
    for _ in range(12):
        onsets += len(only(ear.feed(stream(hum)), Onset))
        heard_by_silero.append(0)
    assert onsets <= 1
    assert sum(heard_by_silero[6:]) == 0


def test_speech_is_heard_in_a_noise_that_was_dropped(say: Callable[[str], Floats]) -> None:
    wind = loud(noise(4 * RATE, 0), -35)
    speech = loud(say("Can you hear me now?"), -22)
    mixed = wind.copy()
    mixed[2 * RATE : 2 * RATE + len(speech)] += speech
    events = Ear().feed(stream(quiet(3), mixed))
    (confirmed,) = only(events, Confirmed)
    assert isinstance(confirmed, Confirmed)
    assert abs(confirmed.at - 5 * RATE) <= 0.3 * RATE  # the pre-roll


def test_the_assistants_own_voice_does_not_pass_a_guarded_ear(say: Callable[[str], Floats]) -> None:
    person, leak = say("Tell me something about trains."), loud(say("Trains are long and run on rails."), -48)
    for guarded in (False, True):
        ear = Ear()
        ear.feed(stream(quiet(1), loud(person, -22), quiet(1)))
        ear.rest()
        ear.guarded = guarded
        assert bool(ear.feed(stream(leak, quiet(0.5)))) is not guarded
        ear.rest()
        assert only(ear.feed(stream(quiet(0.5), loud(person, -24), quiet(0.5))), Confirmed)


def test_the_last_sound_is_kept() -> None:
    ear = Ear()
    data = stream(noise(10 * RATE, -60))
    for start in range(0, len(data), 999):
        ear.feed(data[start : start + 999])
        heard = min(len(data), start + 999) // 2
        assert ear.heard == heard
        for back in (0, 1, 4800, RATE):
            first = max(0, heard - back)
            assert ear.since(first) == data[2 * first : 2 * heard]
    assert ear.since(0) == data[-len(ear.since(0)) :]
    assert RATE <= len(ear.since(0)) // 2 <= 5 * RATE
    assert ear.since(ear.heard + 5) == b""


# ---- laws


@pytest.fixture(scope="module")
def medley(say: Callable[[str], Floats]) -> bytes:
    speech = loud(say("Well, stop. What is this?"), -25)
    return stream(quiet(0.5), loud(cough(), -25), quiet(0.4), speech, quiet(0.5), loud(knock(), -20), quiet(0.3))


@settings(max_examples=examples(12), deadline=None)
@given(st.lists(st.integers(1, 9000), min_size=1, max_size=8))
def test_chunking_changes_nothing(medley: bytes, sizes: list[int]) -> None:
    whole = Ear().feed(medley)
    assert {Onset, Confirmed, Silent} <= {type(event) for event in whole}
    ear, events, start = Ear(), list[EarEvent](), 0
    for size in cycle(sizes):
        events += ear.feed(medley[start : start + size])
        start += size
        if start >= len(medley):
            break
    assert events == whole


ORDER = re.compile(r"(O(D|C(SV)*S?R))*(O(C(SV)*S?)?)?")


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.floats(0, 1), st.integers(1, 40), st.integers(0, 9)), max_size=30))
def test_events_come_in_order_whatever_the_detectors_say(plan: list[tuple[bool, float, int, int]]) -> None:
    said = {"gate": False, "speech": 0.0}
    ear = Ear(
        gate=lambda: lambda frame: bool(said["gate"]),
        detector=lambda: lambda samples: [float(said["speech"])] * (len(samples) // FRAME_SAMPLES),
    )
    history, last = "", 0
    for number, (gate, speech, frames, level) in enumerate(plan):
        said.update(gate=gate, speech=speech)
        for event in ear.feed(stream(noise(160 * frames, -70.0 + 6 * level, number))):
            history += type(event).__name__[0]
            assert (event.since if isinstance(event, Silent) else event.at) <= event.heard <= ear.heard
            assert event.heard >= last
            last = event.heard
        if ear.hearing in (Hearing.VOICED, Hearing.PAUSED) and level == 0:
            ear.rest()
            history += "R"
        assert 0 <= ear.voiced_for <= ear.heard
        assert 0 <= ear.silence(ear.heard) <= ear.heard
    assert ORDER.fullmatch(history), history
