"""Look up voices and languages by name, and name models for clients. Pure.

Programs written for OpenAI must name one of its voices. Such a name means our voice of that name if the model has one
(`alloy` is Kokoro's `af_alloy`), and otherwise the default voice. Any other name must be one of ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from voxlane.engine.api import has_phonemes

OPENAI_VOICES = frozenset(
    {
        "alloy", "ash", "ballad", "cedar", "coral", "echo", "fable", "marin", "nova", "onyx", "sage", "shimmer",
        "verse",
    }
)  # fmt: skip

_LANGUAGES = {
    "zh": "chinese", "en": "english", "ja": "japanese", "ko": "korean", "de": "german", "fr": "french",
    "ru": "russian", "pt": "portuguese", "es": "spanish", "it": "italian",
}  # fmt: skip


def language_named(asked: str) -> str:
    """Return the engine's name for a language: "english" for "en-US"."""
    code = asked.replace("_", "-").partition("-")[0].lower()
    return _LANGUAGES.get(code, asked.lower())


def find_voice(asked: str, voices: Sequence[str]) -> str | None:
    """Return the voice of `voices` that is meant, "" for the default voice, or None if no voice has that name."""
    if asked in voices:
        return asked
    if asked not in OPENAI_VOICES:
        return None
    return next((voice for voice in voices if voice.endswith(f"_{asked}")), "")


def sayable(pronunciations: tuple[str, ...], *, respells_only: bool) -> tuple[str, ...]:
    """Return the operator's entries that a voice can follow: one that takes respellings only gets no phonemes."""
    return tuple(entry for entry in pronunciations if not (respells_only and has_phonemes((entry,))))


def names(voices: Sequence[str], most: int = 12) -> str:
    """Return at most `most` voices as a list for a sentence."""
    more = f" and {len(voices) - most} more" if len(voices) > most else ""
    return ", ".join(voices[:most]) + more


def served_name(model: str) -> str:
    """Return a model's name for clients: without the folder that its file lies in."""
    return model if model.startswith("hf:") else PurePath(model).name.removesuffix(".gguf") or model
