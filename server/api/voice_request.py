"""The form of POST /v1/audio/voices: its description, and what it means for the engine. Pure.

The names are those of OpenAI's custom voices. There, `consent` names a recording in which the person agrees; here it is
`true`, and the sender vouches for that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta

from voxlane.engine.api import CLIP_TEXT_CHARS
from voxlane.server import limits
from voxlane.server.api.bodies import Body, Ignored, Name, read_fields, wrong
from voxlane.server.audio.voices import OPENAI_VOICES, language_named

UNSUPPORTED = frozenset({"prompt", "model", "script_hint"})
"""Parameters of OpenAI's for a voice that is described in words; we do not honour them."""

NAME_RULE = (
    f"must be 1 to {limits.VOICE_NAME_CHARACTERS} letters, digits, spaces, '_', '-' or '.', and begin with one of the"
    " first two"
)
CONSENT_RULE = (
    "must be true: by that you say that the person who is heard in audio_sample has agreed that their voice is imitated"
)
TEXT_RULE = f"must be what is said in audio_sample, in at most {CLIP_TEXT_CHARS} characters, or be left out"


class VoiceBody(Body):
    """A voice to be made; the recording is the form's file."""

    # Not a flag, so that only the word itself is consent: not 1, and not the id that OpenAI's clients send.
    consent: Annotated[
        Any,
        Meta(
            description="Must be true: the person who is heard agrees.",
            extra_json_schema={"type": "boolean", "const": True},
            extra={"rule": CONSENT_RULE},
        ),
    ]
    name: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=limits.VOICE_NAME_CHARACTERS,
            pattern=r"^[^\W_][\w .\-]*(?<! )$(?!\n)",
            description="What the voice is asked for by.",
            extra={"rule": NAME_RULE},
        ),
    ]
    text: Annotated[
        str,
        Meta(
            max_length=CLIP_TEXT_CHARS,
            description="What is said there: the voice then speaks in that manner too.",
            extra={"rule": TEXT_RULE},
        ),
    ] = ""
    language: (
        Annotated[
            Name, Meta(description="What the voice will speak, as `en` or `english`; decided by each text if absent.")
        ]
        | None
    ) = None
    type: Annotated[Literal["audio_sample"], Meta(description="How the voice is made.")] = "audio_sample"
    safety_identifier: Ignored = None
    user: Ignored = None


@dataclass(frozen=True, slots=True)
class VoiceRequest:
    """A voice request in the engine's values, without the recording."""

    name: str
    text: str  # said in the recording; "": not known
    language: str  # by the engine's names; "": left to the text


def parse(parts: Iterable[tuple[str, str]], taken: Collection[str], languages: Collection[str] = ()) -> VoiceRequest:
    """Return the request in a form's fields, or raise an error that names the parameter.

    `taken` are names of the model's own voices. `languages` are those that can be asked for; if there are none, the
    engine decides.
    """
    body = read_fields(VoiceBody, parts, UNSUPPORTED)
    if str(body.consent).lower() != "true":
        raise wrong("consent", CONSENT_RULE)
    if body.name in taken:
        raise wrong("name", "is the name of a voice that was not made here")
    if body.name.rpartition("_")[2] in OPENAI_VOICES:  # as `alloy` is `af_alloy`: find_voice
        raise wrong("name", "is one that programs mean another voice by: it is OpenAI's, or ends with such a one")
    language = language_named(body.language or "")
    if language and languages and language not in languages:
        raise wrong("language", f"must be one of {', '.join(sorted(languages))}")
    return VoiceRequest(body.name, body.text, language)
