"""The native ear against the reference: the same events, properties and sound, bit for bit, whatever is heard."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from examples import SOAK, examples
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from voxlane.codecs import prosody
from voxlane.codecs.resample import resample
from voxlane.codecs.voicing import FRAME_SAMPLES, RATE, Voicing
from voxlane.engine.models.hibari.model import Hibari
from voxlane.server.conversation.hearing import native_ear
from voxlane.server.conversation.hearing.ear import Detector, Ear, EarEvent, EarPolicy, Hearing
from voxlane.server.conversation.hearing.loudness import RoomPolicy
from voxlane.server.conversation.hearing.native_ear import NativeEar
from voxlane.server.conversation.hearing.people import PeoplePolicy
from voxlane.server.conversation.turns.end_of_turn import PauseEvidence, end_wait_s
from voxlane.server.conversation.turns.policies import TurnPolicy

Floats = NDArray[np.float64]

pytestmark = pytest.mark.skipif(native_ear.native() != "", reason="there is no native ear on this machine")

TEXTS = (
    "I would like to know when the next train leaves, and from which platform.",
    "No! Wait a moment. Actually, I have another question about tomorrow.",
    "Mhm.",
)


def _said() -> list[Floats]:
    """Return the texts in one voice, and the same sound faster and slower, as other voices."""
    voice = Hibari()
    made = []
    for text in TEXTS:
        speech = voice.synthesise(voice.prepare(text))
        for rate in (RATE, 12_000, 20_000):
            sound = np.asarray(resample(speech.samples, voice.sample_rate, rate), np.float64)
            made.append(sound / np.sqrt(np.mean(np.square(sound[np.abs(sound) > 0.05 * np.abs(sound).max()]))))
    return made


@pytest.fixture(scope="module")
def voices() -> list[Floats]:
    return _said()


def scene(voices: list[Floats], parts: list[tuple[int, float, float]], background: float, seed: int) -> bytes:
    """Return a sound: each part is a voice, noise, a hum or silence, its level in dB, and the quiet behind it."""
    chance = np.random.default_rng(seed)
    sounds = []
    for what, level, gap_s in parts:
        if what < len(voices):
            sound = voices[what]
        elif what == len(voices):
            sound = chance.standard_normal(RATE // 2)
        elif what == len(voices) + 1:
            sound = np.sin(np.arange(RATE) * 0.05) + np.sin(np.arange(RATE) * 0.1)
        else:
            sound = np.zeros(RATE)
        sounds += [sound * 10 ** (level / 20), np.zeros(round(gap_s * RATE))]
    joined = np.concatenate(sounds)
    joined += chance.standard_normal(len(joined)) * 10 ** (background / 20)
    return np.clip(np.rint(joined * 32767), -32768, 32767).astype("<i2").tobytes()


def properties(ear: Ear) -> tuple[object, ...]:
    return (
        *(
            ear.heard,
            ear.hearing,
            ear.voiced_for,
            ear.faint,
            ear.faded_for,
            ear.strong_for,
            ear.excess_db,
            ear.may_speak,
        ),
        *(ear.silence(ear.heard), ear.p_finished, ear.since(ear.heard - 800), ear.since(0)[:64]),
    )


def compare(pcm: bytes, reference: Ear, native: Ear, seed: int) -> Counter[str]:
    """Feed both ears the same sound in pieces of any length; return what happened."""
    chance, at, happened = np.random.default_rng(seed), 0, Counter[str]()
    while at < len(pcm):
        size = int(chance.choice((640, 640, 320, 1920, 101, 6400)))
        for ear in (reference, native):
            ear.guarded, ear.threshold = bool(at // 200_000 % 3 == 2), 0.5
        wanted: list[EarEvent] = reference.feed(pcm[at : at + size])
        assert native.feed(pcm[at : at + size]) == wanted
        assert properties(native) == properties(reference)
        happened.update(type(event).__name__ for event in wanted)
        at += size
        if reference.hearing is Hearing.PAUSED and reference.silence(reference.heard) > 0.7 * RATE:
            for ear in (reference, native):
                ear.rest()
    return happened


def loudness(clip: NDArray[np.float32]) -> float:
    """Stand for the network that judges how a voice ends: what counts is that both ears give it the same clip."""
    return float(np.abs(clip).mean()) + len(clip)


PARTS = st.lists(
    st.tuples(st.integers(0, 3 * len(TEXTS) + 2), st.floats(-62, -12), st.floats(0, 1.6)), min_size=1, max_size=8
)


@given(PARTS, st.floats(-95, -40), st.integers(0, 1 << 30))
@settings(max_examples=300 if SOAK else 5, deadline=None)
def test_any_scene_is_heard_bit_for_bit_alike(
    voices: list[Floats], parts: list[tuple[int, float, float]], background: float, seed: int
) -> None:
    pcm = scene(voices, parts, background, seed)
    compare(pcm, Ear(finished=loudness), NativeEar(detector=Voicing, finished=loudness), seed)


@given(
    st.builds(
        EarPolicy,
        margin=st.floats(0, 12),
        guard=st.floats(3, 30),
        open_frames=st.integers(1, 4),
        open_window=st.integers(4, 9),
        close_s=st.floats(0.05, 0.4),
        confirm_frames=st.integers(1, 4),
        sustain_frames=st.integers(1, 20),
        doubt_s=st.floats(0.1, 1.0),
        foreign_s=st.floats(0.1, 1.0),
        distrust_s=st.floats(0, 4),
        warm_frames=st.integers(0, 8),
        keep_s=st.floats(1.2, 4),
    ),
    st.builds(RoomPolicy, near=st.floats(2, 12), soft=st.floats(5, 18), fall=st.floats(0, 8)),
    st.builds(PeoplePolicy, soft_s=st.floats(1.1, 4), look_db=st.floats(1, 8), glance_db=st.floats(1, 8)),
    PARTS,
    st.integers(0, 1 << 30),
)
@settings(max_examples=300 if SOAK else 10, deadline=None)
def test_any_policy_means_the_same(
    voices: list[Floats],
    policy: EarPolicy,
    room: RoomPolicy,
    people: PeoplePolicy,
    parts: list[tuple[int, float, float]],
    seed: int,
) -> None:
    def chances() -> Detector:
        """Return a detector that decides by its place in the stream: quick, and it reaches every state."""
        numbers = count(seed % 97)
        return lambda samples: [(next(numbers) * 7 % 19) / 19 for _ in range(len(samples) // FRAME_SAMPLES)]

    pcm = scene(voices, parts, -70.0, seed)
    ears = (policy, room, people)
    compare(
        pcm,
        Ear(*ears, detector=chances, finished=loudness),
        NativeEar(*ears, detector=chances, finished=loudness),
        seed,
    )


def conversation(chance: np.random.Generator) -> list[tuple[int, float, float]]:
    """Return a person's turns, with a second voice, a television or a softer sentence between them."""
    level = float(chance.uniform(-40, -18))
    parts: list[tuple[int, float, float]] = []
    for _ in range(int(chance.integers(3, 7))):
        parts.append((int(chance.choice((0, 3))), level + float(chance.normal(0, 2)), float(chance.uniform(0.1, 1.5))))
        if chance.random() < 0.5:
            other = int(chance.choice((1, 2, 4, 5)))
            parts.append((other, level - float(chance.uniform(4, 28)), float(chance.uniform(0.2, 1.5))))
    return parts


