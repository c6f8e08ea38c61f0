"""Corners of a conversation in which words, answers or the ear were once lost: each a case of its own."""

from __future__ import annotations

from collections import deque

import pytest
from session_simulation import SPEAK_RATE, STATS, sound
from session_table import PAUSES, Table, ask, begin_reply, hear_no_engine, submits

from voxlane.engine.api import (
    Cancel,
    EndInput,
    Finished,
    Refused,
    Samples,
    SpeakParams,
    SpokenWord,
    Submit,
    Text,
    Tool,
    Words,
)
from voxlane.server.conversation.client_events import (
    Audio,
    ConfigureSession,
    EndTurn,
    StartTurn,
    Stop,
    TextTurn,
    ToolResult,
)
from voxlane.server.conversation.effects import RequestsLost, Send, SendToEngine, Tick
from voxlane.server.conversation.replies.answers import MOST_TOOL_ROUNDS
from voxlane.server.conversation.replies.reply import Reply
from voxlane.server.conversation.server_events import (
    Duck,
    Fault,
    FloorState,
    Hold,
    Interrupted,
    Release,
    ReplyDone,
    ReplyStarted,
    Speech,
    SpeechDone,
    SpeechStarted,
    SpeechStopped,
    ToolCalled,
    TurnDone,
    UserTurn,
)
from voxlane.server.conversation.turns.policies import TurnPolicy
from voxlane.server.conversation.values import Item, SessionConfig

MANUAL = SessionConfig(turns=TurnPolicy(mode="manual"))
MOST_EVENTS = 500  # that may come of one; more than that is a loop


def test_a_reply_is_said_as_the_conversation_wants_it() -> None:
    names = ("Siobhan = shiv-awn",)
    config = SessionConfig("", "ryan", "german", "Whisper.", names, seed=5)
    table = Table(config)
    begin_reply(table)
    (submit,) = submits(table, "tts")
    assert submit.speak == SpeakParams("ryan", 1.0, 5, "german", "Whisper.", live=True, pronunciations=names)


def told(table: Table) -> list:
    """Return what the session told the engine."""
    return [effect.message for effect in table.log if isinstance(effect, SendToEngine)]


def turns(table: Table) -> list[str]:
    """Return the words of the user's turns."""
    return [turn.text for turn in table.of(UserTurn)]


def feed_refusing(table: Table, event, task: str) -> int:
    """Feed an event while the engine refuses every request of a task at once; return how many events came of it."""
    waiting, fed = deque([event]), 0
    while waiting and fed < MOST_EVENTS:
        effects = table.session.feed(waiting.popleft(), table.now)
        fed += 1
        table.log += effects
        for effect in effects:
            message = effect.message if isinstance(effect, SendToEngine) else None
            if isinstance(message, Submit) and message.task == task:
                waiting.append(Refused(message.request_id, message.epoch, "overloaded", "too much to do"))
            else:
                table.client.apply([effect], table.engine)
    return fed


def test_noise_does_not_end_a_push_to_talk_turn():
    table = Table(MANUAL)
    table.feed(StartTurn())
    table.speak("s", 10)
    table.speak("n", 5)  # keys, a knock
    table.speak("v", 60)
    table.feed(EndTurn())
    table.work()
    assert turns(table) == ["tell me a story"]


def test_what_is_said_during_an_uninterruptible_reply_is_answered_after_it():
    table = Table(SessionConfig(interruptible=False))
    begin_reply(table)
    table.speak("v", 20)
    table.speak("s", 5)
    table.work()
    table.wait(120)
    assert turns(table) == ["hello", "tell me a story"]
    assert not table.of(Hold, Interrupted)
    kinds = [type(event) for event in table.of(UserTurn, ReplyStarted, ReplyDone)]
    assert kinds == [UserTurn, ReplyStarted, UserTurn, ReplyDone, ReplyStarted, ReplyDone]
    ask(table)
    table.wait(60)
    assert turns(table) == ["hello", "tell me a story", "tell me a story"]
    assert [event.how for event in table.of(TurnDone)] == ["done"] * 3


def test_a_murmur_during_an_uninterruptible_reply_is_not_answered():
    table = Table(SessionConfig(interruptible=False))
    table.engine.transcripts[0] = "mhm"
    begin_reply(table)
    table.speak("v", 20)
    table.speak("s", 5)
    table.work()
    table.wait(120)
    assert len(table.of(ReplyStarted)) == 1
    assert len(table.of(TurnDone)) == 2


