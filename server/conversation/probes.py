"""Questions to the chat model before an answer is asked for. Pure.

A probe asks whether a sentence sounds complete, and thereby reads it into the cache. Reading ahead does the same for
all that comes before the person's next words.
"""

from __future__ import annotations

from voxlane.engine.api import Cancel, ChatMessage, Priority, Submit
from voxlane.server.conversation.effects import Effect, Tell
from voxlane.server.conversation.history import History
from voxlane.server.conversation.user_turn import UserSpeech
from voxlane.server.conversation.values import SessionConfig

OPENING = "Hello"
"""Stands for the person's next words while the prompt before them is read: the cache keeps what comes before it."""


class Probes:
    """The questions of one conversation, at most one at a time about each turn."""

    def __init__(self, session: str, *, enabled: bool) -> None:
        self._session = session
        self._enabled = enabled  # a chat model elsewhere cannot be asked
        self._asked = 0
        self._read: tuple[ChatMessage, ...] = ()  # the prompt that was read ahead last

    def ask(self, turn: UserSpeech, words: str, history: History, config: SessionConfig) -> list[Effect]:
        """Ask about the words of a turn, unless that was asked already."""
        if not self._enabled or not words or turn.probed == words:
            return []
        effects = self.cancel(turn)
        submit = self._question(history.prompt(config.instructions, words), config, Priority.HIGH)
        turn.probe_id, turn.probed, turn.p_end = submit.request_id, words, None
        return [*effects, Tell(submit)]

    def read_ahead(self, history: History, config: SessionConfig) -> list[Effect]:
        """Read the instructions and the history while nobody speaks, unless that was done already.

        The next answer then has only the person's words left to read.
        """
        messages = history.prompt(config.instructions, OPENING)
        if not self._enabled or not config.replies or messages == self._read:
            return []
        self._read = messages
        return [Tell(self._question(messages, config, Priority.NORMAL))]

    def forget(self) -> None:
        """Take it that the engine's cache is gone."""
        self._read = ()

    def _question(self, messages: tuple[ChatMessage, ...], config: SessionConfig, priority: Priority) -> Submit:
        self._asked += 1
        return Submit(
            f"{self._session}/probe{self._asked}",
            "probe",
            messages=messages,
            priority=priority,
            tenant=self._session,
            tools=config.tools,  # the prompt must be the answer's, or its blocks are of no use
            tool_choice=config.tool_choice,
        )

    def cancel(self, turn: UserSpeech) -> list[Effect]:
        """Take a question back."""
        probe_id, turn.probe_id = turn.probe_id, ""
        return [Tell(Cancel(probe_id))] if probe_id else []
