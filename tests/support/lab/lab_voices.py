"""A voice for the lab's corpus that needs no model: syllables of a hum, one for each vowel group of a word."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np

from voxlane_lab.sounds.corpus import Corpus
from voxlane_lab.sounds.speech import Rendition
from voxlane_lab.sounds.voices import Say
from voxlane_lab.values import WordSpan

RATE = 24_000
SYLLABLE_S, BETWEEN_S = 0.12, 0.04


def syllable(pitch: float) -> np.ndarray:
    """Return one syllable."""
    time_s = np.arange(round(SYLLABLE_S * RATE)) / RATE
    tone = sum(np.sin(2 * np.pi * pitch * number * time_s) / number for number in range(1, 12))
    return 0.1 * tone * np.sin(np.pi * time_s / SYLLABLE_S) ** 0.3


def spoken(text: str, voice: str) -> Rendition:
    """Return a text in a voice whose pitch is made of its name."""
    pitch = 100.0 + sum(voice.encode()) % 120
    parts: list[np.ndarray] = []
    words: list[WordSpan] = []
    at = 0
    for word in re.finditer(r"\S+", text):
        count = max(1, len(re.findall(r"[aeiouy]+", word[0].lower())))
        sound = np.concatenate([syllable(pitch + 5 * number) for number in range(count)])
        words.append(WordSpan(word.start(), word.end(), at, at + len(sound)))
        gap = np.zeros(round(BETWEEN_S * RATE))
        parts += [sound, gap]
        at += len(sound) + len(gap)
    return Rendition(np.rint(np.concatenate(parts) * 32767).astype(np.int16), RATE, tuple(words))


@asynccontextmanager
async def hums() -> AsyncIterator[Say]:
    """Speak without a model."""

    async def say(text: str, voice: str) -> Rendition:
        return spoken(text, voice)

    yield say


def humming_corpus(folder: Path) -> Corpus:
    """Return a corpus whose voices hum."""
    return Corpus(folder, hums)
