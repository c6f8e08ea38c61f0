"""Voice activity detectors for 16 kHz sound, one state per stream: WebRTC's is quick, Silero's is careful."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

import _webrtcvad
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


class WebRtcDetector:
    """WebRTC's detector for one stream, for native code that calls `webrtc_process`."""

    def __init__(self, strictness: int) -> None:
        self._detector = webrtcvad.Vad(strictness)
        capsule = ctypes.py_object(self._detector._vad)  # it owns the detector
        self.address: int = _capsule_pointer(capsule, _capsule_name(capsule))


_capsule_name = ctypes.pythonapi.PyCapsule_GetName
_capsule_name.restype, _capsule_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


@cache
def webrtc_process() -> int | None:
    """Return the address of the detector's function, which the package's library exports; raise AttributeError else.

    Its arguments are the detector, the rate, the samples as int16, and their number; it returns 1 for a voice.
    """
    return ctypes.cast(ctypes.PyDLL(_webrtcvad.__file__).WebRtcVad_Process, ctypes.c_void_p).value
