"""Carries out a barge-in: a voice puts a reply on hold, and the reply then ends there or goes on.

`judge` in turns.py decides whether the voice takes the floor; floor.py asks it. Pure: the clock is an argument.
"""

from __future__ import annotations

from voxlane.engine.api import EndInput, Pause
from voxlane.server.conversation.answers import Answers
from voxlane.server.conversation.effects import Effect, Send, Tell
from voxlane.server.conversation.reply import Reply
from voxlane.server.conversation.server_events import BargeIn, UserWords
from voxlane.server.conversation.user_turn import UserSpeech


def hold(reply: Reply, now: float) -> list[Effect]:
    """Stop a reply where it is, and nothing else of the session."""
    effects, running = reply.hold(now), reply.running
    return [*effects, Tell(Pause(running))] if running else effects


def ask_last_words(turn: UserSpeech) -> list[Effect]:
    """Ask the engine for the last words of a voice that has stopped, before the reply goes on."""
    asked, turn.asked = turn.asked, True
    return [] if asked else [Tell(EndInput(turn.asr_id))]


def commit(turn: UserSpeech, answers: Answers, now: float) -> list[Effect]:
    """Give the person the floor."""
    turn.held = False
    reply = answers.reply
    if reply is None:
        return []
    effects = [Send(_barge_in(turn, reply, now, committed=True)), *answers.cut(now)]
    # The words so far were held back until the verdict.
    return [*effects, Send(UserWords(turn.number, turn.settled, turn.tail))] if turn.text else effects


def release(turn: UserSpeech, answers: Answers, now: float) -> list[Effect]:
    """Let the reply go on: the voice did not take the floor."""
    turn.held = False
    reply = answers.reply
    if reply is None or reply.stage != "held":
        return []
    return [*reply.release(now), Send(_barge_in(turn, reply, now, committed=False))]


def _barge_in(turn: UserSpeech, reply: Reply, now: float, *, committed: bool) -> BargeIn:
    return BargeIn(reply.epoch, turn.hold_ms, (now - turn.onset_s) * 1e3, committed)
