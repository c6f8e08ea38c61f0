"""A voice for conversations: what is said aloud, as loud as a test wants it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from voxlane.codecs.resample import resample
from voxlane.engine.api import LISTEN_RATE


@pytest.fixture(scope="session")
def said() -> Callable[[str, float], np.ndarray]:
    """Return what says a text at 16 kHz; the root mean square of its loud part has so many decibels of full scale."""
    from voxlane.engine.models.hibari.model import Hibari  # only here: most tests need no voice

    voice = Hibari()

    def say(text: str, db: float) -> np.ndarray:
        speech = voice.synthesise(voice.prepare(text))
        sound = np.asarray(resample(speech.samples, voice.sample_rate, LISTEN_RATE))
        loud = sound[sound**2 > (sound**2).max() * 1e-3]
        return (sound * 10 ** (db / 20) / np.sqrt((loud**2).mean())).astype(np.float32)

    return say
