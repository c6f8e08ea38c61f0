"""Conversations with a speech-to-speech model: the sound of a turn is answered in text and sound by one request."""

from __future__ import annotations

import gc
from types import FunctionType, ModuleType
from typing import Literal

import pytest
from session_simulation import SAMPLES_PER_CHAR, SPEAK_RATE, STATS, sound
from session_table import PAUSES, Table, ask, begin_reply, hear_no_engine, submits

from voxlane.engine.api import (
    LISTEN_RATE,
    MAX_UNHEARD_S,
    Append,
    Cancel,
    ChatMessage,
    ConverseModel,
    EndInput,
    Finished,
    Pause,
    Refused,
    Resume,
    Submit,
    encode,
    fragments,
    heard_pieces,
)
from voxlane.server.conversation.client_events import (
    CommitInput,
    CutItem,
    PlaceItem,
    Played,
    Respond,
    Say,
    Stop,
    TextTurn,
)
from voxlane.server.conversation.effects import SendToEngine
from voxlane.server.conversation.replies.answers import Answers
from voxlane.server.conversation.replies.history import SOUND_BYTES as KEPT_SOUND
from voxlane.server.conversation.replies.history import History, spoken_prompt_of
from voxlane.server.conversation.server_events import (
    Fault,
    Hold,
    Interrupted,
    Release,
    ReplyDone,
    ReplyStarted,
    ReplyText,
    Speech,
    Thought,
    TurnDone,
    UserTurn,
)
from voxlane.server.conversation.turns.policies import TurnPolicy
from voxlane.server.conversation.values import Item, SessionConfig

MODEL = ConverseModel("lfm2-audio", 4000, 12.5, SAMPLES_PER_CHAR)
SOUND_BYTES = len(sound("v", 1))


def table(config: SessionConfig | None = None, *, chats: bool = True) -> Table:
    return Table(config, session={"speech": MODEL, "chats": chats})


def sent(one: Table, kind: type) -> list:
    return [effect.message for effect in one.log if isinstance(effect, SendToEngine) and type(effect.message) is kind]


def said(one: Table, request: str) -> bytes:
    return b"".join(append.audio for append in sent(one, Append) if append.request_id == request)


def written(answer: str) -> tuple[tuple[int, ...], ...]:
    """Return the pieces of the scripted answer."""
    words = [f"{word} " for word in answer.split(" ")]
    return tuple(
        piece for word in words for piece in (*((ord(one),) for one in word), *((ord(one), 1) for one in word))
    )


def reached(one: Table) -> list:
    """Return every object that a session reaches, without its ear, which keeps the last sound."""
    found, todo = {}, [one.session]
    skipped = {id(one.ear)}
    while todo:
        thing = todo.pop()
        if id(thing) in found or id(thing) in skipped or isinstance(thing, type | ModuleType | FunctionType):
            continue
        found[id(thing)] = thing
        todo += gc.get_referents(thing)
    return list(found.values())


def kept_sound(one: Table) -> int:
    """Return how many bytes of sound a session keeps."""
    return sum(len(thing) for thing in reached(one) if isinstance(thing, bytes | bytearray))


def test_the_sound_of_a_turn_is_answered_by_one_request():
    one = table()
    ask(one)
    one.wait(60)
    assert not submits(one, "chat")
    assert not submits(one, "tts")
    (asked,) = submits(one, "converse")
    heard = said(one, asked.request_id)
    assert heard.count(sound("v", 1)[:2]) >= 40 * 320  # all of the voice
    assert len(heard) < (40 + 15 + 15) * SOUND_BYTES  # and little of the silence before and behind it
    assert [end.request_id for end in sent(one, EndInput)].count(asked.request_id) == 1
    (done,) = one.of(ReplyDone)
    assert done.text == one.engine.answer + " "
    assert "".join(event.text for event in one.of(ReplyText)) == done.text
    assert sum(len(event.pcm) for event in one.of(Speech)) == 2 * SAMPLES_PER_CHAR * len(done.text)
    assert [event.how for event in one.of(TurnDone)] == ["done"]
    assert one.of(Thought)[-1].reason == "eos"
    user, reply = one.session.history.items
    assert (user.text, user.sound) == ("tell me a story", heard)
    assert (reply.text, reply.pieces) == (one.engine.answer, written(one.engine.answer))


