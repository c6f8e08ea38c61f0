"""Carries out a barge-in: a voice lowers a reply or puts it on hold, and the reply then ends there or goes on.

`playing` in overlap.py decides what is heard of the reply until the verdict, which `judge` in barge_in.py gives;
floor.py asks both. Pure: the clock is an argument.
"""

from __future__ import annotations

from voxlane.engine.api import EndInput, Pause
from voxlane.server.conversation.effects import Effect, Send, SendToEngine
from voxlane.server.conversation.replies.answers import Answers
from voxlane.server.conversation.replies.reply import Reply
from voxlane.server.conversation.server_events import BargeIn, UserWords
from voxlane.server.conversation.turns.overlap import Playing
from voxlane.server.conversation.turns.user_turn import UserSpeech


def follow(turn: UserSpeech, answers: Answers, wanted: Playing, now: float) -> list[Effect]:
    """Have the reply played as the voice so far asks for; a reply that is not heard yet is left alone."""
    reply, effects = answers.reply, list[Effect]()
    if reply is not None and answers.talking and reply.playing is not wanted:
        effects = _play(reply, wanted, now)
    if turn.overlap is not None:
        turn.overlap.observe(Playing.FULL if reply is None else reply.playing, now)
    return effects


def _play(reply: Reply, wanted: Playing, now: float) -> list[Effect]:
    match wanted:
        case Playing.FULL:
            return reply.release(now)
        case Playing.DUCKED:
            return [*(reply.release(now) if reply.stage == "held" else ()), *reply.duck()]
        case Playing.HELD:
            effects, running = reply.hold(now), reply.running
            return [*effects, SendToEngine(Pause(running))] if running else effects


def ask_last_words(turn: UserSpeech) -> list[Effect]:
    """Ask the engine for the last words of a voice that has stopped, before the reply goes on."""
    asked, turn.asked = turn.asked, True
    return [] if asked else [SendToEngine(EndInput(turn.asr_id))]


def commit(turn: UserSpeech, answers: Answers, now: float) -> list[Effect]:
    """Give the person the floor."""
    effects = [*_report(turn, answers.reply, now, committed=True), *answers.cut(now)]
    # The words so far were held back until the verdict.
    return [*effects, Send(UserWords(turn.number, turn.settled, turn.tail))] if turn.text else effects


def release(turn: UserSpeech, answers: Answers, now: float) -> list[Effect]:
    """Let the reply go on: the voice did not take the floor."""
    effects = follow(turn, answers, Playing.FULL, now)
    return [*effects, *_report(turn, answers.reply, now, committed=False)]


def _report(turn: UserSpeech, reply: Reply | None, now: float, *, committed: bool) -> list[Effect]:
    """Note that there is a verdict, and tell how the barge-in went."""
    overlap, turn.held = turn.overlap, False
    if overlap is None:
        return []
    overlap.observe(Playing.FULL if reply is None else reply.playing, now)
    verdict_ms, ducked_ms, muted_ms = (
        seconds * 1e3 for seconds in (now - overlap.onset_s, overlap.ducked_s, overlap.muted_s)
    )
    return [Send(BargeIn(overlap.epoch, overlap.hold_ms, verdict_ms, committed, ducked_ms, muted_ms))]
