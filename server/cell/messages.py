"""What a supervisor and its server processes tell each other, over a socket of their own.

A question (`AskAll`) goes from one process through the supervisor to all others; the asking process is answered when
all of them have.
"""

from __future__ import annotations

from msgspec import Struct, msgpack

from voxlane.engine.api import Ready, UndecodableMessage
from voxlane.server.config import Config, PhoneKeys


class _Told(Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    """A message: its class name comes before its fields."""


class Secrets(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a server process must know and no file or command line may show."""

    api_key: str = ""
    chat_key: str = ""
    phone_keys: PhoneKeys = PhoneKeys()
    webhook_secret: str = ""
    store_password: str = ""
    cell: bytes = b""  # of this cell alone: it keys hashes and signs tickets


# ---- supervisor to server process


class Begin(_Told, frozen=True):
    """The first message: serve with this."""

    number: int  # of this process, from 0
    processes: int
    label: str  # no other process of this cell, before or after, has the same
    config: Config
    port: int
    engines: int
    folder: str
    secrets: Secrets


class EngineNews(_Told, frozen=True):
    """An engine has a new state."""

    engine: int
    state: str
    failure: str = ""
    expected_in_s: float = 0.0
    given_up: bool = False
    ready: Ready | None = None


class EngineLink(_Told, frozen=True):
    """Here is a link to an engine, with this message; it replaces the one before."""

    engine: int


class CellEnds(_Told, frozen=True):
    """The whole cell goes down: no other process of it can go on with a conversation."""


# ---- server process to supervisor


class Listening(_Told, frozen=True):
    """This process accepts connections."""


class LinkLost(_Told, frozen=True):
    """The link to an engine has ended; another one is needed if the engine lives."""

    engine: int


# ---- both ways


class VoiceChange(_Told, frozen=True):
    """A voice is kept under a name, or forgotten if it has no profile."""

    name: str
    profile: bytes = b""
    made_s: int = 0


class LetGo(_Told, frozen=True):
    """Another process goes on with this conversation: release it, its record stays."""

    session: str


class AskAll(_Told, frozen=True):
    """Tell all other processes something; answer when they know."""

    number: int
    what: VoiceChange | LetGo


class Answered(_Told, frozen=True):
    """The answer to the question of this number."""

    number: int


CellMessage = Begin | EngineNews | EngineLink | CellEnds | Listening | LinkLost | AskAll | Answered

_DECODER: msgpack.Decoder[CellMessage] = msgpack.Decoder(CellMessage)


def encode_told(message: CellMessage) -> bytes:
    """Return a message as bytes."""
    return msgpack.encode(message)


def decode_told(data: bytes) -> CellMessage:
    """Return the message in `data`, or raise UndecodableMessage."""
    try:
        return _DECODER.decode(data)
    except ValueError as error:
        raise UndecodableMessage("not a message of a cell") from error
