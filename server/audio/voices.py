"""Which voice and which language are meant by a name, and what a model is called outside. Pure.

Programs written for OpenAI must name one of its voices. Those names are taken for our voice of that name where the
model has one (`alloy` is Kokoro's `af_alloy`), and for the default voice otherwise. Any other name must be one of ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

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
    """Return a language by the engine's name for it: "en-US" is English."""
    code = asked.replace("_", "-").partition("-")[0].lower()
    return _LANGUAGES.get(code, asked.lower())


def find_voice(asked: str, voices: Sequence[str]) -> str | None:
    """Return which of `voices` is meant, "" for the default one, or None if there is none of that name."""
    if asked in voices:
        return asked
    if asked not in OPENAI_VOICES:
        return None
    return next((voice for voice in voices if voice.endswith(f"_{asked}")), "")


def names(voices: Sequence[str], most: int = 12) -> str:
    """Return the voices as a person would list them."""
    more = f" and {len(voices) - most} more" if len(voices) > most else ""
    return ", ".join(voices[:most]) + more


def served_name(model: str) -> str:
    """Return what a model is called outside: where its file lies on this machine is nobody's business."""
    return model if model.startswith("hf:") else PurePath(model).name.removesuffix(".gguf") or model
