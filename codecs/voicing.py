"""Whether a short piece of sound is a voice: WebRTC's quick detector and Silero's careful one, one state per stream.

It knows samples at 16 kHz; what follows from an answer is for those who ask.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import webrtcvad
from numpy.typing import NDArray

from voxlane.codecs import silero

RATE = 16_000
FRAME_SAMPLES = silero.FRAME_SAMPLES
"""32 ms: what Silero looks at at a time."""

GATE_SAMPLES = 160
"""10 ms: what WebRTC's detector looks at at a time, in about 4 µs."""


class Voicing:
    """Silero's detector of one stream."""

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
    """Return WebRTC's detector of one stream: it says of 10 ms of PCM16 whether it may be a voice.

    `strictness` goes from 0, which lets almost everything pass, to 3.
    """
    detector = webrtcvad.Vad(strictness)
    return lambda frame: bool(detector.is_speech(frame, RATE))