def test_the_answer_is_under_way_before_the_last_words_are_known():
    one = table()
    one.speak("v", 40)
    hear_no_engine(one, "s", 150)  # the recogniser sends nothing more, and no word of the turn is final
    (asked,) = submits(one, "converse")
    assert not one.of(UserTurn)
    assert not one.of(ReplyStarted)  # only the words show whether there is anything to answer
    one.work()
    (reply,) = one.of(ReplyStarted)
    assert [submit.request_id for submit in submits(one, "converse")] == [asked.request_id]
    assert reply.epoch == asked.epoch


def test_other_last_words_do_not_end_an_answer_to_the_same_sound():
    one = table()
    one.engine.transcripts[0] = "tell me a"
    one.speak("v", 40)
    hear_no_engine(one, "s", 150)
    one.engine.transcripts[0] = "tell me a story"
    one.work()
    one.wait(60)
    assert len(submits(one, "converse")) == 1
    assert one.session.history.items[0].text == "tell me a story"


def test_a_person_who_goes_on_is_answered_anew_with_all_that_was_said():
    one = table()
    one.speak("v", 40)
    one.speak("s", 8)
    first = submits(one, "converse")
    assert first
    one.speak("v", 40)
    one.speak("s", 100)
    one.work()
    one.wait(60)
    *before, last = submits(one, "converse")
    assert before[: len(first)] == first
    cancelled = {cancel.request_id for cancel in sent(one, Cancel)}
    assert {submit.request_id for submit in before} <= cancelled
    assert said(one, last.request_id).count(sound("v", 1)[:2]) >= 80 * 320
    assert len(one.of(ReplyDone)) == 1


def test_a_turn_without_words_is_not_answered():
    one = table()
    one.engine.transcripts[0] = ""
    ask(one)
    one.wait(10)
    assert not one.of(ReplyStarted)
    assert {submit.request_id for submit in submits(one, "converse")} <= {
        cancel.request_id for cancel in sent(one, Cancel)
    }


def test_hold_and_release_lose_and_repeat_no_sample():
    one = table(PAUSES)
    reply = begin_reply(one)
    one.engine.transcripts[0] = "mhm"
    one.speak("v", 20)
    one.speak("s", 40)
    assert [type(event) for event in one.of(Hold, Release, Interrupted)] == [Hold, Release]
    one.work()
    one.wait(60)
    (asked,) = submits(one, "converse")
    for pause in sent(one, Pause):
        assert asked.request_id in pause.request_ids
    assert {resume.request_id for resume in sent(one, Resume)} <= {asked.request_id}
    assert one.client.samples[reply.epoch] == (len(one.engine.answer) + 1) * SAMPLES_PER_CHAR
    assert one.session.history.items[-1].pieces == written(one.engine.answer)