def test_speech_in_manual_mode_does_not_deafen_the_ear():
    table = Table(MANUAL)
    table.speak("v", 20)
    table.speak("s", 20)
    table.feed(ConfigureSession(SessionConfig()))
    table.speak("s", 100)
    ask(table)
    assert turns(table) == ["tell me a story"]


def test_a_voice_that_begins_just_before_the_first_frame_interrupts():
    table = Table()
    table.feed(TextTurn("hello"))
    for _ in range(5):
        table.feed(table.engine.bring("s/chat1"))
    hear_no_engine(table, "v", 3)  # an onset while the reply is silent: no hold
    table.work()  # its first frame leaves before the ear is certain
    assert table.of(Speech)
    table.engine.transcripts[0] = "no I meant something else entirely"
    table.speak("v", 100)  # two seconds of speech
    table.speak("s", 60)
    table.work()
    assert table.of(Interrupted)


def test_a_refused_tentative_reply_is_not_asked_for_again_and_again():
    table = Table()
    table.speak("v", 40)
    fed = 0
    for _ in range(60):
        table.now += 0.02
        fed += feed_refusing(table, Audio(sound("s", 1)), "chat")
        for name in table.engine.ready():
            fed += feed_refusing(table, table.engine.bring(name), "chat")
    assert submits(table, "chat")
    assert fed < 400


def test_words_of_a_closed_turn_that_come_while_a_tool_is_awaited_are_kept():
    table = Table(answer="Let me see.")
    hear_no_engine(table, "v", 40)
    hear_no_engine(table, "s", 5)
    table.feed(EndTurn())  # its words are slow to come
    table.engine.calls.append(("weather", "{}"))
    table.feed(TextTurn("What is the weather?"))
    while ready := [name for name in table.engine.ready() if "hear" not in name]:
        table.feed(table.engine.bring(ready[0]))
    for _ in range(400):
        table.now += 0.1
        table.feed(Tick())
    (call,) = table.of(ToolCalled)
    assert table.of(ReplyDone)
    table.work()  # now the words
    table.feed(ToolResult(call.call_id, "rain"))
    prompt = submits(table, "chat")[-1].messages
    assert [message.role for message in prompt] == ["system", "user", "assistant", "tool"]
    assert prompt[1].content == "tell me a story What is the weather?"  # in the order in which it was said


def test_a_microphone_that_goes_mute_in_mid_word_ends_the_turn():
    table = Table()
    table.speak("v", 40)
    table.wait(600)
    table.work()
    assert turns(table) == ["tell me a story"]


def test_a_turn_does_not_end_while_the_person_may_just_go_on():
    table = Table(SessionConfig(turns=TurnPolicy(min_wait_s=0.5, max_wait_s=0.5)))
    table.speak("v", 40)
    table.ear.may_speak = True
    table.speak("s", 29)  # 0.58 s: long enough, but the last sound may be a voice
    assert not table.of(SpeechStopped)
    table.speak("s", 6)  # it was none
    assert len(table.of(SpeechStopped)) == 1


def test_a_turn_that_may_go_on_ends_although_no_more_sound_comes():
    table = Table(SessionConfig(turns=TurnPolicy(min_wait_s=2.2, max_wait_s=2.2)))
    table.speak("v", 40)
    table.ear.may_speak = True
    table.speak("s", 111)
    assert not table.of(SpeechStopped)
    table.wait(200)
    assert len(table.of(SpeechStopped)) == 1


def test_a_pause_ends_the_turn_although_the_longest_turn_is_shorter_and_no_more_sound_comes():
    table = Table(SessionConfig(turns=TurnPolicy(min_wait_s=2.2, max_wait_s=2.2, max_turn_s=2.2)))
    table.speak("v", 40)
    table.speak("s", 10)
    table.wait(3000)
    assert len(table.of(SpeechStopped)) == 1


@pytest.mark.parametrize("config", [PAUSES, SessionConfig()])
def test_a_microphone_that_goes_mute_after_a_click_lets_the_reply_go_on(config):
    table = Table(config)
    begin_reply(table)
    table.speak("v", 2)
    assert table.of(Hold, Duck)
    table.wait(600)
    assert table.of(Release)


