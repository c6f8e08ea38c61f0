"""A conversation whose client keeps its own list of items, commits its own input and asks for its own replies."""

from __future__ import annotations

from dataclasses import replace

import pytest
from session_simulation import SAMPLES_PER_CHAR, SPEAK_RATE, STATS, sound
from session_table import PAUSES, Table, ask, hear_no_engine, submits

from voxlane.engine.api import ChatMessage, ConverseModel, Finished, Refused, Started, Text, Words
from voxlane.server.conversation.client_events import (
    Audio,
    CancelReply,
    ClearInput,
    CommitInput,
    ConfigureSession,
    CutItem,
    DropItem,
    EndTurn,
    PlaceItem,
    Played,
    Respond,
    ShowItem,
    TextTurn,
)
from voxlane.server.conversation.effects import RequestsLost
from voxlane.server.conversation.replies.history import MAX_CHARS, NOTHING_SAID, History
from voxlane.server.conversation.server_events import (
    Duck,
    Fault,
    Hold,
    IdleTimeout,
    InputCleared,
    InputCommitted,
    Interrupted,
    ItemCut,
    ItemDropped,
    ItemPlaced,
    ItemShown,
    Release,
    ReplyDone,
    ReplyStarted,
    ReplyText,
    Speech,
    SpeechDone,
    SpeechStarted,
    SpeechStopped,
    Thought,
    ToolCalled,
    TurnDone,
    UserTurn,
)
from voxlane.server.conversation.turns.pending_turns import MOST_CLIPS
from voxlane.server.conversation.turns.policies import BargePolicy, TurnPolicy
from voxlane.server.conversation.values import Item, SessionConfig

BUFFER = SessionConfig(turns=TurnPolicy(mode="buffer"), replies=False, chains_tools=False)
ASKED = SessionConfig(replies=False, chains_tools=False)


def say(kind: str, text: str, name: str = "i0") -> PlaceItem:
    return PlaceItem(Item(name, kind, text))  # type: ignore[arg-type]


def contents(table: Table) -> list[tuple[str, str]]:
    """Return the last prompt without its instructions."""
    return [(message.role, message.content) for message in submits(table, "chat")[-1].messages[1:]]


def faults(table: Table) -> list[tuple[str, str]]:
    return [(event.code, event.ref) for event in table.of(Fault)]


# ---- input that the client commits


def test_what_is_committed_is_understood_and_answered_when_asked():
    table = Table(BUFFER)
    table.speak("v", 40)
    table.feed(CommitInput())
    table.feed(Respond(BUFFER, tag="mine"))  # its words are not known yet
    assert not table.of(ReplyStarted)
    table.work()
    assert not table.of(SpeechStarted, SpeechStopped)
    (committed,) = table.of(InputCommitted)
    assert table.session.history.get(committed.item).text == "tell me a story"
    (started,) = table.of(ReplyStarted)
    assert started.tag == "mine"
    assert contents(table) == [("user", "tell me a story")]
    assert [event.how for event in table.of(TurnDone)] == ["done"]  # the person's; the reply is still spoken


def test_sound_that_is_gathered_interrupts_nobody():
    table = Table(BUFFER)
    table.feed(say("user", "hello"))
    table.feed(Respond(BUFFER))
    table.work()
    table.speak("v", 50)
    assert not table.of(Interrupted)
    table.wait(60)
    assert table.of(ReplyDone)


def test_too_little_is_no_turn_and_clearing_forgets():
    table = Table(BUFFER)
    table.feed(CommitInput("a"))
    table.speak("v", 4)
    table.feed(CommitInput("b"))
    assert faults(table) == [("input_audio_buffer_commit_empty", name) for name in "ab"]
    table.speak("v", 40)
    table.feed(ClearInput())
    assert table.of(InputCleared)
    table.feed(CommitInput("c"))
    assert faults(table)[-1] == ("input_audio_buffer_commit_empty", "c")
    assert not table.engine.work


def test_a_turn_is_committed_by_the_ear_or_by_the_client():
    table = Table(ASKED)
    table.speak("v", 40)
    table.feed(CommitInput())
    table.work()
    ask(table)
    assert len(table.of(InputCommitted)) == len(table.of(UserTurn)) == 2
    assert not table.of(ReplyStarted)
    assert [event.how for event in table.of(TurnDone)] == ["done", "done"]


def test_a_recording_sent_at_once_is_heard_as_if_it_were_spoken():
    table = Table(ASKED)
    table.feed(Audio(sound("v", 40) + sound("s", 150) + sound("v", 40) + sound("s", 150)))
    table.work()
    assert len(table.of(UserTurn)) == 2


