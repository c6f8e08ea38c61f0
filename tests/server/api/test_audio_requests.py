"""Parameters of the two audio endpoints: each honoured, harmless, or refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from voxlane.codecs.encode import SpeechFormat
from voxlane.engine.api import Priority, SpeakParams
from voxlane.server import limits
from voxlane.server.api import speech_request, transcription_request
from voxlane.server.api.speech_request import SpeechRequest
from voxlane.server.api.transcription_request import TranscriptionRequest
from voxlane.server.audio.voices import OPENAI_VOICES, find_voice, names, sayable
from voxlane.server.errors import InvalidRequest, VoxlaneError

ALL: tuple[SpeechFormat, ...] = ("wav", "pcm", "mp3", "opus", "flac", "aac")
VOICES = ("bella", "adam", "af_alloy")


def listen(*parts: tuple[str, str]) -> TranscriptionRequest:
    return transcription_request.parse(parts, ("en", "de"))


def say(formats: tuple[SpeechFormat, ...] = ALL, **body: Any) -> SpeechRequest:
    return speech_request.parse({"input": "Hello.", **body}, 20, VOICES, formats)


def test_an_upload_without_parameters() -> None:
    assert listen() == TranscriptionRequest(None, "", "json", False, True, False, Priority.NORMAL, None, "")


def test_an_upload_with_all_of_them() -> None:
    ask = listen(
        ("model", "whisper-1"), ("language", "de-AT"), ("prompt", "ZyntriQix, Digique Plus."), ("temperature", "0.2"),
        ("response_format", "verbose_json"), ("stream", "False"), ("timestamp_granularities[]", "word"),
        ("timestamp_granularities[]", "segment"), ("chunking_strategy", "auto"), ("user", "u"),
        ("priority", "high"), ("deadline_ms", "250"), ("cache_salt", "s"),
    )  # fmt: skip
    hot_words = ("ZyntriQix", "Digique Plus")
    assert ask == TranscriptionRequest(
        "whisper-1", "de", "verbose_json", False, True, True, Priority.HIGH, 0.25, "s", hot_words
    )


def test_subtitles_ask_for_the_times_of_words() -> None:
    assert listen(("response_format", "srt")).words
    assert not listen(("response_format", "text")).words


def test_only_word_times() -> None:
    ask = listen(("response_format", "verbose_json"), ("timestamp_granularities", "word"))
    assert (ask.segments, ask.words) == (False, True)


@pytest.mark.parametrize(
    ("parts", "param"),
    [
        ([("response_format", "xml")], "response_format"),
        ([("language", "tlh")], "language"),
        ([("temperature", "hot")], "temperature"),
        ([("temperature", "nan")], "temperature"),
        ([("stream", "maybe")], "stream"),
        ([("stream", "true"), ("response_format", "srt")], "stream"),
        ([("model", "a"), ("model", "b")], "model"),
        ([("timestamp_granularities[]", "word")], "timestamp_granularities[]"),
        ([("response_format", "verbose_json"), ("timestamp_granularities[]", "phone")], "timestamp_granularities[]"),
        ([("include[]", "logprobs")], "include"),
        ([("chunking_strategy", "none")], "chunking_strategy"),
        ([("colour", "red")], "colour"),
        ([("deadline_ms", "0")], "deadline_ms"),
    ],
)
def test_mistakes_in_an_upload_name_the_parameter(parts: list[tuple[str, str]], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        listen(*parts)
    assert caught.value.param == param


def test_a_text_without_parameters() -> None:
    assert say() == SpeechRequest(None, "Hello.", SpeakParams(), "mp3", False, Priority.NORMAL, None)


def test_a_text_with_all_of_them() -> None:
    ask = say(
        model="tts-1", voice={"id": "adam"}, response_format="opus", speed=2, seed=7, stream_format="sse",
        instructions="Sound happy.", priority="critical", deadline_ms=100,
    )  # fmt: skip
    assert ask == SpeechRequest("tts-1", "Hello.", SpeakParams("adam", 2.0, 7), "opus", True, Priority.CRITICAL, 0.1)


def test_a_voice_of_several_languages_that_can_be_told_how() -> None:
    body = {"input": "Hello.", "language": "english", "instructions": "Sound happy."}
    for language in ("english", "en-GB"):
        ask = speech_request.parse(body | {"language": language}, 20, (), ("wav",), ("english",), instructed=True)
        assert ask.speak == SpeakParams(language="english", instructions="Sound happy.")
    with pytest.raises(InvalidRequest, match="one pace"):
        speech_request.parse(body | {"speed": 1.5}, 20, (), ("wav",), ("english",), one_pace=True)
    with pytest.raises(InvalidRequest, match="one of english, german"):
        speech_request.parse(body | {"language": "fr"}, 20, (), ("wav",), ("english", "german"))


def test_names_are_said_as_the_request_wants_or_else_the_operator() -> None:
    usual = ("Niamh = /niːv/",)
    body = {"input": "Hello."}
    assert speech_request.parse(body, 20, (), ("wav",), pronunciations=usual).speak.pronunciations == usual
    for wanted in ([], ["Siobhan = shiv-awn"]):
        asked = body | {"pronunciations": wanted}
        ask = speech_request.parse(asked, 20, (), ("wav",), pronunciations=usual, respells_only=True)
        assert ask.speak.pronunciations == tuple(wanted)
    with pytest.raises(InvalidRequest, match="this voice takes no phonemes"):
        speech_request.parse(body | {"pronunciations": list(usual)}, 20, (), ("wav",), respells_only=True)
    assert sayable((*usual, "a = b"), respells_only=True) == ("a = b",)
    assert sayable(usual, respells_only=False) == usual


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({"pronunciations": ["Siobhan"]}, "pronunciations", "cannot be used: entry 1: write it as"),
        ({"pronunciations": ["a = b"] * 101}, "pronunciations", "up to 100"),
        ({"pronunciations": "a = b"}, "pronunciations", "a list"),
        ({"input": None}, "input", "must be a string"),
        ({"input": ""}, "input", "must be a string"),
        ({"input": "x" * 21}, "input", "1 to 20 characters"),
        ({"input": ["x"]}, "input", "must be a string"),
        ({"speed": 4}, "speed", "from 0.5 to 2"),
        ({"speed": "fast"}, "speed", "from 0.5 to 2"),
        ({"voice": "nobody"}, "voice", "one of bella, adam, af_alloy"),
        ({"voice": 3}, "voice", "a string or an object with id"),
        ({"language": "english"}, "language", "one language"),
        ({"instructions": ["x"]}, "instructions", "1 to 2000 characters"),
        ({"voice": {"id": 3}}, "voice.id", "a string"),
        ({"response_format": "midi"}, "response_format", "must be one of"),
        ({"stream_format": "smoke"}, "stream_format", "audio, sse"),
        ({"seed": -1}, "seed", "whole number"),
        ({"pitch": 2}, "pitch", "not a parameter"),
    ],
)
def test_mistakes_with_a_text_name_the_parameter(body: dict[str, Any], param: str, says: str) -> None:
    with pytest.raises(VoxlaneError, match=says) as caught:
        say(**body)
    assert caught.value.param == param


def test_a_text_of_digits_is_limited_by_how_long_it_is_spoken() -> None:
    most = limits.SPEECH_CHARACTERS
    for digits, allowed in ((20_000, 3333), (16_000, 2666), (1001, 1000)):  # a sixth of the text, or a thousand
        with pytest.raises(InvalidRequest, match=f"at most {allowed} digits at this length") as refused:
            speech_request.parse({"input": "7" * digits}, most, VOICES, ALL)
        assert refused.value.param == "input"
    with pytest.raises(InvalidRequest, match="at most 20 digits"):  # of the operator's limit
        speech_request.parse({"input": "7" * 21}, 120, VOICES, ALL)
    for text in ("7" * 1000, "seven " * 15_000 + "7" * 5_000):
        assert speech_request.parse({"input": text}, most, VOICES, ALL)


def test_without_an_encoder_the_default_is_wav_and_mp3_says_what_is_missing() -> None:
    assert say(("wav", "pcm")).response_format == "wav"
    with pytest.raises(InvalidRequest, match=r"mp3 needs PyAV .*-e '\.\[opus\]'"):
        say(("wav", "pcm"), response_format="mp3")


def test_openais_voices_are_ours_or_the_default() -> None:
    assert find_voice("alloy", VOICES) == "af_alloy"
    assert {find_voice(voice, VOICES) for voice in OPENAI_VOICES - {"alloy"}} == {""}
    assert find_voice("bella", VOICES) == "bella"
    assert find_voice("Bella", VOICES) is None


def test_many_voices_are_not_all_listed() -> None:
    assert names([str(number) for number in range(20)], 3) == "0, 1, 2 and 17 more"
