"""Messages to bytes and back: a message is one msgpack array, its class name and then its fields in order."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import msgpack

from voxlane.engine.api.messages import Message

_ENCODER = msgpack.Encoder()
_ONE: msgpack.Decoder[Message] = msgpack.Decoder(Message)
_SEVERAL: msgpack.Decoder[list[Message]] = msgpack.Decoder(list[Message])


class UndecodableMessage(ValueError):
    """The bytes are not a message of this set."""


def encode(message: Message | Sequence[Message]) -> bytes:
    """Return one message as `decode` takes it, or several as `decode_several` takes them."""
    return _ENCODER.encode(message)


def decode(data: bytes) -> Message:
    """Return the message in `data`, or raise UndecodableMessage."""
    try:
        return _ONE.decode(data)
    except (ValueError, RecursionError) as error:
        raise UndecodableMessage(str(error)) from error


def decode_several(data: bytes | memoryview) -> list[Message]:
    """Return the messages in `data`, or raise UndecodableMessage."""
    try:
        return _SEVERAL.decode(data)
    except (ValueError, RecursionError) as error:
        raise UndecodableMessage(str(error)) from error
