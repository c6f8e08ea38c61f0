"""Reading ahead: what the next prompt begins with is read while nobody speaks, once."""

from __future__ import annotations

from dataclasses import replace

from session_table import Table, submits

from voxlane.engine.api import ChatMessage, Priority, Submit
from voxlane.server.conversation.client_events import ConfigureSession, TextTurn
from voxlane.server.conversation.replies.history import History
from voxlane.server.conversation.server_events import ReplyDone
from voxlane.server.conversation.turns.probes import OPENING, Probes
from voxlane.server.conversation.values import Item, SessionConfig

CONFIG = SessionConfig(instructions="Be kind.")


def read(probes: Probes, history: History, config: SessionConfig = CONFIG) -> list[Submit]:
    return [effect.message for effect in probes.read_ahead(history, config)]  # type: ignore[union-attr]


def test_what_has_not_changed_is_read_once() -> None:
    probes, history = Probes("s", enabled=True), History()
    (submit,) = read(probes, history)
    assert (submit.task, submit.priority, submit.tenant) == ("probe", Priority.NORMAL, "s")
    assert submit.messages == (ChatMessage("system", "Be kind."), ChatMessage("user", OPENING))
    assert read(probes, history) == []
    history.place(Item("a", "user", "My name is Peter."))
    history.place(Item("b", "assistant", "Hello Peter."))
    (again,) = read(probes, history)
    assert again.request_id != submit.request_id
    assert again.messages[1:3] == (ChatMessage("user", "My name is Peter."), ChatMessage("assistant", "Hello Peter."))
    probes.forget()
    assert len(read(probes, history)) == 1, "a new engine has read nothing"


def test_nothing_is_read_where_nobody_here_will_answer() -> None:
    assert read(Probes("s", enabled=False), History()) == []
    assert read(Probes("s", enabled=True), History(), replace(CONFIG, replies=False)) == []


def test_a_conversation_reads_at_its_beginning_after_each_reply_and_when_it_is_led_otherwise() -> None:
    table = Table(CONFIG)
    table.log += table.session.open(table.now)
    (opening,) = submits(table, "probe")
    assert opening.messages[0].content == "Be kind."
    table.feed(ConfigureSession(replace(CONFIG, instructions="Be brief.")))
    assert submits(table, "probe")[-1].messages[0].content == "Be brief."
    table.feed(TextTurn("hello"))
    table.work()
    table.wait(60.0)
    assert len(table.of(ReplyDone)) == 1
    last = submits(table, "probe")[-1]
    assert [message.role for message in last.messages] == ["system", "user", "assistant", "user"]
    assert last.messages[-1].content == OPENING