# ---- items


def test_items_stand_where_they_are_placed():
    table = Table(BUFFER)
    table.feed(say("user", "two", "b"))
    table.feed(PlaceItem(Item("a", "user", "one"), after=""))
    table.feed(PlaceItem(Item("d", "assistant", "four"), after="b"))
    table.feed(PlaceItem(Item("c", "user", "three"), after="b"))
    assert [item.id for item in table.session.history.items] == ["a", "b", "c", "d"]
    assert [event.after for event in table.of(ItemPlaced)] == ["", "", "b", "b"]
    table.feed(DropItem("b"))
    table.feed(Respond(BUFFER))
    assert contents(table) == [("user", "one three"), ("assistant", "four")]
    table.feed(ShowItem("c"))
    assert table.of(ItemShown)[-1].item.text == "three"
    assert table.of(ItemDropped)[-1].id == "b"


def test_what_cannot_be_done_to_an_item_is_told_with_the_clients_word_for_it():
    table = Table(BUFFER)
    table.feed(say("user", "hello"))
    table.feed(PlaceItem(Item("i0", "user", "again"), ref="1"))
    table.feed(PlaceItem(Item("i1", "user", "lost"), after="nobody", ref="2"))
    table.feed(DropItem("nobody", "3"))
    table.feed(ShowItem("nobody", "4"))
    table.feed(CutItem("i0", 1.0, "5"))
    table.feed(Respond(BUFFER, input=("nobody",), ref="6"))
    table.feed(CancelReply(ref="7"))
    assert [ref for _, ref in faults(table)] == list("1234567")
    assert not submits(table, "chat")


def test_an_item_that_is_sound_is_understood_before_it_is_answered():
    table = Table(BUFFER)
    table.feed(PlaceItem(Item("clip", "user", spoken=True), pcm=sound("v", 100)))
    table.feed(Respond(BUFFER))
    assert not submits(table, "chat")
    table.work()
    assert contents(table) == [("user", "tell me a story")]
    assert not table.of(UserTurn)


# ---- truncation


def reply_of(table: Table) -> str:
    table.feed(say("user", "hello"))
    table.feed(Respond(BUFFER))
    table.work()
    return table.of(ReplyStarted)[-1].item


def test_a_cut_ends_the_reply_and_leaves_what_was_heard():
    table = Table(BUFFER, answer="Well, that is easy.")
    item = reply_of(table)
    heard = "Well, that"
    table.feed(CutItem(item, len(heard) * SAMPLES_PER_CHAR / SPEAK_RATE))
    assert table.of(ItemCut)[-1].heard == heard
    assert table.of(Interrupted)[-1].heard == heard
    assert not table.engine.work
    table.feed(ShowItem(item))
    assert (table.of(ItemShown)[-1].item.text, table.of(ItemShown)[-1].item.whole) == (heard, False)
    table.feed(say("user", "go on", "i1"))
    table.feed(Respond(BUFFER))
    assert contents(table) == [("user", "hello"), ("assistant", heard), ("user", "go on")]


def test_a_reply_that_is_over_can_still_be_cut_and_never_beyond_its_end():
    table = Table(BUFFER, answer="Well, that is easy.")
    item = reply_of(table)
    table.wait(60)
    assert table.of(ReplyDone)
    table.feed(CutItem(item, 1e6))
    assert table.of(ItemCut)[-1].seconds == table.of(SpeechDone)[-1].samples / SPEAK_RATE
    assert table.session.history.get(item).text == "Well, that is easy."
    table.feed(CutItem(item, len("Well,") * SAMPLES_PER_CHAR / SPEAK_RATE))
    assert table.session.history.get(item).text == "Well,"
    table.feed(CutItem(item, 0.0))
    table.feed(Respond(BUFFER))
    assert contents(table) == [("user", "hello")]


def test_after_an_interruption_the_client_knows_better_what_was_heard():
    config = SessionConfig(barge_in=BargePolicy(at_once=True))
    table = Table(config, answer="Well, that is a very long and winding story.")
    ask(table)
    started = table.of(ReplyStarted)[-1]
    table.wait(0.5)
    table.speak("v", 20)
    (cut,) = table.of(Interrupted)
    assert cut.heard
    table.feed(CutItem(started.item, len("Well,") * SAMPLES_PER_CHAR / SPEAK_RATE))
    assert table.session.history.get(started.item).text == "Well,"


