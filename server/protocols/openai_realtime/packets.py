"""A server event of OpenAI Realtime as a packet: its type and its fields. Its id is its number, when it is written."""

from __future__ import annotations

from typing import Any

from voxlane.server.protocols.dialect import Packet

Event = dict[str, Any]


def packet(kind: str, **fields: Any) -> Packet:
    """Return an event to be written."""
    return Packet(({"type": kind, **fields},))
