"""G.722, the telephone network's wideband code, through PyAV (extra `opus`): 64 kbit/s, mono, 16 kHz.

A byte holds two samples. Both directions keep their state from one call to the next, so a stream may be cut anywhere.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from voxlane.codecs.errors import InvalidAudio, needs_pyav
from voxlane.codecs.pcm import Floats, decode_pcm16, quantise

RATE = 16_000
SAMPLES_PER_BYTE = 2
FRAME_SAMPLES = 320
"""Samples that are encoded at once: 20 ms."""


class G722Encoder:
    """Encodes a stream of mono samples at 16 kHz, 20 ms at a time."""

    def __init__(self) -> None:
        with needs_pyav("G.722"):
            import av
        self._context = av.AudioCodecContext.create("g722", "w")
        self._context.sample_rate = RATE
        self._context.layout = "mono"
        self._context.format = "s16"
        self._context.options = {"frame_size": str(FRAME_SAMPLES)}
        self._context.open()
        self._pending: NDArray[np.int16] = np.zeros(0, dtype="<i2")

    def push(self, samples: ArrayLike) -> bytes:
        """Take the next samples and return the bytes of whole frames."""
        self._pending = np.concatenate((self._pending, quantise(samples)))
        whole = len(self._pending) // FRAME_SAMPLES * FRAME_SAMPLES
        ready, self._pending = self._pending[:whole], self._pending[whole:].copy()
        return b"".join(self._encode(frame) for frame in ready.reshape(-1, FRAME_SAMPLES))

    def flush(self) -> bytes:
        """Fill the last frame with silence and return its bytes; the encoder can go on."""
        return self.push(np.zeros(-len(self._pending) % FRAME_SAMPLES, dtype=np.float32))

    def _encode(self, samples: NDArray[np.int16]) -> bytes:
        import av

        frame = av.AudioFrame.from_ndarray(samples[None], format="s16", layout="mono")
        frame.sample_rate = RATE
        return b"".join(bytes(packet) for packet in self._context.encode(frame))


class G722Decoder:
    """Decodes a stream of bytes to mono samples at 16 kHz."""

    def __init__(self) -> None:
        with needs_pyav("G.722"):
            import av
        self._context = av.AudioCodecContext.create("g722", "r")
        self._context.sample_rate = RATE
        self._context.layout = "mono"
        self._context.open()

    def decode(self, data: bytes) -> Floats:
        """Return the samples of the next bytes; any bytes are sound."""
        import av

        if not data:  # libav takes an empty packet for the end of the stream
            return np.zeros(0, dtype=np.float32)
        try:
            frames = self._context.decode(av.Packet(data))
        except av.FFmpegError as error:
            raise InvalidAudio("the G.722 sound is broken") from error
        words: list[NDArray[np.int16]] = [frame.to_ndarray()[0] for frame in frames]
        return decode_pcm16(b"".join(word.tobytes() for word in words))
