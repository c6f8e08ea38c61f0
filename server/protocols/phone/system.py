"""What there is to know about a telephone system. Each system's file ends with its own; systems.py lists them. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from voxlane.server.protocols.phone.documents import Documents
from voxlane.server.protocols.phone.line_events import LineCodec
from voxlane.server.protocols.phone.signing import Signing, SystemKey

PHONE_ADDRESS = "/v1/phone"
"""Where telephone systems connect their calls."""


@dataclass(frozen=True, slots=True)
class FirstMessage:
    """One of the first messages on a line, as texts."""

    text: str
    body: dict[str, Any] = field(default_factory=dict)  # empty where the text is no JSON
    event: str = ""
    start: dict[str, Any] = field(default_factory=dict)  # of the event `start`


@dataclass(frozen=True, slots=True)
class TelephoneSystem:
    """A telephone system that connects calls over WebSockets."""

    name: str  # as in its codec's traits
    codec: Callable[[], LineCodec]
    begins: Callable[[FirstMessage], bool]  # whether the system, and no other, begins a call like this
    subprotocols: tuple[str, ...] = ()  # those that it wants to see accepted
    known_by_subprotocol: bool = False
    documents: Documents | None = None
    key: SystemKey | None = None
    requests: Signing | None = None  # how it signs its requests for documents
    handshakes: Signing | None = None  # how it signs its handshakes
