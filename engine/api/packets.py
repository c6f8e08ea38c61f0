"""Messages as packets of a socket, and back: long ones in pieces, pieces of text together. It knows no socket."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from voxlane.engine.api.codec import UndecodableMessage, decode, decode_several, encode
from voxlane.engine.api.messages import Append, Message, Text

FRAGMENT_BYTES = 64 * 1024
"""Largest packet on the socket. A SEQPACKET message must fit the kernel's send buffer (208 KiB by default)."""

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""Largest reassembled message: a long prompt with room to spare, far below anything that hurts."""

BUNDLE = 64
"""Most messages that travel in one packet."""


def bundle(messages: Iterable[Message]) -> list[bytes]:
    """Return packets with messages in their order; the frequent ones, text and sound, share theirs."""
    packets: list[bytes] = []
    for shares, group in itertools.groupby(messages, key=lambda message: type(message) in (Text, Append)):
        several = list(group)
        for start in range(0, len(several), BUNDLE if shares else 1):
            packets += _share(several[start : start + BUNDLE] if shares else [several[start]])
    return packets


def _share(messages: Sequence[Message]) -> list[bytes]:
    if len(messages) > 1:
        data = encode(messages)
        if len(data) < FRAGMENT_BYTES:
            return [_SEVERAL + data]
    return [packet for message in messages for packet in fragments(encode(message))]


_SEVERAL = b"\x02"

ATTACHED = b"\x03"
"""The packet that carries the descriptor of another link; it follows an Attach."""


def fragments(data: bytes) -> list[bytes]:
    """Cut an encoded message into packets: one byte that says whether more follow, then the piece."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise UndecodableMessage(f"message of {len(data)} bytes is over the limit of {MAX_MESSAGE_BYTES}")
    size = FRAGMENT_BYTES - 1
    if len(data) <= size:  # nearly all of them
        return [b"\x00" + data]
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    return [(b"\x01" if index + 1 < len(pieces) else b"\x00") + piece for index, piece in enumerate(pieces)]


class Assembler:
    """Joins packets back into messages."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0

    def messages(self, packet: bytes) -> Sequence[Message]:
        """Take one packet; return the messages that are in it, or the one it completes, or none yet."""
        if self._pieces or not packet.startswith(_SEVERAL):
            message = self.feed(packet)
            return () if message is None else (message,)
        return decode_several(memoryview(packet)[1:])

    def feed(self, packet: bytes) -> Message | None:
        """Take one packet of one message; return the message it completes, or None while more is to come."""
        if len(packet) < 2 or packet[0] > 1:
            raise UndecodableMessage("not a packet of this protocol")
        self._pieces.append(packet[1:])
        self._size += len(packet) - 1
        if self._size > MAX_MESSAGE_BYTES:
            raise UndecodableMessage(f"message over the limit of {MAX_MESSAGE_BYTES} bytes")
        if packet[0]:
            return None
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        return decode(data)
