"""Watches one conversation: its turns, its sound, its end. The conversation calls it; it changes nothing there."""

from __future__ import annotations

import time
from collections.abc import Callable

from voxlane.server.conversation.replies.reply import Reply
from voxlane.server.conversation.server_events import ServerEvent
from voxlane.server.watching.recordings import ConversationRecording
from voxlane.server.watching.traces import ConversationTrace
from voxlane.server.watching.turn_account import TurnAccount, TurnRecord
from voxlane.server.watching.turn_log import log_turn
from voxlane.server.watching.watched_call import CallEnd, WatchedCall


class ConversationWatch:
    """One conversation, from its first event to its end. Times are those of the conversation's clock."""

    def __init__(
        self,
        call: WatchedCall,
        origin_s: float,
        trace: ConversationTrace | None,
        recording: ConversationRecording | None,
        report: Callable[[CallEnd], None],
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.call = call
        self._origin_s = origin_s  # the conversation's clock at its beginning
        self._trace = trace
        self._recording = recording
        self._report = report
        self._clock_ns = clock_ns
        self._account = TurnAccount(clock_ns)
        self._over = False

    def observe(self, reply: Reply | None, now: float) -> None:
        """Take note of how far the current reply was heard."""
        if self._recording is not None:
            self._recording.observe(reply, now - self._origin_s)

    def heard(self, pcm: bytes, now: float) -> None:
        """Take sound of the person that ends now: 16-bit samples at 16 kHz."""
        if self._recording is not None:
            self._recording.heard(pcm, now - self._origin_s)

    def follow(self, event: ServerEvent, now: float) -> None:
        """Take an event that the client is sent."""
        if self._recording is not None:
            self._recording.follow(event, now - self._origin_s)
        turn = self._account.follow(event)
        if turn is not None:
            self._note(turn)

    def close(self, reason: str) -> None:
        """Note the end of the conversation, once."""
        if self._over:
            return
        self._over = True
        for turn in self._account.leave():
            self._note(turn)
        recording = self._recording
        if recording is not None:
            recording.close(reason)
        if self._trace is not None:
            self._trace.close(reason, self._account.turns, self._account.interruptions)
        self._report(
            CallEnd(
                self.call,
                seconds=max(0.0, self._clock_ns() / 1e9 - self.call.began_s),
                turns=self._account.turns,
                interruptions=self._account.interruptions,
                reason=reason,
                recording=recording.sound_name if recording is not None else "",
                transcript=recording.words_name if recording is not None else "",
            )
        )

    def _note(self, turn: TurnRecord) -> None:
        log_turn(self.call, turn)
        if self._trace is not None:
            self._trace.turn(turn)
