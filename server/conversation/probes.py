"""Asking the chat model whether a sentence sounds complete; that also reads it into the cache. Pure."""

from __future__ import annotations

from voxlane.engine.api import Cancel, Priority, Submit
from voxlane.server.conversation.effects import Effect, Tell
from voxlane.server.conversation.history import History
from voxlane.server.conversation.user_turn import UserSpeech
from voxlane.server.conversation.values import SessionConfig


class Probes:
    """The questions of one conversation, at most one at a time about each turn."""

    def __init__(self, session: str, *, enabled: bool) -> None:
        self._session = session
        self._enabled = enabled  # a chat model elsewhere cannot be asked
        self._asked = 0

    def ask(self, turn: UserSpeech, words: str, history: History, config: SessionConfig) -> list[Effect]:
        """Ask about the words of a turn, unless that was asked already."""
        if not self._enabled or not words or turn.probed == words:
            return []
        effects = self.cancel(turn)
        self._asked += 1
        turn.probe_id, turn.probed, turn.p_end = f"{self._session}/probe{self._asked}", words, None
        submit = Submit(
            turn.probe_id,
            "probe",
            messages=history.prompt(config.instructions, words),
            priority=Priority.HIGH,
            tenant=self._session,
            tools=config.tools,  # the prompt must be the answer's, or its blocks are of no use
            tool_choice=config.tool_choice,
        )
        return [*effects, Tell(submit)]

    def cancel(self, turn: UserSpeech) -> list[Effect]:
        """Take a question back."""
        probe_id, turn.probe_id = turn.probe_id, ""
        return [Tell(Cancel(probe_id))] if probe_id else []
