"""A server event of OpenAI Realtime as a packet: its type and fields. Its event_id is its number, added on writing."""

from __future__ import annotations

from typing import Any

from voxlane.server.protocols.dialect import Packet

Event = dict[str, Any]


def packet(kind: str, **fields: Any) -> Packet:
    """Return an event as a packet."""
    return Packet(({"type": kind, **fields},))
