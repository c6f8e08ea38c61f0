"""Effects that a session returns, and events that come neither from the client nor from the engine. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from voxlane.engine.api import ToEngine
from voxlane.server.conversation.server_events import ServerEvent


@dataclass(frozen=True, slots=True)
class Send:
    """Send an event to the client."""

    event: ServerEvent


@dataclass(frozen=True, slots=True)
class SendToEngine:
    """Send a message to the engine."""

    message: ToEngine


Effect = Send | SendToEngine


@dataclass(frozen=True, slots=True)
class RequestsLost:
    """The engine was lost, and with it every running request."""


@dataclass(frozen=True, slots=True)
class Tick:
    """The time that `Session.wake_at` returned has come."""
