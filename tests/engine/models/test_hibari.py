"""The default voice: its words' times, its parameters, what it refuses; and what every voice shares (synthesis.py)."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path

import hibari
import hibari.voices
import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from voxlane.engine.errors import WeightsError
from voxlane.engine.models.hibari.model import FRAME_SAMPLES, MAX_PHONEMES, Hibari
from voxlane.engine.models.hibari.noise import ClauseNoise, first_row
from voxlane.engine.models.synthesis import (
    LEAD_S,
    MAX_SOURCE_CHARS,
    NOTHING,
    ClauseTooLong,
    Phonemiser,
    Prepared,
    SynthesisedClause,
    Synthesiser,
    SynthesisError,
    finish,
    open_session,
)

SENTENCE = "We could walk down to the river after lunch today."


@pytest.fixture(scope="module")
def voice() -> Hibari:
    model = Hibari(threads=1)
    model.warm_up()
    return model


@pytest.fixture(scope="module")
def phonemiser() -> Phonemiser:
    return Phonemiser()


def say(voice: Synthesiser, text: str, *, speed: float = 1.0, seed: int = 0) -> SynthesisedClause:
    return voice.synthesise(voice.prepare(text), speed=speed, seed=seed)


def loudness(samples: np.ndarray[tuple[int], np.dtype[np.float32]]) -> float:
    return float(np.sqrt(np.mean(np.square(samples))))


def test_it_says_what_the_package_says(voice: Hibari) -> None:
    noise = ClauseNoise(voice.noise, first_row(7))
    package = hibari.Hibari(threads=1)
    (phonemes,) = package.phonemize(SENTENCE)
    whole = package.from_ids(package.ids(phonemes), rng=noise)
    ours = say(voice, SENTENCE, seed=7)
    lead = int(np.argmax(np.correlate(whole, ours.samples, "valid")))
    np.testing.assert_array_equal(ours.samples, whole[lead : lead + len(ours.samples)])
    assert loudness(whole[:lead]) < 1e-3  # nothing but silence was cut
    assert loudness(whole[lead + len(ours.samples) :]) < 1e-3


def test_every_word_has_its_time(voice: Hibari) -> None:
    speech = say(voice, SENTENCE)
    assert [SENTENCE[word.source_start : word.source_end] for word in speech.words] == SENTENCE.split()
    edges = [edge for word in speech.words for edge in (word.start_sample, word.end_sample)]
    assert edges == sorted(edges)
    assert all(word.end_sample - word.start_sample >= FRAME_SAMPLES for word in speech.words)
    assert speech.words[-1].end_sample <= len(speech.samples)


def agreement(speech: SynthesisedClause, moved_samples: int) -> float:
    """Return how well loudness, in decibels, agrees with the words' times moved forward."""
    windows = speech.samples[: len(speech.samples) // 120 * 120].reshape(-1, 120)
    loud = np.maximum(20 * np.log10(np.sqrt(np.square(windows).mean(axis=1)) + 1e-6), -60)
    said = np.zeros(len(loud))
    for word in speech.words:
        start, end = ((edge - moved_samples) // 120 for edge in (word.start_sample, word.end_sample))
        said[max(0, start) : max(0, end)] = 1
    return float(np.corrcoef(loud, said)[0, 1])


@pytest.mark.parametrize("speed", [0.7, 1.0, 1.5])
def test_words_are_where_the_sound_is(voice: Hibari, speed: float) -> None:
    texts = ("Stop, please. Wait; now!", "Yes, I know; but no, it can't be.", "One, two, three, four, five.")
    speeches = [say(voice, text, speed=speed) for text in texts]
    for speech in speeches:
        for word in speech.words:
            assert loudness(speech.samples[word.start_sample : word.end_sample]) > 0.01
    here, earlier, later = (
        np.mean([agreement(speech, moved) for speech in speeches]) for moved in (0, 24 * 60, -24 * 60)
    )
    assert here > 0.5
    assert here > max(earlier, later)


@pytest.mark.parametrize(("text", "pause_s"), [("We went home.", 0.35), ("We went home,", 0.15), ("We went", 0.05)])
def test_silence_around_a_clause_is_what_its_punctuation_asks_for(voice: Hibari, text: str, pause_s: float) -> None:
    speech = say(voice, text)
    assert speech.words[0].start_sample == int(LEAD_S * 24_000)
    assert len(speech.samples) - speech.words[-1].end_sample == pytest.approx(pause_s * 24_000, abs=240)


def test_an_expression_of_several_words_is_one_stretch_of_source(voice: Hibari) -> None:
    text = "It cost **$12.50** in 1999 😀 (really)."
    speech = say(voice, text)
    heard = [text[word.source_start : word.source_end].strip("*(). ") for word in speech.words]
    assert heard == ["It", "cost", "$12.50", "in", "1999", "really"]
    price = speech.words[2]
    assert price.end_sample - price.start_sample > 0.8 * 24_000  # twelve dollars and fifty cents


def test_seed(voice: Hibari) -> None:
    first, again, other = (say(voice, SENTENCE, seed=seed).samples for seed in (3, 3, -1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first[:1000], other[:1000])


def test_speed(voice: Hibari) -> None:
    slow, normal, fast = (len(say(voice, SENTENCE, speed=speed).samples) for speed in (0.5, 1.0, 2.0))
    assert 1.7 < slow / normal < 2.3
    assert 0.4 < fast / normal < 0.65
    for speed in (0.0, 0.49, 2.01, float("nan"), float("inf"), -1.0):
        with pytest.raises(SynthesisError, match="speed must be"):
            say(voice, SENTENCE, speed=speed)


@pytest.mark.parametrize("text", ["", "  \n", "😀👍", "!?…", "```py\nx = 1\n```", "你好", "---"])
def test_nothing_to_say(voice: Hibari, text: str) -> None:
    prepared = voice.prepare(text)
    assert (prepared.ids, prepared.words, prepared.phonemes) == ((), (), 0)
    assert len(voice.synthesise(prepared).samples) == 0


def test_long_clauses_are_refused_before_they_cost_anything(voice: Hibari) -> None:
    text = "the river and " * 60
    assert voice.prepare(text[:280]).phonemes <= MAX_PHONEMES
    with pytest.raises(ClauseTooLong, match=rf"a clause of \d+ phonemes .* {MAX_PHONEMES} at most"):
        voice.prepare(text)
    with pytest.raises(ClauseTooLong, match="100000 characters"):
        voice.prepare("x" * 100_000)
    assert voice.prepare(" " * MAX_SOURCE_CHARS) == NOTHING


def test_only_voices_that_are_here(voice: Hibari, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIBARI_HOME", str(tmp_path))
    assert voice.voices == (voice.default_voice,) == ("heart",)
    with pytest.raises(SynthesisError, match="there is no voice 'nobody': hibari has heart"):
        voice.prepare("Hello.", voice="nobody")
    with pytest.raises(SynthesisError, match="voice emma is not on this machine"):
        voice.prepare("Hello.", voice="emma")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "bf_emma.int8.onnx").write_bytes(b"something else")
    assert Hibari().voices == ("heart",)
    with pytest.raises(WeightsError, match=r"bf_emma\.int8\.onnx: not the file of hibari's voice emma"):
        voice.synthesise(voice.prepare("Hello."), voice="emma")


def test_a_voice_whose_file_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIBARI_HOME", str(tmp_path))
    file = tmp_path / "bf_emma.int8.onnx"
    file.write_bytes(b"something")
    sha256 = hashlib.sha256(b"something").hexdigest()
    monkeypatch.setitem(hibari.voices.VOICES, "emma", {**hibari.voices.VOICES["emma"], "sha256": sha256})
    voice = Hibari()
    assert "emma" in voice.voices
    file.unlink()
    prepared = voice.prepare("Hello.", voice="emma")
    with pytest.raises(SynthesisError, match="voice emma is not on this machine"):
        voice.synthesise(prepared, voice="emma")


def test_accents(phonemiser: Phonemiser) -> None:
    american, british = (phonemiser.prepare("A tomato, over there.", 100, british=british) for british in (False, True))
    assert american.ids != british.ids
    assert len(american.words) == len(british.words) == 4


def test_sessions_keep_to_their_threads() -> None:
    path = Path(hibari.__file__).parent / "assets" / "hibari.onnx"
    options = open_session(path.read_bytes(), path, threads=2).get_session_options()
    assert options.intra_op_num_threads == 2
    assert options.inter_op_num_threads == 1
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


def test_files_that_are_no_model() -> None:
    path = Path(hibari.__file__).parent / "assets" / "hibari.onnx"
    for model in (b"", b"\x00" * 100, path.read_bytes()[:-1000]):
        with pytest.raises(WeightsError, match=r"hibari\.onnx: not a model that can be run"):
            open_session(model, path, threads=1)
    with pytest.raises(WeightsError, match="not a model that can be run"):
        open_session(path.read_bytes(), path, threads=1, extra_output="/no_such_tensor")


def test_output_without_sound_and_too_loud_output(phonemiser: Phonemiser) -> None:
    prepared = phonemiser.prepare("Hello there.", 100)
    durations = np.full(len(prepared.ids), 2, np.float32)
    samples = np.zeros(2 * len(prepared.ids) * 600, np.float32)
    silent = finish(prepared, samples.copy(), durations, frame_samples=600, rate=24_000, speed=1.0)
    assert len(silent.samples) == len(samples)
    assert len(silent.words) == 2
    samples[6000:9000] = -3.0
    loud = finish(prepared, samples, durations, frame_samples=600, rate=24_000, speed=1.0)
    assert loud.samples.min() == -1.0
    assert all(0 <= word.start_sample <= word.end_sample <= len(loud.samples) for word in loud.words)


def check(prepared: Prepared, text: str) -> None:
    """Assert what holds for every prepared clause."""
    before = (0, 0)
    for word in prepared.words:
        assert 0 <= word.source_start < word.source_end <= len(text)
        assert before <= (word.source_start, word.first)
        assert 1 <= word.first <= word.last <= len(prepared.ids) - 1
        before = (word.source_start, word.last)
    if prepared.ids:
        assert prepared.ids[0] == prepared.ids[-1] == 0
        assert 0 not in prepared.ids[1:-1]
        assert any(word.first < word.last for word in prepared.words)


SCRAPS = st.sampled_from(
    ["Hello", "don't", "1,234.5", "$9.99", "3rd", "(", ")", "“", '"', "—", "-", "...", "?!", "[a](/b/)", "你", "é",
     "😀", "U.S.", "e.g.", "a", "I'm", "'", "''", "NASA", "x2y", "@", "&", "/", "http://a.b/c", "7:30", "%", "zxqv",
     "\n"]
)  # fmt: skip


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(SCRAPS | st.text(max_size=6), st.sampled_from(["", " "])), max_size=14))
def test_any_text_can_be_prepared(phonemiser: Phonemiser, pieces: list[tuple[str, str]]) -> None:
    text = "".join(itertools.chain.from_iterable(pieces))
    check(phonemiser.prepare(text, 2000), text)
