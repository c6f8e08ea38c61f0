"""Descriptions of the speech and transcription endpoints: their requests and answers."""

from __future__ import annotations

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
    body_schemas,
    choice,
    either,
    enumerated,
    events,
    fixed,
    form_schemas,
    listing,
    media,
    number,
    operation,
    record,
    ref,
    request_body,
    string,
    whole,
)
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


_TRANSLATION = """Only a model that can translate does: a multilingual Whisper whose decoder was not cut down, as
`whisper-base`. Others answer 404, with the model's name. The files are those of `/v1/audio/transcriptions`."""

_TRANSLATION_EXAMPLES: dict[str, Schema] = {
    "In English": {"file": "@speech.wav"},
    "With the times of its parts": {"file": "@speech.wav", "response_format": "verbose_json"},
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
    written = {name: words[name] for name in (JSON, "text/plain", "text/vtt")}
    translation = operation(
        "createTranslation",
        "Audio",
        "Audio in any language to English text, OpenAI's protocol",
        _TRANSLATION,
        {"200": answer("The words, in the format that was asked for.", **written)},
        (*READING, BadAudio, *WORKING),
        request=request_body("multipart/form-data", "TranslationRequest", _TRANSLATION_EXAMPLES),
    )
    return {
        "/v1/audio/speech": {"post": speech},
        "/v1/audio/transcriptions": {"post": transcription},
        "/v1/audio/translations": {"post": translation},
    }


def schemas(facts: Facts) -> dict[str, Schema]:
    """Return the schemas of requests and answers."""
    tokens = {"input_tokens": whole(""), "output_tokens": whole(""), "total_tokens": whole("")}
    usage = record({"type": fixed("duration"), "seconds": number("Length of the recording.")})
    delta = record({"type": fixed("speech.audio.delta"), "audio": string("Base64 of the next bytes of the file.")})
    text = record({"type": fixed("transcript.text.delta"), "delta": string("The next words; they will not change.")})
    whole_text = {"text": string("All of it."), "usage": record({"type": fixed("tokens"), **tokens})}
    return {
        **_speech(facts),
        "SpeechEvent": either("", delta, record({"type": fixed("speech.audio.done"), "usage": record(tokens)})),
        **form_schemas("TranscriptionRequest", transcription_request.TranscriptionBody, "file", "The recording."),
        **form_schemas("TranslationRequest", transcription_request.TranslationBody, "file", "The recording."),
        "Transcription": record({"text": string(), "usage": usage}),
        "VerboseTranscription": _verbose(usage),
        "TranscriptEvent": either("", text, record({"type": fixed("transcript.text.done"), **whole_text})),
    }


def _speech(facts: Facts) -> dict[str, Schema]:
    """Return the schemas of a speech request, with this server's limit and formats."""
    schemas = body_schemas("SpeechRequest", speech_request.SpeechBody)
    properties = schemas["SpeechRequest"]["properties"]
    usual = "mp3" if "mp3" in facts.formats else "wav"
    properties["input"]["maxLength"] = facts.limits.speech_characters
    properties["response_format"] |= {"enum": list(facts.formats), "default": usual}
    return schemas


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
        "no_speech_prob": number("How likely there is no speech."),
    }
    return record(
        {
            "task": choice("", ("transcribe", "translate")),
            "language": string("Its English name, as `english`; empty if nothing was said."),
            "duration": number("Length of the recording, in seconds."),
            "text": string(),
            "words": listing(record({"word": string(), **times}), "Where the times of words were asked for."),
            "segments": listing(record(segment), "Unless only the times of words were asked for."),
            "usage": usage,
        },
        ("words", "segments"),
    )