def test_noise_taken_for_speech_does_not_cost_the_answer():
    table = Table()
    table.feed(TextTurn("hello"))
    table.engine.transcripts[0] = ""  # a slam while the model thinks: no words come of it
    hear_no_engine(table, "v", 6)
    table.speak("s", 200)
    table.work()
    table.wait(60)
    assert [message.role for message in table.session.history.messages] == ["user", "assistant"]


@pytest.mark.parametrize("config", [PAUSES, SessionConfig()])
def test_a_text_typed_during_a_cough_is_answered(config):
    table = Table(config)
    begin_reply(table)
    hear_no_engine(table, "n", 2)
    assert table.of(Hold, Duck)
    table.feed(TextTurn("and then?"))
    hear_no_engine(table, "n", 2)
    table.speak("s", 200)
    table.work()
    table.wait(60)
    assert len(table.of(ReplyDone)) == 1


def test_two_turns_in_a_breath_lose_no_words():
    table = Table(MANUAL)
    for _ in range(2):
        table.feed(StartTurn())
        hear_no_engine(table, "v", 50)
        table.feed(EndTurn())
    table.work()
    assert len(table.of(UserTurn)) == 2


def test_a_prompt_too_long_does_not_stay_forever():
    table = Table()
    for text in ["x " * 8000, "hello", "hello"]:
        table.feed(TextTurn(text))
        chat = submits(table, "chat")[-1]
        table.engine.work.clear()
        if sum(len(message.content) for message in chat.messages) > 12_000:
            table.feed(Refused(chat.request_id, chat.epoch, "too_long", "too long"))
    assert sum(len(message.content) for message in submits(table, "chat")[-1].messages) < 12_000


def test_history_is_bounded_without_replies():
    table = Table()
    for number in range(20):
        table.session.history.place(Item(f"item{number}", "user", "word " * 2000))
    assert sum(len(item.text) for item in table.session.history.shown) <= 10_000
    assert sum(len(message.content) for message in table.session.history.messages) <= 64_000


def test_a_manual_turn_has_a_longest_duration():
    table = Table(SessionConfig(turns=TurnPolicy(mode="manual", max_turn_s=5)))
    table.feed(StartTurn())
    table.speak("v", 1000)  # 20 s
    assert table.of(SpeechStarted)
    assert table.of(UserTurn)


def test_a_required_tool_is_required_once():
    table = Table(SessionConfig(tools=(Tool("weather"),), tool_choice="required"), answer="")
    table.engine.calls.append(("weather", "{}"))
    table.feed(TextTurn("What is the weather?"))
    table.work()
    table.wait(10)
    (call,) = table.of(ToolCalled)
    table.feed(ToolResult(call.call_id, "rain"))
    assert [submit.tool_choice for submit in submits(table, "chat")] == ["required", "auto"]


def test_a_model_that_never_stops_calling_must_speak_at_last():
    table = Table(SessionConfig(tools=(Tool("weather"),)), answer="")
    for _ in range(2):
        before = len(submits(table, "chat"))
        table.engine.calls.extend([("weather", "{}")] * MOST_TOOL_ROUNDS)
        table.feed(TextTurn("What is the weather?"))
        for _ in range(MOST_TOOL_ROUNDS):
            table.work()
            table.wait(10)
            table.feed(ToolResult(table.of(ToolCalled)[-1].call_id, "rain"))
        choices = [submit.tool_choice for submit in submits(table, "chat")[before:]]
        assert choices == ["auto"] * MOST_TOOL_ROUNDS + ["none"]
        table.work()
        table.wait(10)
        assert table.of(TurnDone)[-1].how == "done"


def test_our_own_cancel_is_no_second_fault():
    table = Table(answer="One two three four five, six seven. " * 10)
    table.feed(TextTurn("hello"))
    while not any("say" in name for name in table.engine.ready()):
        table.feed(table.engine.bring("s/chat1"))
    table.feed(table.engine.bring("s/say1"))
    table.feed(Finished("s/say1", 1, "failed", STATS))
    assert Cancel("s/chat1") in told(table)
    events = table.feed(Text("s/chat1", 1, "in flight "))
    table.feed(Finished("s/chat1", 1, "cancelled", STATS))  # as the engine answers that Cancel
    assert len(table.of(Fault)) == 1
    assert not events