def test_silero_decides_alike_in_conversations(voices: list[Floats]) -> None:
    """Silero's sums are rounded otherwise in native code, by less than 1e-5: no decision may change by that."""
    happened, learnt, asked, admitted = Counter[str](), 0, 0, 0
    for seed in range(150 if SOAK else 6):
        chance = np.random.default_rng(seed)
        native, reference = NativeEar(finished=loudness), Ear(finished=loudness)
        portrait = native._portrait
        real = portrait.distance
        distances: list[float] = []
        portrait.distance = lambda sound, real=real, found=distances: found.append(real(sound)) or found[-1]  # type: ignore[method-assign]
        happened += compare(scene(voices, conversation(chance), -75.0, seed), reference, native, seed)
        learnt, asked = learnt + portrait.ready, asked + len(distances)
        admitted += reference._room._second != float("inf")
    # What is compared must have happened: else the comparison says nothing.
    assert min(happened[kind] for kind in ("Onset", "Confirmed", "Dropped", "Silent", "Voiced")) >= 3, happened
    assert learnt
    assert asked
    assert admitted


def test_how_a_voice_ends_is_judged_alike(voices: list[Floats]) -> None:
    """The sums are rounded otherwise: no wait may change by a tenth of a millisecond."""
    wait_s = 0.0
    for seed in range(examples(300)):
        chance = np.random.default_rng(seed)
        sound = voices[seed % len(voices)]
        clip = (sound[: int(chance.integers(0, len(sound)))] * 10 ** (chance.uniform(-60, -12) / 20)).astype(np.float32)
        clip += chance.standard_normal(len(clip)).astype(np.float32) * np.float32(1e-4)
        wanted, found = prosody.finished(clip), native_ear.native_finished(clip)
        assert abs(found - wanted) < 1e-5
        before, after = (end_wait_s(PauseEvidence("so it is", p_sound=one), TurnPolicy()) for one in (wanted, found))
        wait_s = max(wait_s, abs(before - after))
    assert wait_s < 1e-4


def test_an_ear_that_is_dropped_leaves_nothing(voices: list[Floats]) -> None:
    pcm = scene(voices, [(0, -25.0, 0.5)], -75.0, 0)
    first = NativeEar().feed(pcm)
    for _ in range(50):
        assert NativeEar().feed(pcm) == first


def test_a_window_that_the_native_code_cannot_hold_is_refused() -> None:
    policy = replace(EarPolicy(), open_window=native_ear._MOST_WINDOW + 1)
    with pytest.raises(AssertionError):
        NativeEar(policy)


@pytest.mark.parametrize("missing", ["VOXLANE_NATIVE", "PATH"])
def test_without_native_code_the_reference_serves(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(missing, {"VOXLANE_NATIVE": "0", "PATH": str(tmp_path)}[missing])
    monkeypatch.setenv("CXX", "")
    monkeypatch.setenv("VOXLANE_CACHE", str(tmp_path))
    script = (
        "from voxlane.server.conversation.hearing import native_ear\n"
        "from voxlane.server.conversation.hearing.ear import Ear\n"
        "assert native_ear.native(); assert type(native_ear.new_ear()) is Ear; print(native_ear.native())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert {"VOXLANE_NATIVE": "turns it off", "PATH": "install g++"}[missing] in done.stdout


def test_new_ears_are_native(said: Callable[[str, float], np.ndarray]) -> None:
    ear = native_ear.new_ear()
    assert type(ear) is NativeEar
    assert ear.feed((said("Hello there, how are you?", -25.0) * 32767).astype("<i2").tobytes())
