"""Encode the engine's samples as a file in one of six formats."""

from __future__ import annotations

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


SILENCE_SECONDS = 0.25
"""The sound of a text without a word to say: players and programs refuse a file without any."""


class SpeechFile:
    """Encodes one file. Its methods may take a while: call them off the event loop."""

    def __init__(
        self, kind: SpeechFormat, rate: int, *, most_seconds: float | None = None, at_once: bool = False
    ) -> None:
        """Write a file whose sound is shorter than `most_seconds`. `at_once`: a WAV file comes whole, at the end.

        A WAV file's header states its length. It is exact if the file comes whole, else it is `most_seconds`.
        """
        self._rate = rate
        self._whole: list[bytes] | None = [] if kind == "wav" and at_once else None
        self._resampler = Resampler(rate, PCM_RATE if kind == "pcm" else rate)
        self._encoder = encoder(kind, self._resampler.target_rate, most_seconds)
        self._empty = True

    def push(self, pcm: bytes) -> bytes:
        """Take 16-bit samples and return the bytes that are ready."""
        if not pcm:
            return b""
        self._empty = False
        if self._whole is not None:
            self._whole.append(pcm)
            return b""
        return self._encoder.push(self._resampler.push(decode_pcm16(pcm)))

    def finish(self) -> bytes:
        """Return the last bytes; a file without sound becomes a short silence."""
        begun = self.push(bytes(2 * round(SILENCE_SECONDS * self._rate))) if self._empty else b""
        if self._whole is not None:
            return encode_wav(decode_pcm16(b"".join(self._whole)), self._rate)
        return begun + self._encoder.push(self._resampler.flush()) + self._encoder.finish()