def test_after_an_interruption_the_next_answer_knows_what_was_heard_and_nothing_else():
    one = table()
    begin_reply(one)
    one.engine.transcripts[0] = "no I meant something else"
    one.speak("v", 60)
    (cut,) = one.of(Interrupted)
    one.speak("s", 100)
    one.work()
    kept = heard_pieces(written(one.engine.answer), cut.samples, SAMPLES_PER_CHAR)
    assert 0 < len(kept) < len(written(one.engine.answer))
    asked = submits(one, "converse")[-1]
    assert [message.role for message in asked.messages] == ["system", "user", "assistant"]
    assert asked.messages[1].content == "hello"
    assert asked.messages[2].pieces == kept
    frames = sum(len(piece) > 1 for piece in kept)
    assert frames == -(-cut.samples // SAMPLES_PER_CHAR)


def test_text_that_the_engine_had_no_sound_for_was_not_heard():
    """An answer that had to end has more text than sound; the client was told all of it while it was written."""
    one = table()
    one.engine.unsaid = "and then"
    begin_reply(one)
    one.wait(60)
    said = one.engine.answer + " "
    assert "".join(event.text for event in one.of(ReplyText)) == said + "and then"
    (done,) = one.of(ReplyDone)
    assert done.text.split() == said.split()
    item = one.session.history.items[-1]
    assert (item.text, item.whole) == (one.engine.answer, False)
    assert item.pieces == written(one.engine.answer)
    one.feed(TextTurn("go on"))
    asked = submits(one, "converse")[-1]
    assert [message.content for message in asked.messages if message.role == "assistant"] == [one.engine.answer]


def test_a_client_that_reports_late_cuts_the_sound_from_the_history_too():
    one = table()
    begin_reply(one)
    one.wait(60)
    item = one.session.history.items[-1]
    one.feed(CutItem(item.id, 0.5))
    kept = one.session.history.items[-1].pieces
    assert kept == heard_pieces(written(one.engine.answer), 500, SAMPLES_PER_CHAR)
    assert 0 < len(kept) < len(item.pieces)


def test_a_typed_turn_and_a_request_without_words_are_answered():
    one = table()
    one.feed(TextTurn("hello"))
    one.work()
    one.wait(60)
    for _ in range(2):
        one.feed(Respond(SessionConfig()))
        one.work()
        one.wait(60)
    typed, silent, again = submits(one, "converse")
    assert (typed.text, [message.role for message in typed.messages]) == ("hello", ["system"])
    assert silent.text  # something has to be answered
    assert [message.role for message in silent.messages] == ["system", "user", "assistant"]
    assert again.messages[:4] == (*silent.messages, ChatMessage("user", silent.text))
    assert [message.role for message in again.messages[4:]] == ["assistant"]
    assert len(one.of(ReplyDone)) == 3


@pytest.mark.parametrize(("chats", "task"), [(True, "chat"), (False, "converse")])
def test_a_reply_in_text_alone_is_the_chat_models_if_there_is_one(chats: bool, task: str):
    one = table(SessionConfig(speaks=False), chats=chats)
    one.feed(TextTurn("hello"))
    one.work()
    one.wait(1)
    assert len(submits(one, task)) == 1
    assert len(submits(one, "chat")) + len(submits(one, "converse")) == 1
    assert one.of(ReplyDone)[-1].text.strip() == one.engine.answer
    assert not one.of(Speech)


def test_what_is_saved_is_words_alone():
    one = table()
    ask(one)
    one.wait(60)
    assert all(item.sound or item.pieces for item in one.session.history.items)
    saved = one.session.history.saved()
    assert [item.text for item in saved.items] == ["tell me a story", one.engine.answer]
    assert not any(item.sound or item.pieces for item in saved.items)
    later = table()
    later.session.restore(saved, one.session.saved(one.now), 0, 0.0)
    begin_reply(later)
    messages = submits(later, "converse")[-1].messages
    assert [message.content for message in messages[1:]] == ["tell me a story", one.engine.answer]


def test_played_samples_count_as_heard():
    one = table()
    reply = begin_reply(one)
    one.feed(Played(reply.epoch, 300))
    one.engine.transcripts[0] = "stop"
    one.speak("v", 60)
    (cut,) = one.of(Interrupted)
    assert cut.samples >= 300


def test_sound_and_frames_count_for_the_budget_and_go_when_they_are_hidden():
    history = History(tokens=200, sound_rows_s=12.5)
    for turn in range(6):
        history.place(Item(f"u{turn}", "user"))
        history.fill(f"u{turn}", "a word", sound=bytes(2 * 16_000 * 2))  # 25 rows
        history.place(Item(f"a{turn}", "assistant"))
        history.fill(f"a{turn}", "a word", pieces=((1,), (2, 3)) * 20)  # 40 positions
    shown = [item.id for item in history.shown]
    assert 2 <= len(shown) <= 6
    assert shown[-1] == "a5"
    hidden = [item for item in history.items if item.id not in shown]
    assert not any(item.sound or item.pieces for item in hidden)
    assert all(item.sound or item.pieces for item in history.shown)


def test_a_spoken_turn_answered_in_text_alone_is_answered_by_its_last_words():
    one = table(SessionConfig(speaks=False))
    one.engine.transcripts[0] = "tell me a"
    one.speak("v", 40)
    hear_no_engine(one, "s", 150)
    one.engine.transcripts[0] = "tell me a story"
    one.work()
    one.wait(1)
    assert submits(one, "chat")[-1].messages[-1].content == "tell me a story"
    assert not any(item.sound for item in one.session.history.items)
    assert len(one.of(ReplyDone)) == 1


def test_the_sound_of_a_turn_without_words_is_not_remembered():
    one = table()
    one.engine.transcripts[0] = ""
    ask(one)
    one.wait(10)
    assert not any(item.sound for item in one.session.history.items)
    one.engine.transcripts[0] = "tell me a story"
    ask(one)
    one.wait(60)
    (asked,) = [submit for submit in submits(one, "converse") if submit.epoch == one.of(ReplyStarted)[-1].epoch]
    assert [message.role for message in asked.messages] == ["system"]


def test_what_a_stopped_answer_has_cost_is_told():
    one = table()
    one.feed(TextTurn("hello"))
    one.work(7)
    one.feed(Stop())
    assert one.of(Interrupted)
    (thought,) = one.of(Thought)
    assert thought.reason == "cancelled"
    assert 0 < thought.output_tokens < len(written(one.engine.answer))


@pytest.mark.parametrize("mode", ["auto", "buffer"])
def test_a_turn_that_is_too_long_to_be_heard_at_once_is_answered_by_its_words(mode: Literal["auto", "buffer"]):
    short = ConverseModel("lfm2-audio", 4000, 500, SAMPLES_PER_CHAR)  # half of its context is 4 s
    one = Table(SessionConfig(turns=TurnPolicy(mode=mode)), session={"speech": short})
    one.speak("v", 250)
    one.speak("s", 100)
    if mode == "buffer":
        one.feed(CommitInput(""))
    one.work()
    one.wait(60)
    asked = submits(one, "converse")[-1]
    assert asked.text == "tell me a story"
    assert not said(one, asked.request_id)
    assert len(one.of(ReplyDone)) == 1


def test_the_longest_turn_is_not_longer_than_what_the_engine_takes():
    answers = Answers("s", SPEAK_RATE, speech=ConverseModel("lfm2-audio", 128_000, 12.5, SAMPLES_PER_CHAR))
    assert 0 < answers.most_sound(SessionConfig()) <= MAX_UNHEARD_S * 2 * LISTEN_RATE


def test_a_history_of_much_sound_fits_a_message_to_the_engine():
    """The oldest turns go on as words; so do the oldest of those that a client names again and again."""
    history = History(tokens=1 << 20, sound_rows_s=12.5)
    minute = bytes(2 * LISTEN_RATE * 60)
    for turn in range(12):
        history.place(Item(f"u{turn}", "user"))
        history.fill(f"u{turn}", f"turn {turn}", sound=minute)
        sounds = [bool(item.sound) for item in history.items]
        assert sounds == sorted(sounds)
        assert sounds[-1]
    for messages in (history.spoken_prompt(""), spoken_prompt_of([*history.items[-1:]] * 200, "")):
        assert messages[-1].sound == minute
        assert all(message.content for message in messages)
        fragments(encode(Submit("r", "converse", messages=messages)))


def test_a_history_that_is_too_long_for_the_model_loses_the_sound_with_the_words():
    history = History(tokens=2000, sound_rows_s=12.5)
    history.place(Item("u", "user"))
    history.fill("u", "a long story " * 20, sound=bytes(2 * LISTEN_RATE * 60))
    history.shorten()
    (item,) = history.shown
    assert len(item.text) <= 130
    assert not item.sound


def test_a_clip_that_is_understood_after_the_answer_was_prepared_is_in_the_answer():
    one = table()
    one.feed(PlaceItem(Item("clip", "user", spoken=True, whole=False), pcm=sound("v", 10)))
    (clip,) = one.engine.work
    for _ in range(2):
        one.feed(one.engine.bring(clip))  # its words, but not yet that they are its last
    hear_no_engine(one, "v", 40)
    hear_no_engine(one, "s", 150)
    assert submits(one, "converse")
    one.work()
    one.wait(60)
    (reply,) = one.of(ReplyStarted)
    (asked,) = [submit for submit in submits(one, "converse") if submit.epoch == reply.epoch]
    assert [message.role for message in asked.messages] == ["system", "user"]
    assert asked.messages[1].sound == sound("v", 10)


def test_an_answer_that_the_context_has_no_room_for_is_a_fault_and_shortens_the_history():
    one = table()
    ask(one)
    one.wait(60)
    one.feed(TextTurn("go on"))
    (asked,) = [submit for submit in submits(one, "converse") if submit.text]
    one.feed(Finished(asked.request_id, asked.epoch, "length", STATS))
    one.wait(1)
    (fault,) = one.of(Fault)
    assert fault.code == "too_long"
    assert one.of(TurnDone)[-1].how == "failed"
    assert [item.text for item in one.session.history.shown if item.text] == ["go on"]


def test_a_given_text_is_spoken_and_remembered_as_words():
    """Whoever speaks it, the speech-to-speech model or a voice: the engine decides."""
    one = table()
    one.feed(Say("Are you still there?"))  # a telephone asks so
    one.work()
    one.wait(60)
    (reply,) = one.of(ReplyStarted)
    assert one.client.samples[reply.epoch] == SAMPLES_PER_CHAR * len("Are you still there?")
    assert not submits(one, "converse")
    begin_reply(one)
    one.wait(60)
    (asked,) = submits(one, "converse")
    assert [message.content for message in asked.messages][1:] == ["Are you still there?"]
    assert len(one.of(ReplyDone)) == 2


def test_a_session_keeps_the_sound_of_its_history_and_of_the_open_turn_alone(monkeypatch: pytest.MonkeyPatch):
    """However often an answer was prepared, refused or given up, no sound is kept twice."""
    most_kept = KEPT_SOUND // 8
    monkeypatch.setattr("voxlane.server.conversation.replies.history.SOUND_BYTES", most_kept)
    model = ConverseModel("lfm2-audio", 32_768, 12.5, SAMPLES_PER_CHAR)
    one = Table(session={"speech": model, "history": History(16_384, 32_768, 12.5)})
    most = 0
    for turn in range(7):
        one.engine.transcripts[0] = f"tell me story {turn}"
        one.speak("v", 375)
        one.speak("s", 10)
        asked = submits(one, "converse")[-1]
        one.feed(Refused(asked.request_id, asked.epoch, "overloaded", "later"))
        one.speak("v", 125)
        one.speak("s", 10)
        most = max(most, kept_sound(one))
        one.speak("s", 50)
        one.work()
        one.wait(30)
        one.log.clear()
        assert kept_sound(one) <= most_kept
    assert most_kept < most <= most_kept + 500 * SOUND_BYTES + 10_000


def test_an_answer_that_cannot_be_prepared_is_asked_for_once_in_a_pause_and_copies_no_sound():
    one = table()
    one.speak("v", 40)
    while not (asked := submits(one, "converse")):
        hear_no_engine(one, "s", 1)
        one.work(3)
    one.feed(Refused(asked[0].request_id, asked[0].epoch, "overloaded", "later"))
    kept = []
    for _ in range(15):
        hear_no_engine(one, "s", 1)
        kept.append([id(thing) for thing in reached(one) if isinstance(thing, bytes | bytearray) and len(thing) > 9000])
    assert submits(one, "converse") == asked
    assert len(kept[0]) == 1  # the turn's own
    assert all(found == kept[0] for found in kept)
    one.speak("v", 10)
    one.speak("s", 12)
    again = submits(one, "converse")
    assert len(again) == 2
    assert len(said(one, again[1].request_id)) > len(said(one, asked[0].request_id))


@pytest.mark.parametrize(
    ("config", "chats"),
    [
        (SessionConfig(speaks=False, replies=False), False),  # a transcription
        (SessionConfig(speaks=False), True),  # the chat model answers, here or at another server
    ],
)
def test_no_sound_is_kept_where_no_speech_model_answers_it(config: SessionConfig, chats: bool):
    one = table(config, chats=chats)
    one.feed(PlaceItem(Item("clip", "user", spoken=True, whole=False), pcm=sound("v", 10)))
    one.speak("v", 40)
    assert not kept_sound(one)
    one.speak("s", 60)
    one.work()
    one.wait(60)
    assert one.of(UserTurn)
    assert not kept_sound(one)


def test_the_pieces_of_earlier_replies_are_kept_by_the_history_alone():
    history = History(tokens=200, sound_rows_s=12.5)  # a reply and a half
    one = Table(session={"speech": MODEL, "history": history})
    for _ in range(5):
        one.feed(TextTurn("hello"))
        one.work()
        one.wait(60)
    replies = [item for item in one.session.history.items if item.kind == "assistant"]
    assert [bool(item.pieces) for item in replies] == [False] * 4 + [True]
    assert sum(1 for thing in reached(one) if isinstance(thing, tuple) and thing == replies[-1].pieces) == 2


def test_an_earlier_reply_that_is_cut_late_loses_its_last_frames():
    one = table()
    for _ in range(2):
        one.feed(TextTurn("hello"))
        one.work()
        one.wait(60)
    first = next(item for item in one.session.history.items if item.kind == "assistant")
    one.feed(CutItem(first.id, 0.5))
    kept = one.session.history.get(first.id).pieces
    assert kept == heard_pieces(written(one.engine.answer), 500, SAMPLES_PER_CHAR)
    assert 0 < len(kept) < len(first.pieces)


@pytest.mark.parametrize("chats", [False, True])
def test_items_about_tools_are_refused_where_no_model_reads_them(chats: bool):
    one = table(chats=chats)
    call, result = Item("c", "call", "{}", "f", "x"), Item("r", "result", "42", call_id="x")
    for item in (call, result):
        one.feed(PlaceItem(item, ref="mine"))
        one.feed(Respond(SessionConfig(), aside=True, input=(item,), ref="mine"))
    refused = [(fault.code, fault.ref) for fault in one.of(Fault)]
    assert refused == ([] if chats else [("unsupported_item", "mine")] * 4)
    assert len(one.session.history.items) == (2 if chats else 0)
