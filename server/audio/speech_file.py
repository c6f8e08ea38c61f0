"""Encode the engine's samples as a file in one of six formats."""

from __future__ import annotations

import numpy as np

from voxlane.codecs.encode import SpeechFormat, encoder
from voxlane.codecs.pcm import decode_pcm16
from voxlane.codecs.resample import Resampler
from voxlane.codecs.wav import encode_wav

PCM_RATE = 24_000
"""Bare PCM has no header for its rate; programs that ask for it expect OpenAI's rate."""

CONTENT_TYPES: dict[SpeechFormat, str] = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}


class SpeechFile:
    """Encodes one file. Its methods may take a while: call them off the event loop."""

    def __init__(self, kind: SpeechFormat, rate: int) -> None:
        self._kind = kind
        self._rate = rate
        self._resampler = Resampler(rate, PCM_RATE if kind == "pcm" else rate)
        self._encoder = encoder(kind, self._resampler.target_rate)
        self._empty = True

    def push(self, pcm: bytes) -> bytes:
        """Take 16-bit samples and return the bytes that are ready."""
        self._empty = self._empty and not pcm
        return self._encoder.push(self._resampler.push(decode_pcm16(pcm))) if pcm else b""

    def finish(self) -> bytes:
        """Return the last bytes."""
        if self._empty and self._kind == "wav":
            # No header was written yet, so it can still state the true length: none.
            return encode_wav(np.zeros(0, dtype=np.float32), self._rate)
        return self._encoder.push(self._resampler.flush()) + self._encoder.finish()
