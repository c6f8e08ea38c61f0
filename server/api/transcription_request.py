"""The forms of POST /v1/audio/transcriptions and /v1/audio/translations, and what they mean for the engine. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta, field

from voxlane.engine.api import Priority
from voxlane.server import limits
from voxlane.server.api.bodies import (
    Body,
    CacheSalt,
    Deadline,
    Ignored,
    Name,
    PriorityName,
    read_fields,
    wrong,
)
from voxlane.server.audio.languages import code_of_language
from voxlane.server.config import PRIORITIES
from voxlane.server.errors import UnsupportedParameter

TranscriptFormat = Literal["json", "text", "srt", "verbose_json", "vtt"]

UNSUPPORTED = frozenset(
    {"include", "chunking_strategy", "keywords", "languages", "known_speaker_names", "known_speaker_references"}
)
"""Parameters of OpenAI's that we know and do not honour; their neutral values are let through."""

_NEUTRAL: dict[str, tuple[object, ...]] = {"chunking_strategy": ("auto",)}


Expected = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=limits.FORM_FIELD_BYTES,
        description="Names and rare words to expect, with commas between them. Whisper only.",
    ),
]
Unused = Annotated[float, Meta(ge=0, le=1, description="Accepted, without effect: the likeliest words are written.")]


class TranscriptionBody(Body):
    """How to write down a recording; the recording itself is the form's file."""

    model: (
        Annotated[
            Name,
            Meta(description="The model that listens, under its own name or one of OpenAI's; it may be left out."),
        ]
        | None
    ) = None
    language: (
        Annotated[Name, Meta(description="What is spoken, as `en`, `en-US` or `english`; the model decides if absent.")]
        | None
    ) = None
    response_format: Annotated[TranscriptFormat, Meta(description="What the words come in.")] = "json"
    stream: Annotated[bool, Meta(description="Send the words as events, as `json` or `text`.")] = False
    timestamp_granularities: Annotated[
        list[Literal["word", "segment"]], Meta(description="Which times to tell; only with `verbose_json`.")
    ] = field(name="timestamp_granularities[]", default_factory=list)
    priority: PriorityName = "normal"
    deadline_ms: Deadline | None = None
    cache_salt: CacheSalt | None = None
    prompt: Expected | None = None
    temperature: Unused | None = None
    safety_identifier: Ignored = None
    user: Ignored = None


class TranslationBody(Body):
    """How to write down a recording in English; the recording itself is the form's file."""

    model: (
        Annotated[
            Name,
            Meta(description="The model that listens, under its own name or one of OpenAI's; it may be left out."),
        ]
        | None
    ) = None
    response_format: Annotated[TranscriptFormat, Meta(description="What the words come in.")] = "json"
    priority: PriorityName = "normal"
    deadline_ms: Deadline | None = None
    cache_salt: CacheSalt | None = None
    prompt: Expected | None = None
    temperature: Unused | None = None


@dataclass(frozen=True, slots=True)
class TranscriptionRequest:
    """A transcription request in the engine's values, without the audio."""

    model: str | None
    language: str  # "": the model decides
    response_format: TranscriptFormat
    stream: bool
    segments: bool
    words: bool
    priority: Priority
    deadline_s: float | None
    cache_salt: str  # what the client adds to its tenant's
    hot_words: tuple[str, ...] = ()
    translate: bool = False  # into English


def parse(
    parts: Iterable[tuple[str, str]], languages: Collection[str], *, only_writes: bool = False
) -> TranscriptionRequest:
    """Return the request in a form's fields, or raise an error that names the parameter.

    A model that `only_writes` takes no directions, and does not know when a word was said.
    """
    body = read_fields(TranscriptionBody, parts, UNSUPPORTED, _NEUTRAL)
    times = body.timestamp_granularities
    if times and body.response_format != "verbose_json":
        raise wrong("timestamp_granularities[]", "needs response_format verbose_json")
    if only_writes and "word" in times:
        raise UnsupportedParameter("This model does not tell when a word was said.", param="timestamp_granularities[]")
    if only_writes and body.language is not None:
        raise wrong("language", "must be left out: this model decides itself what is spoken")
    if body.stream and body.response_format not in ("json", "text"):
        raise UnsupportedParameter(f"A stream cannot be {body.response_format}, only json or text.", param="stream")
    return TranscriptionRequest(
        model=body.model,
        language=_language(body.language, languages),
        response_format=body.response_format,
        stream=body.stream,
        segments="segment" in times or not times,
        # Subtitles are cut between words, so they need the time of each word; without times there is one of them.
        words="word" in times or (body.response_format in ("srt", "vtt") and not only_writes),
        hot_words=() if only_writes else _hot_words(body.prompt),
        priority=PRIORITIES[body.priority],
        deadline_s=None if body.deadline_ms is None else body.deadline_ms / 1000,
        cache_salt=body.cache_salt or "",
    )


def parse_translation(parts: Iterable[tuple[str, str]], languages: Collection[str]) -> TranscriptionRequest:
    """Return the request in the fields of a form for a translation: the spoken language is found out."""
    body = read_fields(TranslationBody, parts)
    return TranscriptionRequest(
        model=body.model,
        language="",
        response_format=body.response_format,
        stream=False,
        segments=True,
        words=body.response_format in ("srt", "vtt"),
        hot_words=_hot_words(body.prompt),
        priority=PRIORITIES[body.priority],
        deadline_s=None if body.deadline_ms is None else body.deadline_ms / 1000,
        cache_salt=body.cache_salt or "",
        translate=True,
    )


def _hot_words(prompt: str | None) -> tuple[str, ...]:
    return tuple(filter(None, (part.strip(" .") for part in re.split(r"[,;\n]", prompt or ""))))


def _language(asked: str | None, languages: Collection[str]) -> str:
    """Return the language as the model knows it; "en-US" and "english" are English too."""
    if asked is None:
        return ""
    code = code_of_language(asked)
    if code not in languages:
        raise wrong("language", f"must be one of {', '.join(languages)}: the model here understands nothing else")
    return code
