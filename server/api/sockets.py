"""The endpoints for WebSockets: conversations in two protocols, and telephone calls."""

from __future__ import annotations

from starlette.websockets import WebSocket

from voxlane.server.api.service import service_of
from voxlane.server.phone.incoming import answer
from voxlane.server.protocols.native import NATIVE
from voxlane.server.protocols.openai_realtime.protocol import REALTIME
from voxlane.server.sessions.connection import converse


async def voice(websocket: WebSocket) -> None:
    """Hold a conversation in our own protocol."""
    service = service_of(websocket)
    await converse(websocket, NATIVE, service.sessions, service.metrics, service.tenants)


async def realtime(websocket: WebSocket) -> None:
    """Hold a conversation in OpenAI's Realtime protocol."""
    service = service_of(websocket)
    await converse(websocket, REALTIME, service.sessions, service.metrics, service.tenants)


async def phone(websocket: WebSocket) -> None:
    """Take a telephone call."""
    service = service_of(websocket)
    await answer(websocket, service.phone, service.metrics)
