"""A process that decodes the Opus packets of all microphones; its argument is the descriptor of its socket.

libav and libopus read bytes from strangers. In this process they have limited memory and can open no file and start no
process, and there is no key and no conversation in it. A message is one datagram, both ways: the microphone's number,
one byte that says what it is, and a packet or samples. Answers come in the order of the packets, each at once, so that
the packet that ends the process is the first without an answer.
"""

from __future__ import annotations

import resource
import socket
import struct
import sys

import numpy as np

from voxlane.codecs.errors import AudioError
from voxlane.codecs.opus import DECODED_RATE, OpusDecoder, OpusEncoder
from voxlane.codecs.opus_packets import MAX_PACKET_BYTES
from voxlane.codecs.pcm import encode_pcm16
from voxlane.codecs.resample import Resampler
from voxlane.engine.api import LISTEN_RATE
from voxlane.server.audio.decode_child import confine

HEAD = struct.Struct("<IB")
"""The number of a microphone, and one of the next four."""

DECODE, FORGET = 0, 1
"""What the server asks for."""

SAMPLES, BROKEN = 0, 1
"""What it is told: 16-bit samples at 16 kHz follow, or the packet cannot be decoded."""

MESSAGE_BYTES = HEAD.size + MAX_PACKET_BYTES + 4096
"""More than any message: 120 ms of samples have 3,840 bytes."""

MORE_BYTES = 512 * 1024 * 1024
"""Address space beyond what the process has when it begins: a decoder takes 30 KB, and there are some thousand."""


class _Microphone:
    def __init__(self) -> None:
        self._decoder = OpusDecoder()
        self._resampler = Resampler(DECODED_RATE, LISTEN_RATE)

    def push(self, packet: bytes) -> bytes:
        return encode_pcm16(self._resampler.push(self._decoder.decode(packet)))


def main() -> None:
    """Answer the messages of the server until its side of the socket is closed."""
    line = socket.socket(fileno=int(sys.argv[1]))
    _warm_up()
    confine(MORE_BYTES, cpu_s=None)
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    microphones: dict[int, _Microphone] = {}
    while message := line.recv(MESSAGE_BYTES):
        number, asked = HEAD.unpack_from(message)
        if asked == FORGET:
            microphones.pop(number, None)
            continue
        try:
            if number not in microphones:
                microphones[number] = _Microphone()
            answer = HEAD.pack(number, SAMPLES) + microphones[number].push(message[HEAD.size :])
        except (AudioError, MemoryError):
            answer = HEAD.pack(number, BROKEN)
        line.send(answer)


def _warm_up() -> None:
    """Decode a packet of our own, so that everything is loaded before no file can be opened."""
    encoder = OpusEncoder(DECODED_RATE)
    for packet in encoder.push(np.zeros(DECODED_RATE // 50, dtype=np.float32)) + encoder.finish():
        _Microphone().push(packet)


if __name__ == "__main__":
    main()
