"""Voice activity detectors for 16 kHz sound, one state per stream: WebRTC's is quick, Silero's is careful."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import webrtcvad
from numpy.typing import NDArray

from voxlane.codecs import silero

RATE = 16_000
FRAME_SAMPLES = silero.FRAME_SAMPLES
"""32 ms: Silero's frame."""

GATE_SAMPLES = 160
"""10 ms: the frame of WebRTC's detector, which takes about 4 µs."""


class Voicing:
    """Silero's detector for one stream."""

    def __init__(self) -> None:
        self._network = silero.network()
        self._memory = silero.SileroState()
        self._rest: NDArray[np.float32] = np.zeros(0, np.float32)

    def __call__(self, samples: NDArray[np.float32]) -> list[float]:
        """Return the probability of speech in every frame of 512 samples that this audio completes."""
        joined = np.concatenate([self._rest, samples]) if len(self._rest) else samples
        whole = len(joined) // FRAME_SAMPLES * FRAME_SAMPLES
        self._rest = joined[whole:].copy()
        starts = range(0, whole, FRAME_SAMPLES)
        return [silero.probability(self._network, joined[at : at + FRAME_SAMPLES], self._memory) for at in starts]


def voice_gate(strictness: int) -> Callable[[bytes], bool]:
    """Return WebRTC's detector for one stream: whether 10 ms of PCM16 may be a voice.

    `strictness` goes from 0, which accepts almost everything, to 3.
    """
    detector = webrtcvad.Vad(strictness)
    return lambda frame: bool(detector.is_speech(frame, RATE))
