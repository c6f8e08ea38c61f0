"""The conversations of a server process by their names, from their beginning to their end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from voxlane.server.cell.counts import CellCounts
from voxlane.server.sessions.conversation import Conversation
from voxlane.server.sessions.resume import Tokens
from voxlane.server.watching.metrics import Metrics
from voxlane.server.watching.watched_call import HANDED_OVER


class Conversations(dict[str, Conversation]):
    """The parked ones are among them. Each counts for its tenant and for the address that has begun it."""

    def __init__(self, counts: CellCounts, metrics: Metrics) -> None:
        super().__init__()
        self.counts = counts
        self.parked: dict[Conversation, asyncio.TimerHandle] = {}  # their clients are away; oldest first
        self.tokens = Tokens()
        self.draining = False  # the server goes down
        self.empty = asyncio.Event()
        self.empty.set()
        self.writes: set[asyncio.Task[object]] = set()  # to the store
        self._metrics = metrics

    def add(self, conversation: Conversation) -> None:
        """Add a conversation that its tenant counts already."""
        self[conversation.name] = conversation
        self._count(conversation, 1)
        self.empty.clear()

    def close(self, conversation: Conversation, reason: str = "done") -> None:
        """End a conversation for good; `reason` is for those that watch."""
        if conversation.journal is not None and not conversation.journal.over:
            self.write(conversation.journal.end())
        self.release(conversation, reason)

    def release(self, conversation: Conversation, reason: str = HANDED_OVER) -> None:
        """End a conversation in this process; its record, if it has one, stays."""
        if conversation.journal is not None:
            conversation.journal.stop()
        conversation.close()
        if conversation.watch is not None:
            conversation.watch.close(reason)
        if self.get(conversation.name) is not conversation:
            return
        self.unpark(conversation)
        del self[conversation.name]
        self._count(conversation, -1)
        self.tokens.revoke(conversation.name)
        conversation.account.end_conversation()
        if not self:
            self.empty.set()

    def unpark(self, conversation: Conversation) -> None:
        """Stop the clock of a parked conversation, if it is one."""
        if (timer := self.parked.pop(conversation, None)) is not None:
            timer.cancel()

    def write(self, work: Coroutine[None, None, object]) -> None:
        """Run a write to the store that nothing waits for."""
        task = asyncio.create_task(work, name="store write")
        self.writes.add(task)
        task.add_done_callback(self.writes.discard)

    def _count(self, conversation: Conversation, amount: int) -> None:
        self.counts.add("conversations", amount)
        self.counts.add_keyed("conversations of address", conversation.first_address, amount)
        self._metrics.sessions.inc(amount)
        self._metrics.tenant_conversations.labels(conversation.account.name).inc(amount)
