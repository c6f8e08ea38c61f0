"""What a session wants done, and what befalls it beside its client's events and the engine's messages. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from voxlane.engine.api import ToEngine
from voxlane.server.conversation.server_events import ServerEvent


@dataclass(frozen=True, slots=True)
class Send:
    """Tell the client."""

    event: ServerEvent


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell the engine."""

    message: ToEngine


Effect = Send | Tell


@dataclass(frozen=True, slots=True)
class RequestsLost:
    """Every request that was under way is gone."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: what was to happen at `Session.wake_at` is due."""
