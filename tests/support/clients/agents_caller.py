"""The `openai-agents` SDK's realtime session, with a player."""

from __future__ import annotations

import asyncio
from typing import Any

from agents.realtime import RealtimeModelSendRawMessage
from client_script import Player


class Audience:
    """What the SDK tells the application, and a player."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._news = asyncio.Condition()
        self.player = Player()
        self.events: list[Any] = []

    async def listen(self) -> None:
        """Take what comes until cancelled."""
        async for event in self._session:
            if event.type == "audio":
                self.player.take(event.item_id, event.audio.data)
            async with self._news:
                self.events.append(event)
                self._news.notify_all()

    def all(self, kind: str) -> list[Any]:
        """Return the events of a kind so far."""
        return [event for event in self.events if event.type == kind]

    async def until(self, kind: str, count: int) -> None:
        """Wait for so many events of a kind since the beginning."""
        async with self._news:
            await self._news.wait_for(lambda: len(self.all(kind)) >= count)


async def choose_tools(session: Any, choice: str) -> None:
    """Change the session's tool choice, which the SDK has no word of its own for."""
    update = {"session": {"type": "realtime", "tool_choice": choice}}
    await session.model.send_event(RealtimeModelSendRawMessage({"type": "session.update", "other_data": update}))
