"""The body of POST /v1/audio/speech: its description, and what it means for the engine. Pure.

`instructions` change voices that can be told how to speak, and no others, as with OpenAI's older models. To a
speech-to-speech model they describe who reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta

from voxlane.codecs.encode import SpeechFormat
from voxlane.codecs.extras import install_command
from voxlane.engine.api import (
    MAX_PRONUNCIATIONS,
    BadPronunciation,
    Priority,
    SpeakParams,
    has_phonemes,
    read_pronunciations,
)
from voxlane.server import limits
from voxlane.server.api.bodies import Body, Deadline, Ignored, Name, PriorityName, read_body, wrong
from voxlane.server.audio.voices import find_voice, language_named, names
from voxlane.server.config import PRIORITIES
from voxlane.server.errors import UnsupportedParameter


def usual_format(there: Sequence[SpeechFormat]) -> SpeechFormat:
    """Return OpenAI's default, or the next best thing that can be written here."""
    return "mp3" if "mp3" in there else "wav"


class OwnVoice(Body, forbid_unknown_fields=False):
    """A voice of one's own, as OpenAI names it."""

    id: str


class SpeechBody(Body):
    """A text, and how to say it."""

    input: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=limits.SPEECH_CHARACTERS,
            description="The text to say; a thousand digits, and beyond that a sixth of the text.",
        ),
    ]
    model: (
        Annotated[
            Name,
            Meta(description="The model that speaks, under its own name or one of OpenAI's; it may be left out."),
        ]
        | None
    ) = None
    voice: Annotated[str | OwnVoice | None, Meta(description="The voice; the default one if absent.")] = None
    speed: Annotated[float, Meta(ge=limits.SPEEDS[0], le=limits.SPEEDS[1], description="1 is the voice's own.")] = 1.0
    response_format: (
        Annotated[SpeechFormat, Meta(description="What the sound is packed in; `pcm` is 16 bit, 24 kHz.")] | None
    ) = None
    stream_format: Annotated[Literal["audio", "sse"], Meta(description="Bytes of the file, or events.")] = "audio"
    seed: Annotated[int, Meta(ge=0, le=limits.LARGEST_SEED, description="The same seed gives the same sound.")] = 0
    language: (
        Annotated[
            Name,
            Meta(
                description="What is spoken, as `en` or `english`, by a model of several languages; it finds out if"
                " absent."
            ),
        ]
        | None
    ) = None
    instructions: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=limits.INSTRUCTION_CHARACTERS,
                description="How to say it, in plain words; without effect on a voice that takes none.",
            ),
        ]
        | None
    ) = None
    pronunciations: (
        Annotated[
            tuple[str, ...],
            Meta(
                max_length=MAX_PRONUNCIATIONS,
                description="How names are said, as `Siobhan = shiv-awn` or `Siobhan = /ʃɪˈvɔːn/`; if absent, as the"
                " server's configuration says.",
            ),
        ]
        | None
    ) = None
    priority: PriorityName = "normal"
    deadline_ms: Deadline | None = None
    safety_identifier: Ignored = None
    user: Ignored = None


@dataclass(frozen=True, slots=True)
class SpeechRequest:
    """A speech request in the engine's values."""

    model: str | None
    text: str
    speak: SpeakParams
    response_format: SpeechFormat
    events: bool
    priority: Priority
    deadline_s: float | None


def parse(
    values: Mapping[str, Any],
    most_characters: int,
    voices: Sequence[str],
    formats: Sequence[SpeechFormat],
    languages: Sequence[str] = (),
    *,
    instructed: bool = False,
    one_pace: bool = False,
    respells_only: bool = False,
    one_voice: bool = False,
    pronunciations: tuple[str, ...] = (),
) -> SpeechRequest:
    """Return the request in a JSON object, or raise an error that names the parameter.

    `most_characters` is the operator's limit. `languages` are those that can be asked for, if any. `instructed`: the
    voice follows instructions. `one_pace`: the voice has one speed. `respells_only`: the voice takes no phonemes.
    `one_voice`: the model has no voices to choose from. `pronunciations` are those of a request without any.
    """
    body = read_body(SpeechBody, values)
    if len(body.input) > most_characters:
        raise wrong("input", f"must be a string of 1 to {most_characters} characters")
    share = max(limits.SPEECH_DIGITS, len(body.input) // limits.DIGIT_CHARACTERS)
    most_digits = max(1, min(most_characters // limits.DIGIT_CHARACTERS, share))
    if sum(map(str.isdigit, body.input)) > most_digits:
        raise wrong("input", f"must have at most {most_digits} digits at this length: each is said as a word")
    if one_pace and body.speed != 1:
        raise wrong("speed", "must be 1: this voice has one pace")
    return SpeechRequest(
        model=body.model,
        text=body.input,
        speak=SpeakParams(
            voice=_voice(body.voice, voices, one_voice=one_voice),
            speed=body.speed,
            seed=body.seed,
            language=_language(body.language, languages),
            instructions=(body.instructions or "") if instructed else "",
            pronunciations=_pronunciations(body.pronunciations, pronunciations, respells_only=respells_only),
        ),
        response_format=_format(body.response_format, formats),
        events=body.stream_format == "sse",
        priority=PRIORITIES[body.priority],
        deadline_s=None if body.deadline_ms is None else body.deadline_ms / 1000,
    )


def _format(asked: SpeechFormat | None, formats: Sequence[SpeechFormat]) -> SpeechFormat:
    if asked is None:
        return usual_format(formats)
    if asked not in formats:
        hint = f"{asked} needs PyAV on the server: {install_command('opus')}. Without it: {', '.join(formats)}."
        raise UnsupportedParameter(hint, param="response_format")
    return asked


def _pronunciations(asked: tuple[str, ...] | None, usual: tuple[str, ...], *, respells_only: bool) -> tuple[str, ...]:
    if asked is None:
        return usual
    try:
        read_pronunciations(asked)
    except BadPronunciation as error:
        raise wrong("pronunciations", f"cannot be used: {error}") from error
    if respells_only and has_phonemes(asked):
        raise wrong("pronunciations", "must be respellings in plain letters: this voice takes no phonemes")
    return asked


def _language(asked: str | None, languages: Sequence[str]) -> str:
    language = language_named(asked or "")
    if asked is not None and language not in languages:
        there = f"must be one of {', '.join(languages)}" if languages else "is not for this voice: it has one language"
        raise wrong("language", there)
    return language


def _voice(asked: str | OwnVoice | None, voices: Sequence[str], *, one_voice: bool) -> str:
    name = asked.id if isinstance(asked, OwnVoice) else asked
    if name is None:
        return ""
    found = find_voice(name, voices)
    if found is None and one_voice:
        raise wrong("voice", "must be left out: this model has no voices to choose from; instructions describe one")
    if found is None:
        raise wrong("voice", f"must be one of {names(voices)}" if voices else "does not exist: none has been made yet")
    return found
