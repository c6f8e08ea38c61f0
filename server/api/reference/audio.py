"""The two audio endpoints described: what speech_request.py and transcription_request.py read, what is answered."""

from __future__ import annotations

from typing import get_args

from voxlane.server import limits
from voxlane.server.api import speech_request, transcription_request
from voxlane.server.api.reference.parts import (
    EVENTS,
    JSON,
    READING,
    WORKING,
    Facts,
    Schema,
    answer,
    binary,
    body,
    choice,
    either,
    enumerated,
    events,
    fixed,
    flag,
    lane,
    listing,
    media,
    name,
    number,
    operation,
    record,
    ref,
    request_body,
    string,
    whole,
    without_effect,
)
from voxlane.server.api.transcription_request import TranscriptFormat
from voxlane.server.audio.speech_file import CONTENT_TYPES
from voxlane.server.errors import BadAudio

_SPEECH = """The sound is sent while it is made, as a file or, with `stream_format` `sse`, as server-sent events: each
is a `SpeechEvent`. `/v1/models` tells the voices; OpenAI's names are taken for ours where there is one alike, and for
the default voice otherwise."""

_TRANSCRIPTION = f"""WAV is always read; MP3, FLAC, Ogg, WebM, M4A and AAC where PyAV is installed.

Known and refused, unless set to what happens anyway: {enumerated(transcription_request.UNSUPPORTED)}.

With `stream`, the answer is server-sent events: each is a `TranscriptEvent`, the last is `data: [DONE]`."""

_SPEECH_EXAMPLES: dict[str, Schema] = {
    "A sentence": {"input": "Hello! It is good to hear you.", "response_format": "wav"},
    "Slower, as events of bare samples": {
        "input": "Take your time.",
        "voice": "alloy",
        "speed": 0.8,
        "response_format": "pcm",
        "stream_format": "sse",
    },
}

_TRANSCRIPTION_EXAMPLES: dict[str, Schema] = {
    "The words": {"file": "@speech.wav"},
    "With the time of each word": {
        "file": "@speech.wav",
        "language": "en",
        "response_format": "verbose_json",
        "timestamp_granularities[]": ["word", "segment"],
    },
    "Subtitles": {"file": "@speech.wav", "response_format": "vtt"},
    "As events": {"file": "@speech.wav", "stream": True},
}


def paths(facts: Facts) -> Schema:
    """Return the endpoints."""
    sound = {CONTENT_TYPES[kind]: media(binary()) for kind in facts.formats}
    speech = operation(
        "createSpeech",
        "Audio",
        "Text to audio, OpenAI's protocol",
        _SPEECH,
        {"200": answer("The sound, in the format that was asked for.", **sound, **{EVENTS: events("SpeechEvent")})},
        (*READING, *WORKING),
        request=request_body(JSON, "SpeechRequest", _SPEECH_EXAMPLES),
    )
    words = {
        JSON: media(either("", ref("Transcription"), ref("VerboseTranscription"))),
        "text/plain": media(string("Of `text`: the words. Of `srt`: SubRip subtitles.")),
        "text/vtt": media(string("WebVTT subtitles.")),
        EVENTS: events("TranscriptEvent"),
    }
    transcription = operation(
        "createTranscription",
        "Audio",
        "Audio to text, OpenAI's protocol",
        _TRANSCRIPTION,
        {"200": answer("The words, in the format that was asked for.", **words)},
        (*READING, BadAudio, *WORKING),
        request=request_body("multipart/form-data", "TranscriptionRequest", _TRANSCRIPTION_EXAMPLES),
    )
    return {"/v1/audio/speech": {"post": speech}, "/v1/audio/transcriptions": {"post": transcription}}