def test_a_noise_and_a_voice_in_one_piece_of_audio_are_told_apart():
    table = Table()
    table.now += 0.5
    table.feed(Audio(sound("n", 4) + sound("v", 15) + sound("s", 4)))
    table.work()
    table.speak("s", 500)
    table.work()
    assert turns(table) == ["tell me a story"]


def test_the_probe_warms_the_cache_the_answer_uses():
    table = Table(SessionConfig(tools=(Tool("weather"),)))
    ask(table)
    assert submits(table, "probe")[0].tools == submits(table, "chat")[0].tools


def test_stop_while_the_last_words_are_awaited_prevents_the_reply():
    table = Table()
    hear_no_engine(table, "v", 40)
    table.feed(EndTurn())
    assert table.of(FloorState)[-1].name == "thinking"
    table.feed(Stop())
    table.work()
    assert not table.of(ReplyStarted)


def test_a_turn_begun_by_hand_while_a_noise_is_suspected_interrupts():
    table = Table()
    begin_reply(table)
    table.speak("n", 2)
    table.feed(StartTurn())
    table.speak("n", 2)
    table.speak("s", 30)
    assert table.of(Interrupted)


def test_a_prepared_reply_that_does_not_know_the_turn_before_is_not_used():
    table = Table()
    hear_no_engine(table, "v", 40)
    hear_no_engine(table, "s", 3)
    table.feed(Words("s/hear1", 0, "", "my name is Ada", 0.0, covered_s=1e6))
    table.feed(EndTurn())  # the last words of the first are slow
    hear_no_engine(table, "v", 40)
    table.feed(Words("s/hear2", 0, "what is my name?", "", 0.0, covered_s=1e6))
    while not submits(table, "chat"):
        hear_no_engine(table, "s", 1)
    while EndInput("s/hear2") not in told(table):
        hear_no_engine(table, "s", 1)
    table.feed(Finished("s/hear2", 0, "eos", STATS))
    table.feed(Words("s/hear1", 0, "my name is Ada", "", 0.0, covered_s=1e6))
    table.feed(Finished("s/hear1", 0, "eos", STATS))
    live = table.of(ReplyStarted)[-1]
    prompt = next(submit for submit in submits(table, "chat") if submit.epoch == live.epoch).messages
    assert "Ada" in prompt[-1].content


def test_a_setting_changed_before_the_reply_begins_holds_for_it():
    table = Table()
    table.speak("v", 40)
    while not submits(table, "chat"):
        hear_no_engine(table, "s", 1)
    table.feed(ConfigureSession(SessionConfig(speaks=False)))  # a text client from now on
    table.speak("s", 100)
    table.work()
    assert table.of(UserTurn)
    assert not table.of(Speech)


def test_the_same_call_id_may_come_in_two_turns():
    history = Table().session.history
    for number in (1, 2):
        history.place(Item(f"question{number}", "user", f"question {number}"))
        history.place(Item(f"call{number}", "call", "{}", "f", "call_0"))
        history.place(Item(f"result{number}", "result", f"result {number}", call_id="call_0"))
    assert [message.role for message in history.messages] == ["user", "assistant", "tool"] * 2


def test_a_voice_that_ends_before_its_text_leaves_what_was_heard():
    table = Table()
    table.feed(TextTurn("hello"))
    (name,) = [name for name in table.engine.work if "chat" in name]
    while name in table.engine.work:
        table.feed(table.engine.bring(name))
    (voice,) = submits(table, "tts")
    table.feed(table.engine.bring(voice.request_id))
    table.feed(Finished(voice.request_id, voice.epoch, "length", STATS))
    table.wait(30)
    (done,) = table.of(ReplyDone)
    assert table.engine.answer.startswith(done.text)
    assert 0 < len(done.text) < len(table.engine.answer)
    assert [message.content for message in table.session.history.messages] == ["hello", done.text]
    assert [(fault.code, fault.retryable) for fault in table.of(Fault)] == [("engine_failed", False)]
    assert [turn.how for turn in table.of(TurnDone)] == ["failed"]


