"""The body of POST /v1/audio/speech into one checked value.

Every parameter is honoured, known to be harmless, or refused by name. `instructions` are followed by voices that can be
told how to speak, and else without effect, as they are with OpenAI's older models. It knows JSON and OpenAI's
vocabulary; it does not know the engine's state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from voxlane.codecs.encode import SpeechFormat
from voxlane.engine.api import Priority, SpeakParams
from voxlane.server import limits
from voxlane.server.api.fields import RequestFields, wrong
from voxlane.server.audio.speech_file import CONTENT_TYPES
from voxlane.server.audio.voices import find_voice, language_named, names
from voxlane.server.config import PRIORITIES
from voxlane.server.errors import UnsupportedParameter

HARMLESS = frozenset({"user", "safety_identifier"})


@dataclass(frozen=True, slots=True)
class SpeechRequest:
    """What a client asks for."""

    model: str | None
    text: str
    speak: SpeakParams
    response_format: SpeechFormat
    events: bool
    priority: Priority
    deadline_s: float | None


def parse(
    body: Mapping[str, Any],
    most_characters: int,
    voices: Sequence[str],
    formats: Sequence[SpeechFormat],
    languages: Sequence[str] = (),
    *,
    instructed: bool = False,
    one_pace: bool = False,
) -> SpeechRequest:
    """Return the request in `body`, or raise an error that names the parameter.

    `languages` are those that can be asked for, if any; `instructed`: the voice follows instructions; `one_pace`: it
    knows no other.
    """
    fields = RequestFields(body)
    text = fields.text("input", most_characters)
    if text is None:
        raise wrong("input", f"must be a string of 1 to {most_characters} characters")
    speed = fields.number("speed", *limits.SPEEDS)
    if one_pace and speed not in (None, 1):
        raise wrong("speed", "must be 1: this voice has one pace")
    instructions = fields.text("instructions", limits.INSTRUCTION_CHARACTERS) or ""
    request = SpeechRequest(
        model=fields.text("model"),
        text=text,
        speak=SpeakParams(
            voice=_voice(fields.take("voice"), voices),
            speed=1.0 if speed is None else speed,
            seed=fields.whole("seed", 0, limits.LARGEST_SEED) or 0,
            language=_language(fields.text("language"), languages),
            instructions=instructions if instructed else "",
        ),
        response_format=_format(fields.choice("response_format", CONTENT_TYPES), formats),
        events=fields.choice("stream_format", ("audio", "sse")) == "sse",
        priority=PRIORITIES[fields.choice("priority", PRIORITIES) or "normal"],
        deadline_s=fields.seconds("deadline_ms", 1, 3_600_000),
    )
    fields.refuse_the_rest(harmless=HARMLESS, unsupported=())
    return request


def _format(asked: str | None, formats: Sequence[SpeechFormat]) -> SpeechFormat:
    if asked is None:
        # OpenAI's default, or the next best thing that can be written here.
        return "mp3" if "mp3" in formats else "wav"
    if asked not in formats:
        hint = f"{asked} needs PyAV on the server: pip install -e '.[opus]'. Without it: {', '.join(formats)}."
        raise UnsupportedParameter(hint, param="response_format")
    return cast(SpeechFormat, asked)


def _language(asked: str | None, languages: Sequence[str]) -> str:
    language = language_named(asked or "")
    if asked is not None and language not in languages:
        there = f"must be one of {', '.join(languages)}" if languages else "is not for this voice: it has one language"
        raise wrong("language", there)
    return language


def _voice(asked: Any, voices: Sequence[str]) -> str:
    if isinstance(asked, dict):  # OpenAI's way to name a voice of one's own
        asked = asked.get("id")
    if asked is None:
        return ""
    found = find_voice(asked, voices) if isinstance(asked, str) else None
    if found is None:
        raise wrong("voice", f"must be one of {names(voices)}" if voices else "is nobody's: none has been made yet")
    return found
