"""The form of POST /v1/audio/transcriptions into one checked value.

Every parameter is honoured, known to be harmless, or refused by name. `prompt` and `temperature` are among the harmless
ones: our models take no prompt and always write the likeliest words. It does not know audio.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal, cast, get_args

from voxlane.engine.api import Priority
from voxlane.server import limits
from voxlane.server.api.fields import FormFields, wrong
from voxlane.server.config import PRIORITIES
from voxlane.server.errors import UnsupportedParameter

TranscriptFormat = Literal["json", "text", "srt", "verbose_json", "vtt"]

HARMLESS = frozenset({"user", "safety_identifier"})
UNSUPPORTED = frozenset(
    {"include", "chunking_strategy", "keywords", "languages", "known_speaker_names", "known_speaker_references"}
)
_NEUTRAL: dict[str, tuple[object, ...]] = {"chunking_strategy": (["auto"],)}


@dataclass(frozen=True, slots=True)
class TranscriptionRequest:
    """What a client asks for, beside the audio."""

    model: str | None
    language: str  # "": the model decides
    response_format: TranscriptFormat
    stream: bool
    segments: bool
    words: bool
    priority: Priority
    deadline_s: float | None
    tenant: str


def parse(parts: Iterable[tuple[str, str]], languages: Collection[str]) -> TranscriptionRequest:
    """Return the request in a form's fields, or raise an error that names the parameter."""
    fields = FormFields(parts)
    fields.text("prompt", limits.FORM_FIELD_BYTES)
    fields.number("temperature", 0, 1)
    response_format = cast(
        TranscriptFormat, fields.choice("response_format", get_args(TranscriptFormat)) or get_args(TranscriptFormat)[0]
    )
    times = fields.several("timestamp_granularities", ("word", "segment"))
    request = TranscriptionRequest(
        model=fields.text("model"),
        language=_language(fields.text("language"), languages),
        response_format=response_format,
        stream=fields.flag("stream"),
        segments="segment" in times or not times,
        # Subtitles are cut between words, so they need to know when each was said.
        words="word" in times or response_format in ("srt", "vtt"),
        priority=PRIORITIES[fields.choice("priority", PRIORITIES) or "normal"],
        deadline_s=fields.seconds("deadline_ms", 1, 3_600_000),
        tenant=fields.text("cache_salt") or "",
    )
    if times and response_format != "verbose_json":
        raise wrong("timestamp_granularities[]", "needs response_format verbose_json")
    if request.stream and response_format not in ("json", "text"):
        raise UnsupportedParameter(f"A stream cannot be {response_format}, only json or text.", param="stream")
    fields.refuse_the_rest(harmless=HARMLESS, unsupported=UNSUPPORTED, neutral=_NEUTRAL)
    return request


def _language(asked: str | None, languages: Collection[str]) -> str:
    """Return the language as the model knows it; "en-US" is English too."""
    if asked is None:
        return ""
    code = asked.replace("_", "-").partition("-")[0].lower()
    if code not in languages:
        raise wrong("language", f"must be one of {', '.join(languages)}: the model here understands nothing else")
    return code
