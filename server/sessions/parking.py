"""Keeps conversations whose client is away, each for `voice.resume_s`, and gives them back for their tokens."""

from __future__ import annotations

import asyncio

from voxlane.server.errors import NotResumable
from voxlane.server.sessions.conversation import Conversation
from voxlane.server.sessions.conversations import Conversations
from voxlane.server.tenants.accounts import Account
from voxlane.server.watching.watched_call import HANDED_OVER


class Parking:
    """The tokens and the clocks with which conversations wait for their clients."""

    def __init__(self, conversations: Conversations, resume_s: float) -> None:
        self._conversations = conversations
        self._resume_s = resume_s

    def issue_token(self, conversation: Conversation) -> str:
        """Return a new token that resumes a conversation."""
        token = self._conversations.tokens.issue(conversation.name)
        if conversation.journal is not None:
            conversation.journal.wrap(token)
        return token

    def token_arrived(self, conversation: Conversation) -> None:
        """Note that a conversation's client has its last token: the one before becomes invalid."""
        if self._conversations.tokens.arrived(conversation.name) and conversation.journal is not None:
            self._conversations.write(conversation.journal.commit())

    def take_back(self, token: str, account: Account | None) -> Conversation | None:
        """Return this process's conversation of a resume token and stop its clock; None if it has none.

        A token is good for the tenant of its conversation alone: else NotResumable is raised. `account` is None where
        the token is all that a client has shown.
        """
        conversation = self._conversations.get(self._conversations.tokens.name_of(token) or "")
        if conversation is None or conversation.over:
            return None
        if account not in (None, conversation.account):
            raise NotResumable
        self._conversations.tokens.redeem(token)
        self._conversations.unpark(conversation)
        return conversation

    def park(self, conversation: Conversation) -> None:
        """Keep a conversation without a socket; while the server drains, leave it to the store or end it."""
        draining = self._conversations.draining
        conversation.detach()
        if draining and conversation.outlives:
            self._conversations.write(self._leave_to_store(conversation))
            return
        if draining or conversation.over or not self._resume_s:
            self._conversations.close(conversation, "draining" if draining else "left")
            return
        if conversation.journal is not None:
            self._conversations.write(conversation.journal.park())
        loop, write = asyncio.get_running_loop(), self._conversations.write
        timer = loop.call_later(self._resume_s, lambda: write(self._expire(conversation)))
        self._conversations.parked[conversation] = timer

    async def _expire(self, conversation: Conversation) -> None:
        """End a conversation that was not resumed here; another process may go on with it."""
        journal = conversation.journal
        outcome = await journal.end() if journal is not None else "written"
        if conversation.writer is None:  # else a client has come back meanwhile
            self._conversations.release(conversation, HANDED_OVER if outcome == "other_owner" else "left")

    async def _leave_to_store(self, conversation: Conversation) -> None:
        journal = conversation.journal
        if journal is not None:
            await (journal.park() if journal.resumable else journal.leave())
        if conversation.writer is None:  # else a client has come back meanwhile
            self._conversations.release(conversation, HANDED_OVER)