def schemas(facts: Facts) -> dict[str, Schema]:
    """Return what the endpoints read and write."""
    tokens = {"input_tokens": whole(""), "output_tokens": whole(""), "total_tokens": whole("")}
    usage = record({"type": fixed("duration"), "seconds": number("Length of the recording.")})
    delta = record({"type": fixed("speech.audio.delta"), "audio": string("Base64 of the next bytes of the file.")})
    text = record({"type": fixed("transcript.text.delta"), "delta": string("The next words; they will not change.")})
    whole_text = {"text": string("All of it."), "usage": record({"type": fixed("tokens"), **tokens})}
    return {
        "SpeechRequest": _speech(facts),
        "SpeechEvent": either("", delta, record({"type": fixed("speech.audio.done"), "usage": record(tokens)})),
        "TranscriptionRequest": _transcription(),
        "Transcription": record({"text": string(), "usage": usage}),
        "VerboseTranscription": _verbose(usage),
        "TranscriptEvent": either("", text, record({"type": fixed("transcript.text.done"), **whole_text})),
    }


def _speech(facts: Facts) -> Schema:
    usual = "mp3" if "mp3" in facts.formats else "wav"
    return body(
        {
            "input": string("The text to say.", 1, facts.limits.speech_characters),
            "model": name("The model that speaks, under its own name or one of OpenAI's; it may be left out."),
            "voice": either("Who says it; the default voice if absent.", string(), record({"id": string()})),
            "speed": number("1 is the voice's own.", *limits.SPEEDS, 1),
            "response_format": choice("What the sound is packed in; `pcm` is 16 bit, 24 kHz.", facts.formats, usual),
            "stream_format": choice("Bytes of the file, or events.", ("audio", "sse"), "audio"),
            "seed": whole("The same seed gives the same sound.", 0, limits.LARGEST_SEED, 0),
            "language": name(
                "What is spoken, as `en` or `english`, by a model of several languages; it finds out if absent."
            ),
            "instructions": string(
                "How to say it, in plain words; without effect on a voice that takes none.",
                *(1, limits.INSTRUCTION_CHARACTERS),
            ),
            **lane(salt=False),
            **without_effect(speech_request.HARMLESS),
        },
        ["input"],
    )


def _transcription() -> Schema:
    return body(
        {
            "file": binary("The recording."),
            "model": name("The model that listens, under its own name or one of OpenAI's; it may be left out."),
            "language": name("What is spoken, as `en` or `en-US`; the model decides if absent."),
            "response_format": choice("What the words come in.", get_args(TranscriptFormat), "json"),
            "stream": flag("Send the words as events, as `json` or `text`.", usual=False),
            "timestamp_granularities[]": listing(
                choice("", ("word", "segment")), "Which times to tell; only with `verbose_json`."
            ),
            **lane(),
            "prompt": string("Accepted, without effect: our models take no prompt.", 1, limits.FORM_FIELD_BYTES),
            "temperature": number("Accepted, without effect: the likeliest words are written.", 0, 1),
            **without_effect(transcription_request.HARMLESS),
        },
        ["file"],
    )


def _verbose(usage: Schema) -> Schema:
    times = {"start": number("In seconds."), "end": number("In seconds.")}
    segment = {
        "id": whole("Its number, from 0."),
        "seek": whole("Its start, in hundredths of a second."),
        **times,
        "text": string(),
        "tokens": listing({}, "Always empty.", most=0),
        "temperature": number("Always 0."),
        "avg_logprob": number("How sure the model was: 0 is certain."),
        "compression_ratio": number("High where the same words come again and again."),
        "no_speech_prob": number("How likely nobody speaks."),
    }
    return record(
        {
            "task": fixed("transcribe"),
            "language": string("As `en`; empty if nothing was said."),
            "duration": number("Length of the recording, in seconds."),
            "text": string(),
            "words": listing(record({"word": string(), **times}), "Where the times of words were asked for."),
            "segments": listing(record(segment), "Unless only the times of words were asked for."),
            "usage": usage,
        },
        ("words", "segments"),
    )
