"""Encodes sound for a telephone line."""

from __future__ import annotations

from voxlane.codecs.g711 import encode_alaw, encode_mulaw
from voxlane.codecs.g722 import G722Encoder
from voxlane.codecs.pcm import decode_pcm16
from voxlane.server.protocols.dialect import AudioFormat


class LineEncoder:
    """Encodes 16-bit samples, at the rate of the line, in the format of the line."""

    def __init__(self, form: AudioFormat) -> None:
        self._codec = form.codec
        self._g722 = G722Encoder() if form.codec == "g722" else None

    def encode(self, pcm: bytes) -> bytes:
        """Return the next sound in the format of the line."""
        match self._codec:
            case "mulaw":
                return encode_mulaw(decode_pcm16(pcm))
            case "alaw":
                return encode_alaw(decode_pcm16(pcm))
            case "g722":
                assert self._g722 is not None
                return self._g722.push(decode_pcm16(pcm)) + self._g722.flush()  # flush fills up a short last piece
            case _:
                return pcm
