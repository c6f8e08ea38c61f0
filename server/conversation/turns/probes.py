"""Requests to the chat model before an answer is asked for. Pure.

A probe asks whether a sentence sounds complete, and thereby prefills it into the prefix cache. Reading ahead prefills
everything before the person's next words.
"""

from __future__ import annotations

from voxlane.engine.api import Cancel, ChatMessage, Priority, Submit
from voxlane.server.conversation.effects import Effect, SendToEngine
from voxlane.server.conversation.replies.history import History
from voxlane.server.conversation.turns.user_turn import UserSpeech
from voxlane.server.conversation.values import SessionConfig

OPENING = "Hello"
"""Stands for the person's next words while the prompt is read ahead: the cache keeps the prompt before it."""


class Probes:
    """The probes of one conversation, at most one at a time for each turn."""

    def __init__(self, session: str, *, enabled: bool) -> None:
        self._session = session
        self._enabled = enabled  # False with a remote chat server, which has no probes
        self._asked = 0
        self._read: tuple[ChatMessage, ...] = ()  # the prompt that was read ahead last

    def ask(self, turn: UserSpeech, words: str, history: History, config: SessionConfig) -> list[Effect]:
        """Probe the words of a turn, unless they were probed already."""
        if not self._enabled or not words or turn.probed == words:
            return []
        effects = self.cancel(turn)
        submit = self._question(history.prompt(config.instructions, words), config, Priority.HIGH)
        turn.probe_id, turn.probed, turn.p_end = submit.request_id, words, None
        return [*effects, SendToEngine(submit)]

    def read_ahead(self, history: History, config: SessionConfig) -> list[Effect]:
        """Prefill the instructions and the history while the conversation is quiet, unless that was done already.

        The next answer then has only the person's words left to prefill.
        """
        messages = history.prompt(config.instructions, OPENING)
        if not self._enabled or not config.replies or messages == self._read:
            return []
        self._read = messages
        return [SendToEngine(self._question(messages, config, Priority.NORMAL))]

    def forget(self) -> None:
        """Forget what was read ahead: the engine's cache is gone."""
        self._read = ()

    def _question(self, messages: tuple[ChatMessage, ...], config: SessionConfig, priority: Priority) -> Submit:
        self._asked += 1
        return Submit(
            f"{self._session}/probe{self._asked}",
            "probe",
            messages=messages,
            priority=priority,
            tenant=self._session,
            tools=config.tools,  # the prompt must begin like the answer's, or its KV blocks cannot be reused
            tool_choice=config.tool_choice,
        )

    def cancel(self, turn: UserSpeech) -> list[Effect]:
        """Cancel a turn's probe."""
        probe_id, turn.probe_id = turn.probe_id, ""
        return [SendToEngine(Cancel(probe_id))] if probe_id else []