# ---- replies that the client asks for


def test_one_reply_at_a_time_and_the_next_is_played_after_the_last():
    table = Table(BUFFER)
    reply_of(table)
    table.feed(Respond(BUFFER, ref="too soon"))
    assert faults(table) == [("conversation_already_has_active_response", "too soon")]
    while not table.of(SpeechDone):
        table.wait(0.1)
    assert not table.of(ReplyDone)  # it is still being played
    left_s = table.session.answers.reply.over_at(table.now) - table.now
    assert left_s > 0.3
    table.feed(Respond(BUFFER))
    table.work()
    assert len(table.of(ReplyDone)) == 1
    second = table.session.answers.reply
    assert second.position(table.now + left_s - 0.01) == 0
    assert second.position(table.now + left_s + 0.1) > 0


def test_what_was_sent_is_known_to_the_next_reply_though_it_is_still_being_played():
    for aside in (False, True):
        table = Table(ASKED)
        table.feed(say("user", "hello"))
        table.feed(Respond(ASKED))
        table.work()
        while not table.of(SpeechDone):
            table.wait(0.1)
        (started,) = table.of(ReplyStarted)
        text = "".join(event.text for event in table.of(ReplyText)).strip()
        table.feed(ShowItem(started.item))
        (shown,) = table.of(ItemShown)
        assert (shown.item.text, shown.item.whole) == (text, True)
        assert not table.of(ReplyDone)
        table.feed(say("user", "why?", "i1"))
        table.feed(Respond(ASKED, aside=aside))
        assert contents(table) == [("user", "hello"), ("assistant", text), ("user", "why?")]


def test_an_aside_is_said_and_forgotten():
    table = Table(BUFFER, answer="Yes.")
    table.feed(say("user", "hello"))
    before = table.session.history.items
    given = Item("x", "user", "Is this a greeting?")
    table.feed(Respond(SessionConfig(instructions="Judge.", speaks=False), tag="side", aside=True, input=("i0", given)))
    table.feed(Respond(BUFFER, tag="main"))
    table.work()
    assert [event.tag for event in table.of(ReplyStarted)] == ["side", "main"]
    side, main = table.of(ReplyStarted)
    first, second = submits(table, "chat")
    assert [message.content for message in first.messages] == ["Judge.", "hello Is this a greeting?"]
    assert [message.content for message in second.messages][1:] == ["hello"]
    assert not [event for event in table.of(Speech) if event.epoch == side.epoch]
    assert [event.text.strip() for event in table.of(ReplyDone) if event.epoch == side.epoch] == ["Yes."]
    assert {event.epoch for event in table.of(ReplyText)} == {side.epoch, main.epoch}
    assert [item.id for item in table.session.history.items] == [*(item.id for item in before), main.item]


def test_an_aside_about_sound_waits_for_its_words():
    table = Table(BUFFER)
    table.feed(PlaceItem(Item("clip", "user", spoken=True), pcm=sound("v", 100)))
    table.feed(Respond(SessionConfig(speaks=False), aside=True, input=(Item("x", "user", "At once."),)))
    table.feed(Respond(SessionConfig(speaks=False), aside=True, input=("clip",)))
    assert contents(table) == [("user", "At once.")]
    table.work()
    assert contents(table) == [("user", "tell me a story")]


def test_whoever_takes_the_floor_is_told_of_before_whoever_loses_it():
    table = Table()
    ask(table)
    table.wait(0.5)
    table.engine.transcripts[0] = "stop"
    since = len(table.client.events)
    table.speak("v", 60)
    table.work()
    kinds = [type(event) for event in table.client.events[since:]]
    assert kinds.index(SpeechStarted) < kinds.index(Interrupted)


def test_an_interruption_does_not_stop_an_aside():
    table = Table(SessionConfig(barge_in=BargePolicy(at_once=True)))
    ask(table)
    table.wait(0.5)
    table.feed(Respond(SessionConfig(speaks=False), aside=True))
    for _ in range(15):
        table.now += 0.02
        table.feed(Audio(sound("v", 1)))
    table.work()
    (cut,) = table.of(Interrupted)
    side = table.of(ReplyStarted)[1]
    assert cut.epoch != side.epoch
    assert side.epoch in [event.epoch for event in table.of(ReplyDone)]


