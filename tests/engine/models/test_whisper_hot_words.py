"""Words that Whisper is told to expect: as tokens, and through the engine on a recording."""

from __future__ import annotations

import pytest

from voxlane.codecs.container import decode_audio
from voxlane.codecs.pcm import encode_pcm16
from voxlane.engine.api import LISTEN_RATE, Append, EndInput, EngineConfig, ListenParams, Segment, Submit, Words
from voxlane.engine.build.assemble import assemble
from voxlane.engine.jobs.transcribe import TranscribeJobFactory
from voxlane.engine.loop.core import Core
from voxlane.engine.models.whisper import EXPECTED_TOKENS, Whisper
from voxlane.engine.weights.store import resolve

pytestmark = pytest.mark.weights


@pytest.fixture(scope="module")
def core() -> Core:
    return assemble(EngineConfig(model="", asr_model="whisper-tiny-en", tts_model="")).core


@pytest.fixture(scope="module")
def model(core: Core) -> Whisper:
    factory = core._factories._factories["asr"]
    assert isinstance(factory, TranscribeJobFactory)
    assert isinstance(factory._model, Whisper)
    return factory._model


def test_the_words_are_the_text_before_the_transcript(model: Whisper) -> None:
    first, *rest = model.expecting(("Okonkwo", "New York"))
    assert first == model.tokens.previous
    assert model.text_of(rest) == " Okonkwo, New York."
    assert model.expecting(()) == []


def test_a_word_cannot_be_a_control_token(model: Whisper) -> None:
    assert all(token < model.tokens.end for token in model.expecting(("<|endoftext|>", "<|startoftranscript|>"))[1:])


def test_the_first_of_too_many_words_are_expected(model: Whisper) -> None:
    names = [f"Wojcik{number}" for number in range(100)]
    tokens = model.expecting(names)
    text = model.text_of(tokens[1:]).strip(" .").split(", ")
    assert 5 < len(text) < 100
    assert text == names[: len(text)]
    assert len(tokens) <= EXPECTED_TOKENS + 2
    assert model.expecting(("long" * 500,)) == []


def hear(core: Core, sound: bytes, *hot_words: str) -> list[Segment]:
    core.handle([Submit("a", "asr", listen=ListenParams(partials=False, word_times=True, hot_words=hot_words))])
    core.handle([Append("a", audio=sound), EndInput("a")])
    segments: list[Segment] = []
    while core.busy:
        segments += [one for told in core.step() if isinstance(told, Words) for one in told.segments]
    return segments


def test_expected_words_leave_other_words_their_times_and_silence_alone(core: Core) -> None:
    samples, rate = decode_audio((resolve("speech-samples") / "beckett.wav").read_bytes())
    assert rate == LISTEN_RATE
    sound = encode_pcm16(samples)
    usual, told = hear(core, sound), hear(core, sound, "Voxlane", "Phail")
    assert [one.text for one in told] == [one.text for one in usual]
    assert all(one.no_speech < 0.5 for one in (*usual, *told)), "read where the prompt itself begins"
    starts = [[word.start_s for one in heard for word in one.words] for heard in (usual, told)]
    assert len(starts[0]) > 10
    assert starts[1] == pytest.approx(starts[0], abs=0.3)
