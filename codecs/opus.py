"""Opus packets for live audio, through PyAV (extra `opus`): 20 ms of samples to one packet, and back.

Packets are bare, as WebCodecs and RTP carry them; `container` and `encode` handle Ogg files. Audio is mono: the decoder
mixes a stereo packet down. PyAV is an extra because its wheel brings codecs of its own, some of them GPL.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from voxlane.codecs.errors import InvalidAudio, UnsupportedAudio, needs_pyav
from voxlane.codecs.opus_packets import packet_samples
from voxlane.codecs.pcm import Floats, decode_pcm16

RATES = (8_000, 12_000, 16_000, 24_000, 48_000)
"""Sample rates that Opus encodes without resampling."""

DECODED_RATE = 48_000
"""Opus always decodes to this rate."""

PACKET_MS = 20


class OpusEncoder:
    """Turn a stream of mono samples into packets of 20 ms."""

    def __init__(self, rate: int, bit_rate: int = 32_000) -> None:
        with needs_pyav("Opus"):
            import av
        if rate not in RATES:
            raise UnsupportedAudio(f"Opus takes sample rates of {', '.join(map(str, RATES))} Hz")
        self._context = av.AudioCodecContext.create("libopus", "w")
        self._context.sample_rate = rate
        self._context.layout = "mono"
        self._context.format = "flt"
        self._context.bit_rate = bit_rate
        self._context.options = {"application": "voip", "frame_duration": str(PACKET_MS)}
        self._context.open()
        self._pending: Floats = np.zeros(0, dtype=np.float32)
        self._packet_samples = rate * PACKET_MS // 1000

    def push(self, samples: ArrayLike) -> list[bytes]:
        """Take the next samples and return the packets that they fill."""
        self._pending = np.concatenate((self._pending, np.asarray(samples, dtype=np.float32)))
        whole = len(self._pending) // self._packet_samples * self._packet_samples
        ready, self._pending = self._pending[:whole], self._pending[whole:].copy()
        return [packet for piece in ready.reshape(-1, self._packet_samples) for packet in self._encode(piece)]

    def finish(self) -> list[bytes]:
        """Fill the last packet with silence and return the rest; the encoder cannot be used after that."""
        missing = -len(self._pending) % self._packet_samples
        packets = self.push(np.zeros(missing, dtype=np.float32))
        return packets + [bytes(packet) for packet in self._context.encode(None)]

    def _encode(self, samples: Floats) -> list[bytes]:
        import av

        if not np.isfinite(samples).all():
            raise InvalidAudio("the samples are not finite numbers")
        frame = av.AudioFrame.from_ndarray(np.clip(samples, -1.0, 1.0)[None], format="flt", layout="mono")
        frame.sample_rate = self._context.sample_rate
        return [bytes(packet) for packet in self._context.encode(frame)]


class OpusDecoder:
    """Turn packets into mono samples at 48 kHz."""

    def __init__(self) -> None:
        with needs_pyav("Opus"):
            import av
        self._context = av.AudioCodecContext.create("libopus", "r")
        self._context.sample_rate = DECODED_RATE
        self._context.layout = "mono"
        self._context.open()

    def decode(self, packet: bytes) -> Floats:
        """Return the samples of one packet; after a broken packet, the next one decodes as usual."""
        import av

        # Libav takes an empty packet for the end of the stream and refuses all later ones.
        packet_samples(packet)
        try:
            frames = self._context.decode(av.Packet(packet))
        except av.FFmpegError as error:
            raise InvalidAudio("the Opus packet is broken") from error
        words: list[NDArray[np.int16]] = [frame.to_ndarray()[0] for frame in frames]
        return decode_pcm16(b"".join(word.tobytes() for word in words))