def test_a_reply_is_cancelled_by_name_or_without():
    table = Table(BUFFER)
    reply_of(table)
    table.feed(Respond(BUFFER, aside=True))
    main, side = table.of(ReplyStarted)
    table.feed(CancelReply(side.epoch))
    assert [event.epoch for event in table.of(Interrupted)] == [side.epoch]
    table.feed(CancelReply())
    assert [event.epoch for event in table.of(Interrupted)] == [side.epoch, main.epoch]
    table.feed(CancelReply(ref="late"))
    assert faults(table) == [("response_cancel_not_active", "late")]
    assert not table.engine.work


def test_a_call_waits_for_its_result_and_for_being_asked():
    table = Table(BUFFER, answer="")
    table.engine.calls.append(("weather", "{}"))
    table.feed(say("user", "What is the weather?"))
    table.feed(Respond(BUFFER))
    table.work()
    (call,) = table.of(ToolCalled)
    assert table.session.history.get(call.item).call_id == call.call_id
    table.feed(PlaceItem(Item("out", "result", "rain", call_id=call.call_id)))
    table.work()
    assert len(table.of(ReplyStarted)) == 1
    table.feed(Respond(BUFFER))
    assert contents(table) == [("user", "What is the weather?"), ("assistant", ""), ("tool", "rain")]


def test_the_cost_of_a_reply_is_told_before_its_end():
    table = Table(BUFFER)
    reply_of(table)
    table.wait(60)
    kinds = [type(event) for event in table.of(Thought, SpeechDone, ReplyDone)]
    assert kinds == [Thought, SpeechDone, ReplyDone]


def test_the_cost_of_a_reply_that_is_cut_is_told_before_its_end():
    table = Table(BUFFER)
    table.feed(say("user", "Hello?"))
    table.feed(Respond(BUFFER))
    (submit,) = submits(table, "chat")
    table.feed(Started(submit.request_id, submit.epoch, 20, 8))
    table.feed(Text(submit.request_id, submit.epoch, "Once upon", tokens=2))
    table.feed(Text(submit.request_id, submit.epoch, " a time", tokens=5))
    table.feed(CancelReply())
    cost, end = table.of(Thought, Interrupted)
    assert cost == Thought(submit.epoch, "cancelled", 20, 8, 5)
    assert isinstance(end, Interrupted)


# ---- silence, and voices that need no second thought


def test_a_long_silence_after_a_reply_is_answered():
    table = Table(SessionConfig(turns=TurnPolicy(idle_s=3.0)))
    table.wait(30)
    assert not table.of(IdleTimeout)  # nobody has spoken at all
    ask(table)
    table.wait(20)
    assert table.of(IdleTimeout)
    assert len(table.of(ReplyStarted)) > 1
    table.feed(ConfigureSession(SessionConfig()))
    count = len(table.of(IdleTimeout))
    table.wait(60)
    assert len(table.of(IdleTimeout)) == count
    assert len(table.of(TurnDone)) == len(table.of(ReplyStarted))


@pytest.mark.parametrize("task", ["chat", "converse"])
def test_the_model_is_told_that_nothing_was_said_and_it_stays_told(task: str):
    """Else it would answer itself, and the next prompt would not begin like the one before."""
    speech = ConverseModel("lfm2-audio", 4000, 12.5, SAMPLES_PER_CHAR) if task == "converse" else None
    table = Table(SessionConfig(turns=TurnPolicy(idle_s=3.0)), session={"speech": speech, "chats": speech is None})
    ask(table)
    table.wait(20)
    first, again, *_ = asked = submits(table, task)
    told = [(*one.messages, *([ChatMessage("user", one.text)] if one.text else [])) for one in asked]
    assert [message.role for message in told[1]] == ["system", "user", "assistant", "user"]
    assert told[1][-1].content == NOTHING_SAID
    assert first.messages == again.messages[: len(first.messages)]
    assert told[2][:4] == told[1]
    assert [message.role for message in told[2][4:]] == ["assistant", "user"]


