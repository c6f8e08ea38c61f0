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
from voxlane.server.conversation.hearing.ear import (
    Confirmed,
    Dropped,
    Ear,
    EarEvent,
    EarPolicy,
    Hearing,
    Onset,
    Silent,
    Voiced,
)

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


def test_the_end_of_a_voice_shows_in_its_strong_sound(say: Callable[[str], Floats]) -> None:
    word = loud(say("Yeah."), -25)
    pcm, ear = stream(quiet(1.0), word, quiet(1.0)), Ear()
    end = LEAD + len(word)
    faded = None
    for start in range(0, len(pcm), 320):
        ear.feed(pcm[start : start + 320])
        if faded is None and ear.hearing is not Hearing.QUIET and ear.faded_for >= 0.08 * RATE:
            faded = ear.heard
    assert faded is not None
    assert ms(abs(faded - end - round(0.08 * RATE))) < 100
    assert 0.5 * len(word) < ear.strong_for <= len(word) + 0.05 * RATE
    assert ear.faded_for > 0.9 * RATE


def test_a_shout_is_louder_than_usual(say: Callable[[str], Floats]) -> None:
    sentence, excess = say("The old lighthouse had stood on the cliff for a hundred years."), []
    for level in (-30, -8):
        ear = Ear()
        ear.feed(stream(quiet(1.0), loud(sentence, -30), loud(sentence, -30), quiet(3.0)))
        ear.rest()
        ear.guarded = True
        ear.feed(stream(loud(sentence, level))[:RATE])  # half a second
        excess.append(ear.excess_db)
    assert excess[1] == pytest.approx(excess[0] + 22, abs=4)
    stranger = Ear()
    stranger.guarded = True
    stranger.feed(stream(quiet(1.0), loud(sentence, -8))[: 3 * RATE])
    assert stranger.hearing is not Hearing.QUIET
    assert stranger.excess_db == 0.0  # nothing is usual yet


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


# ---- the person among other voices


def other(sound: Floats) -> Floats:
    """Return a voice as another, smaller person has it."""
    return np.asarray(resample(sound.astype(np.float32), 20_000, RATE), np.float64)


def heard(ear: Ear, *sounds: Floats) -> list[EarEvent]:
    """Feed an ear in pieces, and end a turn after 0.6 s of silence as a conversation does."""
    data, events = stream(*sounds), list[EarEvent]()
    for at in range(0, len(data), 640):
        events += ear.feed(data[at : at + 640])
        if ear.silence(ear.heard) > 0.6 * RATE:
            ear.rest()
    return events


@pytest.fixture
def acquainted(say: Callable[[str], Floats]) -> Ear:
    """Return an ear that knows a person of -22 dB."""
    ear = Ear()
    person = loud(say("I would like to know when the next train to the coast leaves, and how long it takes."), -22)
    assert only(heard(ear, quiet(1), person, quiet(1)), Confirmed)
    return ear


@pytest.fixture(scope="module")
def chatter(say: Callable[[str], Floats]) -> Floats:
    """Return 16 s of somebody else who never stops."""
    text = "The city council voted to close the bridge, and buses will take the northern route until next month."
    speech = other(say(text))
    return np.resize(np.concatenate([speech, quiet(0.2)]), 16 * RATE)


def test_a_faint_person_is_heard_and_amplified_and_a_loud_one_is_left_alone(say: Callable[[str], Floats]) -> None:
    speech = say("Can you hear me over there?")
    for level, gain in ((-60, 20), (-25, 0)):
        ear, data = Ear(), stream(quiet(1), loud(speech, level), quiet(0.2))
        onset, confirmed = ear.feed(data)[:2]
        assert isinstance(onset, Onset)
        assert isinstance(confirmed, Confirmed)
        assert abs(ms(onset.at - LEAD)) <= 150
        assert ear.faint is (level == -60)
        sent = np.frombuffer(ear.since(onset.at), "<i2").astype(np.float64)
        came = np.frombuffer(data[2 * onset.at :], "<i2").astype(np.float64)
        times = np.sqrt(np.mean(sent**2) / np.mean(came**2))
        assert (sent == came).all() if gain == 0 else 5 <= 20 * np.log10(times) <= 30
        assert np.abs(sent).max() < 32767


def test_a_voice_that_goes_on_behind_the_person_opens_no_turn_and_holds_nothing(
    acquainted: Ear, chatter: Floats, say: Callable[[str], Floats]
) -> None:
    television = loud(chatter, -40)
    assert not only(heard(acquainted, television), Confirmed)
    acquainted.guarded = True
    assert not heard(acquainted, television)
    acquainted.guarded = False
    speech = loud(say("What is the weather like?"), -22)
    mixed = television.copy()
    mixed[2 * RATE : 2 * RATE + len(speech)] += speech
    began = acquainted.heard + 2 * RATE
    events = heard(acquainted, mixed)
    (confirmed,) = only(events, Confirmed)
    assert isinstance(confirmed, Confirmed)
    assert abs(confirmed.at - began) < 0.3 * RATE
    silent = [event for event in only(events, Silent) if isinstance(event, Silent)][-1]
    assert abs(silent.since - began - len(speech)) < 0.4 * RATE


@pytest.mark.parametrize("softer", [6, 10])
@pytest.mark.parametrize("guarded", [False, True])
def test_a_person_who_leans_back_is_heard(
    acquainted: Ear, say: Callable[[str], Floats], softer: float, guarded: bool
) -> None:
    acquainted.guarded = guarded
    for text in ("And how long does it take?", "No, stop!", "I would rather go by bus."):
        began = acquainted.heard + RATE
        confirmed, *_ = only(heard(acquainted, quiet(1), loud(say(text), -22 - softer), quiet(1)), Confirmed)
        assert isinstance(confirmed, Confirmed)
        assert abs(confirmed.at - began) < 0.3 * RATE


def test_a_second_person_is_heard_when_they_wait_for_an_answer(acquainted: Ear, say: Callable[[str], Floats]) -> None:
    speech = loud(other(say("May I ask something, too, before you go on?")), -42)
    began = acquainted.heard + RATE
    whole = stream(quiet(1), speech, quiet(1.5))
    came, events = 0, list[EarEvent]()
    while not only(events, Confirmed):
        events += acquainted.feed(whole[came : came + 640])
        came += 640
        assert came <= len(whole)
    confirmed, silent = events[-2:]
    assert isinstance(confirmed, Confirmed)
    assert isinstance(silent, Silent)
    assert abs(confirmed.at - began) < 0.3 * RATE
    assert abs(silent.since - began - len(speech)) < 0.3 * RATE
    assert len(acquainted.since(confirmed.at)) == 2 * (acquainted.heard - confirmed.at)
    acquainted.rest()
    # From now on this voice takes part.
    heard(acquainted, quiet(1.5))
    again = acquainted.heard + RATE
    first, *_ = only(heard(acquainted, quiet(1), speech, quiet(1)), Confirmed)
    assert isinstance(first, Confirmed)
    assert first.heard - again < RATE


# ---- laws


@pytest.fixture(scope="module")
def medley(say: Callable[[str], Floats]) -> bytes:
    speech = loud(say("Well, stop. What is this?"), -25)
    parts = quiet(0.5), loud(cough(), -25), quiet(0.4), speech, quiet(0.5), loud(knock(), -20), quiet(0.3)
    softly = loud(other(say("Is this another voice that waits?")), -42)
    return stream(*parts, speech, quiet(0.4), softly, quiet(1.0), loud(softly, -62), quiet(0.3))


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
