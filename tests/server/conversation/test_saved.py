"""What is saved of a session and read by another: the same history, counters that go on, one end of what was open."""

from __future__ import annotations

from msgspec import msgpack
from session_simulation import SPEAK_RATE
from session_table import Table

from voxlane.server.conversation.client_events import Played, TextTurn, ToolResult
from voxlane.server.conversation.replies.history import History
from voxlane.server.conversation.replies.saved import OpenReply, SavedHistory, SavedProgress, SavedReply, endings
from voxlane.server.conversation.server_events import Fault, Interrupted, ReplyDone, ReplyStarted, ToolCalled, TurnDone
from voxlane.server.conversation.values import Item


def moved(table: Table, position: int = 0) -> Table:
    """Return another table at which the conversation goes on."""
    history = msgpack.decode(msgpack.encode(table.session.history.saved()), type=SavedHistory)
    progress = msgpack.decode(msgpack.encode(table.session.saved(table.now)), type=SavedProgress)
    other = Table()
    other.session.restore(history, progress, position, heard_s=7.0)
    return other


def test_history_and_counters_go_on():
    table = Table()
    table.feed(TextTurn("My name is Anna."))
    table.work()
    table.wait(60)
    other = moved(table)
    assert other.session.history.messages == table.session.history.messages
    other.feed(TextTurn("And now?"))
    other.work()
    other.wait(60)
    (reply,) = other.of(ReplyStarted)
    assert (reply.turn, reply.epoch) == (2, table.of(ReplyStarted)[-1].epoch + 1)
    assert len({item.id for item in other.session.history.items}) == 4


def test_a_reply_under_way_is_remembered_as_far_as_it_was_heard():
    table = Table()
    table.feed(TextTurn("Tell me."))
    table.work()
    table.wait(0.5)
    epoch = table.of(ReplyStarted)[-1].epoch
    table.feed(Played(epoch, SPEAK_RATE // 2))
    reply = table.session.saved(table.now).reply
    assert reply is not None
    heard = table.session.answers.reply.heard(SPEAK_RATE // 2)
    assert heard
    other = moved(table, SPEAK_RATE // 2)
    assert other.session.history.items[-1].text == heard.strip()
    assert not other.session.history.items[-1].whole
    told = OpenReply(epoch, 1)
    item = other.session.history.items[-1]
    assert endings([1], told, reply, item, 9) == [Interrupted(epoch, heard.strip(), 9), TurnDone(1, "interrupted")]


def test_a_result_for_a_call_before_is_kept():
    table = Table()
    table.engine.calls.append(("tool", "{}"))
    table.feed(TextTurn("Call it."))
    table.work()
    (call,) = table.of(ToolCalled)
    other = moved(table)
    other.feed(ToolResult(call.call_id, "result"))
    other.feed(ToolResult(call.call_id, "result"))
    assert [fault.code for fault in other.of(Fault)] == ["unknown_call"]
    assert [item.text for item in other.session.history.items if item.kind == "result"] == ["result"]


def test_hidden_exchanges_and_facts_stay_hidden_and_known():
    history = History(tokens=40)
    for number in range(12):
        text = "My name is Peter." if not number else f"What about number {number} and all the others?"
        history.place(Item(f"u{number}", "user", text))
        history.place(Item(f"a{number}", "assistant", "That is a good question."))
    history.place(Item("open", "user"))
    again = History(tokens=40)
    again.restore(msgpack.decode(msgpack.encode(history.saved()), type=SavedHistory))
    assert again.facts == history.facts == "My name is Peter."
    assert again.shown == tuple(item for item in history.shown if item.id != "open")
    assert "open" not in again


def test_what_was_open_ends_once_whatever_the_record_holds():
    told, text = OpenReply(4, 2), SavedReply(4, 2, "r4", "some words", False, (0,), (-1,), 0)
    assert text.heard(0) == "some words"
    assert endings([], None, None, None, 0) == []
    failed = endings([1, 2], told, text, Item("r4", "assistant", "", whole=False), 0)
    assert [type(event) for event in failed] == [Interrupted, Fault, TurnDone, TurnDone]
    assert [event.how for event in failed[2:]] == ["failed", "failed"]
    whole = Item("r4", "assistant", "all of it")
    assert endings([2], told, None, whole, 0) == [ReplyDone(4, "all of it"), TurnDone(2, "done")]
    assert endings([], told, None, None, 0) == [Interrupted(4, "", 0)]