def test_words_whose_times_come_after_all_sound_was_sent_are_told():
    reply = Reply(1, 1, "s", SessionConfig(), SPEAK_RATE)
    reply.add_text("Hello there.", 0.0)
    reply.add_samples(Samples("x", 1, 0, bytes(2 * 120), (SpokenWord(0, 5, 0, 50),)), 0.0)
    reply.end_text()
    sent = reply.pump(0.0)
    reply.add_samples(Samples("x", 1, 120, b"", (SpokenWord(6, 12, 50, 120),)), 0.0)
    reply.end_samples()
    frames = [effect.event for effect in [*sent, *reply.pump(1.0)] if isinstance(effect, Send)]
    assert [word.end for frame in frames if isinstance(frame, Speech) for word in frame.words] == [5, 12]
    assert frames[-1] == SpeechDone(1, 120)


def test_a_refused_ear_does_not_shout():
    table = Table()
    begin_reply(table)
    for _ in range(50):
        table.now += 0.02
        feed_refusing(table, Audio(sound("v", 1)), "asr")
    assert 1 <= len(table.of(Fault)) <= 2


def half_a_sentence() -> Table:
    """Return a table at which a turn was ended on "by her" although the person said "by" and stopped to think."""
    table = Table()
    hear_no_engine(table, "v", 40)
    hear_no_engine(table, "s", 3)
    table.feed(Words("s/hear1", 0, "", "the one was by her", 0.0, covered_s=1e6))
    while EndInput("s/hear1") not in told(table):
        hear_no_engine(table, "s", 1)
    table.feed(Words("s/hear1", 0, "the one was by", "", 0.0, covered_s=1e6))
    table.feed(Finished("s/hear1", 0, "eos", STATS))
    assert not table.of(UserTurn, ReplyStarted)
    return table


def test_an_end_on_words_that_change_to_half_a_sentence_is_taken_back() -> None:
    table = half_a_sentence()
    hear_no_engine(table, "v", 20)
    table.feed(Words("s/hear2", 0, "my sister", "", 0.0, covered_s=1e6))
    while EndInput("s/hear2") not in told(table):
        hear_no_engine(table, "s", 1)
    table.feed(Finished("s/hear2", 0, "eos", STATS))
    assert [turn.text for turn in table.of(UserTurn)] == ["the one was by", "my sister"]
    assert [(done.turn, done.how) for done in table.of(TurnDone)] == [(1, "interrupted")]
    assert [reply.turn for reply in table.of(ReplyStarted)] == [2], "both turns get one answer"


def test_an_end_on_words_that_change_is_answered_if_the_silence_goes_on() -> None:
    table = half_a_sentence()
    table.wait(3.0)
    assert [turn.text for turn in table.of(UserTurn)] == ["the one was by"]
    assert len(table.of(ReplyStarted)) == 1


def test_typing_while_half_a_sentence_waits_keeps_its_words() -> None:
    table = half_a_sentence()
    table.feed(TextTurn("Who was it?"))
    prompt = submits(table, "chat")[-1].messages
    assert "the one was by" in " ".join(message.content for message in prompt)


def test_a_turn_whose_words_are_known_outlives_the_engine() -> None:
    table = half_a_sentence()
    table.feed(RequestsLost())
    table.wait(3.0)
    assert [turn.text for turn in table.of(UserTurn)] == ["the one was by"]


@pytest.mark.parametrize(
    ("heard", "last", "answered"),
    [
        ("You", None, False),  # a cough, as Moonshine writes it
        ("Mm-hmm,", "It is the longest river.", False),
        ("Uh-huh", "Shall I go on?", True),
        ("Huh?", "It is the longest river.", True),
        ("You can stop.", None, True),
        ("Okay.", "It is the longest river.", True),
    ],
)
def test_a_cough_in_silence_is_not_answered(heard: str, last: str | None, answered: bool) -> None:
    table = Table()
    if last is not None:
        table.session.answers.history.place(Item("before", "assistant", last))
    table.engine.transcripts[0] = heard
    ask(table)
    table.wait(5)
    assert [turn.text for turn in table.of(UserTurn)] == [heard]
    assert len(table.of(TurnDone)) == 1
    assert bool(table.of(ReplyStarted)) is answered


def test_a_hum_that_the_client_ends_itself_is_answered() -> None:
    table = Table(MANUAL)
    table.engine.transcripts[0] = "Mm-hmm"
    table.feed(StartTurn())
    table.speak("v", 30)
    table.feed(EndTurn())
    table.work()
    table.wait(2)
    assert table.of(ReplyStarted)
