"""The form of POST /v1/audio/voices into one checked value.

The names are those of OpenAI's custom voices. There, `consent` names a recording in which the person agrees; here it is
`true`, and whoever sends it vouches for that. It does not know audio, nor which voices there are.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from voxlane.engine.api import CLIP_TEXT_CHARS
from voxlane.server import limits
from voxlane.server.api.fields import FormFields, wrong
from voxlane.server.audio.voices import OPENAI_VOICES, language_named

HARMLESS = frozenset({"user", "safety_identifier"})
UNSUPPORTED = frozenset({"prompt", "model", "script_hint"})
"""OpenAI's way to a voice that nobody has."""

NAME_RULE = (
    f"must be 1 to {limits.VOICE_NAME_CHARACTERS} letters, digits, spaces, '_', '-' or '.', and begin with one of the"
    " first two"
)
CONSENT_RULE = (
    "must be true: by that you say that the person who is heard in audio_sample has agreed that their voice is imitated"
)
TEXT_RULE = f"must be what is said in audio_sample, in at most {CLIP_TEXT_CHARS} characters, or be left out"

_NAME = re.compile(rf"[^\W_][\w .-]{{0,{limits.VOICE_NAME_CHARACTERS - 1}}}(?<! )")


@dataclass(frozen=True, slots=True)
class VoiceRequest:
    """What a client asks for, beside the recording."""

    name: str
    text: str  # said in the recording; "": not known
    language: str  # by the engine's names; "": left to the text


def parse(parts: Iterable[tuple[str, str]], taken: Collection[str], languages: Collection[str] = ()) -> VoiceRequest:
    """Return the request in a form's fields, or raise an error that names the parameter.

    `taken` names are others'; `languages` are those that can be asked for, none if that is the engine's to say.
    """
    fields = FormFields(parts)
    if not _agreed(fields):
        raise wrong("consent", CONSENT_RULE)
    name = fields.take("name")
    if name is None or not _NAME.fullmatch(name):
        raise wrong("name", NAME_RULE)
    if name in taken:
        raise wrong("name", "is the name of a voice that was not made here")
    if name.rpartition("_")[2] in OPENAI_VOICES:  # as `alloy` is `af_alloy`: find_voice
        raise wrong("name", "is one that programs mean another voice by: it is OpenAI's, or ends with such a one")
    text = fields.take("text") or ""
    if len(text) > CLIP_TEXT_CHARS:
        raise wrong("text", f"{TEXT_RULE}: it has {len(text)}")
    language = language_named(fields.text("language") or "")
    if language and languages and language not in languages:
        raise wrong("language", f"must be one of {', '.join(sorted(languages))}")
    fields.choice("type", ("audio_sample",))
    fields.refuse_the_rest(harmless=HARMLESS, unsupported=UNSUPPORTED)
    return VoiceRequest(name, text, language)


def _agreed(fields: FormFields) -> bool:
    """Return whether consent is given in so many words; anything else, another server's consent too, is none."""
    value = fields.take("consent")
    return value is not None and value.lower() == "true"
