"""G.722 on a telephone line: sound in and out at 16 kHz, and no offer of it to other clients."""

from __future__ import annotations

import msgpack
import numpy as np
import pytest

from voxlane.codecs.g722 import G722Decoder, G722Encoder
from voxlane.codecs.pcm import decode_pcm16, encode_pcm16
from voxlane.server.conversation.values import SessionConfig
from voxlane.server.phone.line_encoder import LineEncoder
from voxlane.server.protocols.dialect import AudioFormat, BadMessage
from voxlane.server.protocols.native import read_hello
from voxlane.server.protocols.sound import Microphone, check_format, codecs

G722 = AudioFormat("g722", 16_000)


def tone(rate: int, samples: int) -> np.ndarray:
    return (0.4 * np.sin(2 * np.pi * 440 * np.arange(samples) / rate)).astype(np.float32)


def test_a_microphone_decodes_it() -> None:
    data = G722Encoder().push(tone(16_000, 3_200))
    microphone = Microphone(G722)
    heard = b"".join(microphone.push(data[at : at + 160]) for at in range(0, len(data), 160))
    assert heard == encode_pcm16(G722Decoder().decode(data))
    assert microphone.seconds == 0.2


def test_a_line_encodes_it() -> None:
    """A piece of 20 ms is a whole frame; the last piece of a reply is filled up."""
    encoder, pcm = LineEncoder(G722), encode_pcm16(tone(16_000, 3_250))
    data = b"".join(encoder.encode(pcm[at : at + 640]) for at in range(0, len(pcm), 640))
    whole = G722Encoder()
    assert data == whole.push(decode_pcm16(pcm)) + whole.flush()
    assert len(data) == 11 * 160


def test_other_clients_are_not_offered_it() -> None:
    assert "g722" not in codecs()
    with pytest.raises(BadMessage, match="this server has the codecs"):
        check_format(G722, incoming=True)
    hello = msgpack.packb(("hello", {"input": {"codec": "g722", "rate": 16_000}}))
    with pytest.raises(BadMessage, match="this server has the codecs"):
        read_hello(hello, SessionConfig())
