"""What a template tells the server on their own socket; see engine/template.py.

The server's messages there are single bytes, each with the descriptor of a link for the next engine.
"""

from __future__ import annotations

from msgspec import Struct, msgpack

from voxlane.engine.api.codec import UndecodableMessage

FORK = b"\x01"
"""The server's message: fork an engine for the link that comes with it."""


class Forked(Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    """An engine was forked; it sends this itself, before it is ready."""

    pid: int


_DECODER = msgpack.Decoder(Forked)


def encode_forked(message: Forked) -> bytes:
    """Return the message as bytes."""
    return msgpack.encode(message)


def decode_forked(data: bytes) -> Forked:
    """Return the message in `data`, or raise UndecodableMessage."""
    try:
        return _DECODER.decode(data)
    except ValueError as error:
        raise UndecodableMessage(str(error)) from error
