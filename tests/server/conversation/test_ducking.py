"""A reply under a voice, in whole conversations: lowered and heard, held, back in full, and cut to what was heard."""

from __future__ import annotations

import pytest
from session_simulation import SPEAK_RATE
from session_table import FRAME_S, PAUSES, Table, begin_reply, hear_no_engine

from voxlane.engine.api import Pause, Resume
from voxlane.server.conversation.client_events import Audio, ConfigureSession, Played, TextTurn
from voxlane.server.conversation.effects import SendToEngine
from voxlane.server.conversation.server_events import (
    BargeIn,
    Duck,
    FloorState,
    Hold,
    Interrupted,
    Release,
    ReplyDone,
    Speech,
    SpeechStarted,
    TurnDone,
    UserTurn,
)
from voxlane.server.conversation.values import SessionConfig

BRIEF = 15  # frames: 0.3 s


def steps(table: Table) -> list[type]:
    return [type(event) for event in table.of(Duck, Hold, Release, Interrupted)]


def told(table: Table, *kinds: type) -> list:
    return [
        effect.message for effect in table.log if isinstance(effect, SendToEngine) and isinstance(effect.message, kinds)
    ]


def test_a_murmur_lowers_the_reply_and_the_reply_goes_on():
    table = Table()
    reply = begin_reply(table)
    table.engine.transcripts[0] = "mhm"
    before = table.session.answers.reply.position(table.now)
    lowered = table.speak("v", BRIEF)
    assert steps(table) == [Duck]
    assert table.of(Duck)[0].gain == pytest.approx(10 ** (-15 / 20), abs=0.001)
    assert any(isinstance(event, Speech) for event in lowered)
    played = table.session.answers.reply.position(table.now) - before
    assert played == pytest.approx(BRIEF * FRAME_S * SPEAK_RATE, abs=1)
    table.speak("s", 40)
    assert steps(table) == [Duck, Release]
    assert not told(table, Pause, Resume)
    table.wait(60)
    assert table.of(ReplyDone)[-1].epoch == reply.epoch
    assert table.session.history.messages[-1].content == table.engine.answer
    (barge,) = table.of(BargeIn)
    assert not barge.committed
    assert barge.muted_ms == 0
    assert barge.ducked_ms == pytest.approx((BRIEF - 2) * 20 + 80)  # from the onset to 80 ms of silence
    assert "held" not in [event.name for event in table.of(FloorState)]


def test_a_voice_that_goes_on_stops_the_reply_and_then_ends_it():
    table = Table()
    begin_reply(table)
    table.engine.transcripts[0] = "no I meant something else"
    hear_no_engine(table, "v", 24)
    assert steps(table) == [Duck]
    hear_no_engine(table, "v", 2)
    assert steps(table) == [Duck, Hold]
    assert told(table, Pause) or table.session.answers.reply.generated
    table.speak("v", 30)
    assert steps(table) == [Duck, Hold, Interrupted]
    (barge,) = table.of(BargeIn)
    assert barge.committed
    assert barge.ducked_ms > 0 < barge.muted_ms


def test_a_shout_stops_the_reply_at_once():
    table = Table()
    begin_reply(table)
    table.ear.excess_db = 20.0
    table.speak("v", 2)
    assert steps(table) == [Hold]
    table.ear.excess_db = 0.0  # the next vowel is not as loud
    table.speak("v", 3)
    assert steps(table) == [Hold]
    table.speak("s", 6)
    assert steps(table) == [Hold, Release]


def test_a_voice_that_comes_back_lowers_the_reply_again():
    table = Table()
    begin_reply(table)
    table.engine.transcripts[0] = "yeah"
    for _ in range(2):
        hear_no_engine(table, "v", 10)
        hear_no_engine(table, "s", 6)
    assert steps(table) == [Duck, Release, Duck, Release]
    assert len(table.of(SpeechStarted)) == 1
    table.speak("s", 60)
    assert not table.of(Interrupted)
    assert len(table.of(BargeIn)) == 1


def test_a_word_that_comes_late_still_ends_the_reply_that_came_back():
    table = Table()
    begin_reply(table)
    table.engine.transcripts[0] = "no"
    hear_no_engine(table, "v", BRIEF)
    hear_no_engine(table, "s", 10)
    assert steps(table) == [Duck, Release]
    asr = next(name for name, work in table.engine.work.items() if work.submit.task == "asr")
    table.feed(table.engine.bring(asr))
    assert steps(table) == [Duck, Release, Interrupted]
    (cut,) = table.of(Interrupted)
    assert cut.heard == table.engine.answer[: len(cut.heard)]
    assert cut.samples >= (BRIEF + 10) * FRAME_S * SPEAK_RATE  # what was lowered was heard
    table.speak("s", 100)
    table.work()
    assert table.of(UserTurn)[-1].text == "no"


def test_what_was_played_while_lowered_is_in_the_history():
    table = Table()
    reply = begin_reply(table)
    table.engine.transcripts[0] = "stop"
    hear_no_engine(table, "v", 10)
    (lowered,) = table.of(Duck)
    position = table.session.answers.reply.position(table.now) + 100
    table.feed(Played(reply.epoch, position))
    assert table.session.answers.reply.position(table.now) == position
    table.feed(TextTurn("never mind"))
    (cut,) = table.of(Interrupted)
    assert (cut.epoch, cut.samples) == (lowered.epoch, position)
    assert table.session.history.messages[1].content == cut.heard.strip()


def test_a_reply_may_end_under_a_murmur():
    table = Table(answer="It was a sunny day.")
    begin_reply(table)
    table.engine.transcripts[0] = "mhm"
    table.wait(0.2)
    while not table.of(ReplyDone):
        table.feed(Audio(b"v\0" * 320))
        table.now += FRAME_S
    assert steps(table)[0] is Duck
    table.speak("s", 60)
    table.wait(10)
    assert not table.of(Interrupted)
    assert [event.text for event in table.of(UserTurn)] == ["hello"]
    assert [event.how for event in table.of(TurnDone) if event.turn == 1] == ["done"]
    assert not table.of(BargeIn)[0].committed


@pytest.mark.parametrize(("answer", "answered"), [("Shall I go on?", True), ("I shall go on.", False)])
def test_a_murmur_over_the_end_of_a_question_answers_it(answer: str, answered: bool):
    table = Table(answer=answer)
    table.feed(TextTurn("hello"))
    table.work()
    reply = table.session.answers.reply
    table.engine.transcripts[0] = "yeah"
    table.wait(reply.over_at(table.now) - table.now - 5 * FRAME_S)
    hear_no_engine(table, "v", 12)
    table.speak("s", 150)
    table.work()
    assert [event.text for event in table.of(UserTurn)] == (["hello", "yeah"] if answered else ["hello"])


def test_a_setting_that_changes_under_a_voice_holds_at_once():
    table = Table()
    begin_reply(table)
    hear_no_engine(table, "v", 4)
    table.feed(ConfigureSession(PAUSES))
    assert steps(table) == [Duck, Hold]
    table.feed(ConfigureSession(SessionConfig()))
    assert steps(table) == [Duck, Hold]
    hear_no_engine(table, "s", 60)
    assert steps(table) == [Duck, Hold, Release]