def test_any_voice_takes_the_floor_at_once_where_that_is_wanted():
    table = Table(SessionConfig(barge_in=BargePolicy(at_once=True)))
    table.engine.transcripts[0] = "mhm"
    ask(table)
    table.wait(0.5)
    table.feed(Played(table.of(ReplyStarted)[-1].epoch, SPEAK_RATE // 4))
    table.speak("v", 5)
    assert table.of(Interrupted)


# ---- what once got lost, stuck or doubled


def talking(config: SessionConfig, answer: str = "Well, that is easy. It was a sunny day, and we went home.") -> Table:
    """Return a table at which a reply is being heard."""
    table = Table(config, answer=answer)
    table.feed(say("user", "hello"))
    table.feed(Respond(config))
    table.work()
    table.wait(0.5)
    return table


def test_a_reply_asked_for_during_a_hold_follows_the_release():
    table = talking(replace(PAUSES, chains_tools=False))
    while not table.of(SpeechDone):
        table.wait(0.1)
    hear_no_engine(table, "n", 3)
    assert table.of(Hold)
    table.feed(Respond(SessionConfig(), tag="next"))
    assert not faults(table)
    table.speak("s", 60)
    table.work()
    assert table.of(Release)
    assert table.of(ReplyStarted)[-1].tag == "next"


def test_a_reply_that_waits_for_words_can_be_cancelled():
    table = Table(BUFFER)
    table.speak("v", 40)
    table.feed(CommitInput())
    table.feed(Respond(BUFFER, tag="never"))
    table.feed(CancelReply())
    assert [type(event) for event in table.of(ReplyStarted, Interrupted)] == [ReplyStarted, Interrupted]
    table.work()
    table.wait(10)
    assert len(table.of(ReplyStarted)) == 1


def test_a_cancel_without_a_name_spares_asides():
    table = Table(BUFFER)
    table.feed(Respond(SessionConfig(speaks=False), aside=True))
    table.feed(CancelReply(ref="r"))
    assert faults(table) == [("response_cancel_not_active", "r")]
    table.work()
    assert table.of(ReplyDone)


def test_a_voice_does_not_take_a_reply_that_nobody_may_interrupt_before_its_first_sound():
    table = Table(SessionConfig(interruptible=False))
    table.feed(say("user", "hello"))
    table.feed(Respond(SessionConfig(interruptible=False)))
    hear_no_engine(table, "v", 20)
    hear_no_engine(table, "s", 60)
    table.work()
    table.wait(60)
    assert not table.of(Interrupted)
    assert len(table.of(ReplyDone)) == 2


def test_sound_that_is_placed_while_a_turn_is_understood_does_not_swallow_its_answer():
    table = Table()
    hear_no_engine(table, "v", 40)
    hear_no_engine(table, "s", 150)
    table.feed(PlaceItem(Item("clip", "user", spoken=True), pcm=sound("v", 50)))
    table.work()
    table.wait(30)
    assert len(table.of(ReplyDone)) == 1


def test_a_turn_that_fails_does_not_take_the_answer_to_the_one_before_it():
    table = Table()
    hear_no_engine(table, "v", 40)
    table.feed(EndTurn())
    hear_no_engine(table, "v", 40)
    table.feed(EndTurn())
    first, second = submits(table, "asr")
    table.feed(Words(first.request_id, 0, "tell me a story", "", 0.0, covered_s=1e6))
    table.feed(Finished(first.request_id, 0, "eos", STATS))
    table.feed(Refused(second.request_id, 0, "overloaded", "busy"))
    assert submits(table, "chat")


def test_a_reply_that_was_prepared_knows_what_was_placed_since():
    table = Table()
    table.speak("v", 40)
    table.speak("s", 10)
    assert table.session.answers.reply.stage == "tentative"
    table.feed(say("system", "The caller is Ada."))
    table.speak("s", 60)
    assert submits(table, "chat")[-1].messages[0].content.endswith("The caller is Ada.")


def test_a_voice_is_ended_when_the_client_takes_over():
    for frames, ended in ((3, 0), (40, 1)):
        table = talking(SessionConfig())
        hear_no_engine(table, "v", frames)
        assert table.of(Hold if ended else Duck)
        table.feed(ConfigureSession(BUFFER))
        assert len(table.of(Interrupted)) == len(table.of(SpeechStopped)) == ended
        assert len(table.of(Release)) == 1 - ended


def test_nobody_answers_by_itself_where_only_the_client_does():
    table = Table(ASKED)
    table.feed(say("user", "hello"))
    table.feed(Respond(ASKED))
    table.engine.transcripts[0] = ""
    hear_no_engine(table, "v", 20)  # before its first sound
    hear_no_engine(table, "s", 100)
    table.work()
    table.wait(60)
    assert len(table.of(ReplyStarted)) == 1


def test_what_was_said_beside_a_reply_is_answered_once():
    config = SessionConfig(interruptible=False, chains_tools=False)
    table = talking(config)
    table.speak("v", 20)
    table.speak("s", 60)
    assert len(table.of(UserTurn)) == 1
    while not table.of(SpeechDone):
        table.wait(0.1)
    table.feed(Respond(config))
    table.work()
    table.wait(60)
    assert len(table.of(ReplyDone)) == 2


def test_what_is_remembered_is_bounded_whatever_it_is():
    history = History()
    for number in range(50):
        history.place(Item(f"r{number}", "result", "x" * 5000, call_id="c"))
    assert sum(len(item.text) for item in history.items) <= MAX_CHARS
    history.place(Item("q", "user", "look"))
    history.place(Item("long", "result", "y" * 32_000, call_id="c"))
    for _ in range(3):
        size = sum(len(item.text) for item in history.items)
        history.shorten()
        assert sum(len(item.text) for item in history.items) < size
    assert history.get("q").text == "look"


def test_clips_whose_words_are_awaited_are_few():
    table = Table(BUFFER)
    for number in range(20):
        table.feed(PlaceItem(Item(f"i{number}", "user", spoken=True), pcm=sound("v", 50), ref="r"))
    assert len(submits(table, "asr")) == MOST_CLIPS
    assert set(faults(table)) == {("too_many_audio_items", "r")}


def test_a_committed_turn_that_could_not_be_heard_fails():
    table = Table(BUFFER)
    hear_no_engine(table, "v", 10)
    (asr,) = submits(table, "asr")
    table.feed(Refused(asr.request_id, 0, "overloaded", "busy"))
    hear_no_engine(table, "v", 40)
    assert len(submits(table, "asr")) == 1
    table.feed(CommitInput())
    assert [type(event) for event in table.of(InputCommitted, TurnDone)] == [InputCommitted, TurnDone]
    assert table.of(TurnDone)[0].how == "failed"


def test_a_reply_that_waits_survives_the_engine():
    table = Table(BUFFER)
    table.feed(say("user", "hello"))
    table.speak("v", 40)
    table.feed(CommitInput())
    table.feed(Respond(BUFFER))
    table.engine.work.clear()
    table.feed(RequestsLost())
    table.work()
    table.wait(60)
    assert table.of(ReplyDone)


@pytest.mark.parametrize("task", ["chat", "converse"])
def test_a_reply_that_was_complete_when_the_engine_was_lost_is_heard_to_its_end(task: str):
    speech = ConverseModel("lfm2-audio", 4000, 12.5, SAMPLES_PER_CHAR) if task == "converse" else None
    table = Table(session={"speech": speech, "chats": speech is None})
    ask(table)
    table.work()
    table.wait(0.5)
    assert not table.of(ReplyDone)
    table.engine.work.clear()
    table.feed(RequestsLost())
    table.wait(60)
    (done,) = table.of(ReplyDone)
    assert done.text.strip() == table.engine.answer
    assert [event.how for event in table.of(TurnDone)] == ["done"]
    kept = table.session.history.items[-1]
    assert (kept.text, kept.whole) == (table.engine.answer, True)
    assert len(kept.pieces) == (2 * len(done.text) if speech else 0)
    ask(table)
    assert submits(table, task)[-1].messages[2].content == kept.text


@pytest.mark.parametrize("task", ["chat", "converse"])
def test_a_reply_that_was_not_complete_when_the_engine_was_lost_fails_with_what_was_heard(task: str):
    speech = ConverseModel("lfm2-audio", 4000, 12.5, SAMPLES_PER_CHAR) if task == "converse" else None
    table = Table(session={"speech": speech, "chats": speech is None})
    table.feed(TextTurn("hello"))
    while not table.client.samples:
        table.work(1)
    table.engine.work.clear()
    table.feed(RequestsLost())
    assert [event.code for event in table.of(Fault)] == ["engine_lost"]
    table.wait(60)
    assert [event.how for event in table.of(TurnDone)] == ["failed"]
    (done,) = table.of(ReplyDone)
    assert 0 < len(done.text) < len(table.engine.answer)
    assert table.engine.answer.startswith(done.text)
    ask(table)
    table.wait(60)
    assert submits(table, task)[-1].messages[2].content == done.text
    assert [event.how for event in table.of(TurnDone)] == ["failed", "done"]


def test_silence_is_counted_from_the_last_voice():
    table = Table(SessionConfig(turns=TurnPolicy(idle_s=3.0)))
    ask(table)
    while table.session.answers.reply is not None:
        table.wait(0.1)
    table.engine.transcripts[0] = ""
    table.speak("s", 100)
    table.speak("v", 40)
    table.speak("s", 100)
    assert not table.of(IdleTimeout)
    table.speak("s", 150)
    assert table.of(IdleTimeout)
