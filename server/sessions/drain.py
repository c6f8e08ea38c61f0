"""Empties a server process that goes down: its conversations move to another one, come to their end, or are ended."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from voxlane.server import limits
from voxlane.server.errors import Draining, HandOver
from voxlane.server.log import line
from voxlane.server.protocols.dialect import GoAway
from voxlane.server.room.meter import RoomMeter
from voxlane.server.sessions.conversation import Conversation
from voxlane.server.sessions.conversations import Conversations
from voxlane.server.sessions.parking import Parking

logger = logging.getLogger(__name__)


class Drain:
    """The end of one process's conversations."""

    def __init__(self, conversations: Conversations, parking: Parking, room: RoomMeter) -> None:
        self._conversations = conversations
        self._parking = parking
        self._room = room
        self._hand_overs = 0  # how many conversations may be handed over now

    async def run(self, seconds: float) -> None:
        """Admit no more clients, hand over or finish conversations for `seconds`, then end the rest.

        A conversation that another process can go on with is handed over in its first silence. Any other goes on for
        `seconds`.
        """
        self._conversations.draining = True
        running = len(self._conversations)
        for conversation in list(self._conversations.values()):
            if conversation in self._conversations.parked:
                self._parking.park(conversation)
            elif not _leaves_by_itself(conversation) and not conversation.movable:
                conversation.send(GoAway(seconds, "draining"))
        farewell_s = min(seconds, limits.CALL_FAREWELL_SECONDS)
        if not await self._wait_empty(seconds - farewell_s):
            for conversation in filter(_leaves_by_itself, list(self._conversations.values())):
                conversation.send(GoAway(farewell_s, "draining"))
            await self._wait_empty(farewell_s)
        ended = self.end_all()
        if running:
            logger.info(line("voice drained", running=running, finished=running - ended, ended=ended))

    async def _wait_empty(self, seconds: float) -> bool:
        """Wait until all conversations are gone, and let those that can move look for their silence."""
        loop = asyncio.get_running_loop()
        told_s, until_s = loop.time() + limits.BALANCER_ASKS_SECONDS, loop.time() + seconds
        at_once = -(-len(self._conversations) // limits.HAND_OVER_LOOKS)
        while self._conversations and loop.time() < until_s:
            if self._room.balancer_knows or loop.time() > told_s:
                self._hand_overs = at_once
            for conversation in self._conversations.values():
                if conversation.movable and conversation.writer is not None:
                    conversation.writer.notify()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(limits.SILENCE_LOOK_SECONDS, until_s - loop.time())):
                    await self._conversations.empty.wait()
        return not self._conversations

    def hand_over_if_silent(self, conversation: Conversation) -> None:
        """While the server drains, let another process go on with a conversation in which neither side speaks."""
        if not self._hand_overs or conversation.writer is None:
            return
        if conversation.movable and conversation.session.silent:
            self._hand_overs -= 1
            conversation.writer.end(HandOver())

    def end_all(self) -> int:
        """End all connected conversations and their turns; return how many there were."""
        ended = [(one, one.writer) for one in self._conversations.values() if one.writer is not None]
        for conversation, writer in ended:
            conversation.end_turns()
            writer.end(HandOver() if conversation.movable and not writer.leaves_by_itself else Draining())
        return len(ended)


def _leaves_by_itself(conversation: Conversation) -> bool:
    return conversation.writer is not None and conversation.writer.leaves_by_itself
