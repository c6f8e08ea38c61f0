"""Urgent commands go first, and the commands of each session and request keep their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import hypothesis.strategies as st
import pytest
from examples import examples
from hypothesis import example, given, settings

from voxlane.engine.api import (
    Append,
    Cancel,
    EndInput,
    ForgetVoice,
    KeepVoice,
    Pause,
    Priority,
    SpeakParams,
    Submit,
    ToEngine,
)
from voxlane.engine.loop.command_queue import CommandQueue

SESSIONS = {"a": "s", "b": "s", "c": "t", "d": "", "e": "u"}  # of requests that were opened; others are not
names = st.sampled_from("abcdefg")
commands = st.one_of(
    st.builds(
        lambda name, task, session, priority: Submit(name, task, session=session, priority=priority),
        names,
        st.sampled_from(["chat", "asr", "tts", "voice"]),
        st.sampled_from(["", "s", "t"]),
        st.sampled_from([Priority.NORMAL, Priority.NORMAL, Priority.CRITICAL]),
    ),
    st.builds(Append, names, audio=st.just(b"..")),
    st.builds(EndInput, names),
    st.builds(Cancel, names),
    st.builds(Pause, st.lists(names, max_size=3).map(tuple)),
    st.builds(ForgetVoice, st.just("her")),
)


def urgent(inbox: CommandQueue) -> list[ToEngine]:
    """Take all urgent commands."""
    return list(iter(inbox.urgent, None))


def about(commands: list[ToEngine], request: str = "", session: str = "") -> list[ToEngine]:
    """Return the commands about a request, or about requests of a session as it was known when they came."""
    known = dict(SESSIONS)
    found = []
    for command in commands:
        names = command.request_ids if isinstance(command, Pause) else (getattr(command, "request_id", ""),)
        if isinstance(command, Submit):
            known[command.request_id] = command.session or SESSIONS.get(command.request_id, "")
        theirs = {known.get(name, "") for name in names}
        if (request and request in names) or (session and session in theirs):
            found.append(command)
    return found


def renames_before_each_voice(commands: list[ToEngine]) -> dict[int, int]:
    """Return how often the voice's name had changed when each submission of speech was taken."""
    counts, renames = {}, 0
    for command in commands:
        renames += isinstance(command, ForgetVoice)
        if isinstance(command, Submit) and command.task == "tts":
            counts[id(command)] = renames
    return counts


WAYS: dict[str, Callable[[CommandQueue], Sequence[ToEngine | None]]] = {
    "urgent": lambda inbox: [inbox.urgent()],
    "quick": lambda inbox: [inbox.urgent(prompts=False)],
    "cheap": lambda inbox: inbox.cheap(2),
    "next": lambda inbox: [inbox.next()] if len(inbox) else [],
}
ways = st.lists(st.sampled_from(list(WAYS)), max_size=12)


def take(inbox: CommandQueue, ways: list[str]) -> list[ToEngine]:
    """Take commands by some ways, one after the other."""
    return [command for way in ways for command in WAYS[way](inbox) if command is not None]


@settings(max_examples=examples(300))
@given(st.lists(st.tuples(st.lists(commands, max_size=8), ways), min_size=1, max_size=4))
def test_every_request_keeps_its_order(batches: list[tuple[list[ToEngine], list[str]]]) -> None:
    inbox = CommandQueue(lambda name: SESSIONS.get(name, ""))
    carried_out: list[ToEngine] = []
    for batch, ways in batches:
        inbox.add(batch)
        carried_out += take(inbox, ways)
    carried_out += take(inbox, ["next"] * len(inbox))
    came = [command for batch, _ in batches for command in batch]
    assert sorted(map(id, carried_out)) == sorted(map(id, came)), "a command was lost, or taken twice"
    for name in "abcdefg":
        assert list(map(id, about(carried_out, request=name))) == list(map(id, about(came, request=name)))
    assert renames_before_each_voice(carried_out) == renames_before_each_voice(came)
    assert not inbox.changes_batch
    assert inbox._lines == inbox._sessions == {}, "what was taken is to be forgotten"


@settings(max_examples=examples(300))
@given(st.lists(commands, max_size=12), ways)
def test_a_session_keeps_its_order(came: list[ToEngine], ways: list[str]) -> None:
    inbox = CommandQueue(lambda name: SESSIONS.get(name, ""))
    inbox.add(came)
    carried_out = take(inbox, ways)
    carried_out += urgent(inbox)
    rest = take(inbox, ["next"] * len(inbox))
    places = {id(command): place for place, command in enumerate(came)}
    for session in ("s", "t", "u", "v"):
        theirs = set(map(id, about(came, session=session)))  # equal ones may be another's
        order = [places[id(command)] for command in [*carried_out, *rest] if id(command) in theirs]
        assert order == sorted(order), session
    assert not any(isinstance(command, Pause) for command in rest)
    assert not any(isinstance(command, Submit) and command.priority is Priority.CRITICAL for command in rest)


@settings(max_examples=examples(300))
@given(st.lists(st.tuples(st.lists(commands, max_size=8), ways), min_size=1, max_size=4))
def test_input_that_is_let_past_the_queue_keeps_the_order_of_its_request_and_session(
    batches: list[tuple[list[ToEngine], list[str]]],
) -> None:
    inbox = CommandQueue(lambda name: SESSIONS.get(name, ""))
    carried_out: list[ToEngine] = []
    for batch, ways in batches:
        for command in batch:
            if isinstance(command, Append) and inbox.lets_pass(command):
                carried_out.append(command)
            else:
                inbox.add([command])
        carried_out += take(inbox, ways)
    carried_out += take(inbox, ["next"] * len(inbox))
    came = [command for batch, _ in batches for command in batch]
    assert sorted(map(id, carried_out)) == sorted(map(id, came)), "a command was lost, or taken twice"
    for name in "abcdefg":
        assert list(map(id, about(carried_out, request=name))) == list(map(id, about(came, request=name)))
    for session in ("s", "t", "u"):
        theirs = [command for command in came if SESSIONS.get(getattr(command, "request_id", "")) == session]
        order = [id(command) for command in carried_out if any(command is one for one in theirs)]
        assert order == list(map(id, theirs)), session


def test_input_waits_for_what_is_about_its_request_or_session_and_for_nothing_else() -> None:
    inbox = CommandQueue(lambda name: {"mine": "s", "other": "t"}.get(name, ""))
    assert inbox.lets_pass(Append("mine", audio=b".."))
    inbox.add([Submit("prompt", "chat", session="s")])
    assert [inbox.lets_pass(Append(name, audio=b"..")) for name in ("mine", "prompt", "other")] == [False, False, True]
    inbox.next()
    assert inbox.lets_pass(Append("mine", audio=b".."))


def test_what_cannot_wait_overtakes_others() -> None:
    inbox = CommandQueue(lambda name: {"mine": "s"}.get(name, ""))
    prompt, own, critical = Submit("long", "chat"), Cancel("mine"), Submit("c", "chat", priority=Priority.CRITICAL)
    inbox.add([prompt, own, Append("other", audio=b".."), Pause(("mine",)), critical, EndInput("c")])
    assert urgent(inbox) == [own, Pause(("mine",)), critical, EndInput("c")]
    assert [inbox.next() for _ in range(len(inbox))] == [prompt, Append("other", audio=b"..")]


def test_who_waits_for_its_own_prompt_is_not_asked_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    inbox, asked = CommandQueue(lambda name: {"y": "y"}.get(name, "")), []
    first_before = CommandQueue._first_before
    monkeypatch.setattr(
        CommandQueue, "_first_before", lambda inbox, one: (asked.append(one), first_before(inbox, one))[1]
    )
    for number in range(200):
        name = f"r{number}"
        inbox.add([Submit(name, "chat", session=f"s{number}"), Cancel(name), Pause((name, f"gone{number}"))])
    inbox.add([Submit("c", "chat", session="c", priority=Priority.CRITICAL), Cancel("x"), Pause(("y",))])
    assert list(iter(lambda: inbox.urgent(prompts=False), None)) == [Pause(("y",)), Cancel("x")]
    asked.clear()
    assert len(urgent(inbox)) == 601
    assert len(asked) < 2000, "work that grows with the square"
    assert (inbox._stops, inbox._parked) == (([], []), {})


def test_who_stops_something_goes_before_critical_prompts_and_a_pause_before_all() -> None:
    inbox = CommandQueue(lambda name: {"mine": "s", "his": "t", "her": "v"}.get(name, ""))
    crowd = [Submit(f"c{number}", "chat", session=f"s{number}", priority=Priority.CRITICAL) for number in range(3)]
    own, behind = Submit("own", "chat", session="u"), Cancel("c1")
    inbox.add([*crowd, behind, own, Pause(("own",)), Cancel("his"), Append("his", audio=b".."), Cancel("mine")])
    inbox.add([Pause(("mine", "gone")), Pause(("her",))])
    stops = [Cancel("mine"), Pause(("mine", "gone")), Pause(("her",)), Cancel("his")]
    assert list(iter(lambda: inbox.urgent(prompts=False), None)) == stops
    assert urgent(inbox) == [own, Pause(("own",)), crowd[0], crowd[1], behind, crowd[2]], "its own prompt comes first"
    assert [inbox.next() for _ in range(len(inbox))] == [Append("his", audio=b"..")]


def test_a_cancel_is_not_urgent_where_no_critical_prompt_is_and_a_pause_always() -> None:
    inbox = CommandQueue(lambda name: "")
    inbox.add([Submit("a", "chat"), Cancel("b"), Pause(("c",))])
    assert urgent(inbox) == [Pause(("c",))]


def test_a_pause_keeps_the_order_of_every_session_it_concerns() -> None:
    inbox = CommandQueue(lambda name: {"a": "s", "b": "t"}.get(name, ""))
    other, own = Submit("long", "chat"), [EndInput("b"), Append("a", audio=b"..")]
    inbox.add([other, *own, Pause(("a", "b")), Submit("c", "chat", session="t")])
    assert urgent(inbox) in ([*own, Pause(("a", "b"))], [*reversed(own), Pause(("a", "b"))])
    assert [inbox.next() for _ in range(len(inbox))] == [other, Submit("c", "chat", session="t")]


def test_a_name_means_to_everybody_what_it_meant_when_they_came() -> None:
    inbox = CommandQueue(lambda name: "")
    said, later = Submit("a", "tts", speak=SpeakParams(voice="her")), Submit("b", "tts", speak=SpeakParams(voice="her"))
    renamed = [ForgetVoice("her"), KeepVoice("her", b"another")]
    critical = Submit("c", "tts", speak=SpeakParams(voice="her"), priority=Priority.CRITICAL)
    inbox.add([said, *renamed, later, Pause(("t",))])
    assert urgent(inbox) == [Pause(("t",))], "it asks for no voice"
    inbox.add([critical, ForgetVoice("her")])
    assert urgent(inbox) == [said, *renamed, critical]
    assert [inbox.next() for _ in range(len(inbox))] == [later, ForgetVoice("her")]


def test_who_asks_for_no_voice_does_not_wait_for_its_name() -> None:
    inbox = CommandQueue(lambda name: "")
    inbox.add([Submit("a", "chat"), ForgetVoice("her"), Cancel("c"), Append("d", audio=b"..")])
    assert inbox.cheap(9) == [Cancel("c"), Append("d", audio=b"..")]
    assert [inbox.next() for _ in range(len(inbox))] == [Submit("a", "chat"), ForgetVoice("her")]


def test_a_critical_prompt_waits_for_a_name_only_to_say_something_with_it() -> None:
    inbox = CommandQueue(lambda name: "")
    before = [Submit("a", "chat"), Submit("b", "tts"), Submit("c", "asr"), ForgetVoice("her")]
    heard, read = (Submit(task, task, priority=Priority.CRITICAL) for task in ("asr", "chat"))
    inbox.add([*before, heard, read])
    assert urgent(inbox) == [heard, read]
    said = Submit("d", "tts", priority=Priority.CRITICAL)
    inbox.add([said])
    assert urgent(inbox) == [before[1], before[3], said], "a prompt that asks for no voice is not read for its sake"


class Served:
    """What becomes of requests when commands are applied, in whatever order; an id may be used again."""

    def __init__(self) -> None:
        self.sessions: dict[str, str] = {}  # of those that are open
        self.told: dict[str, list[object]] = {}  # to each id
        self._renames = 0

    def carry_out(self, command: ToEngine) -> None:
        match command:
            case Submit(request_id=name, session=session):
                opened = name not in self.sessions
                self.sessions.setdefault(name, session)
                asks = command.task == "tts"
                self._tell(name, ("opened" if opened else "refused", session, self._renames if asks else 0))
            case Pause(request_ids=names):
                for name in names:
                    self._tell(name, (type(command), name in self.sessions))
            case ForgetVoice():
                self._renames += 1
            case Cancel(request_id=name):
                self._tell(name, "cancelled" if self.sessions.pop(name, None) is not None else "unknown")
            case Append(request_id=name) | EndInput(request_id=name):
                self._tell(name, (type(command), name in self.sessions))

    def _tell(self, name: str, what: object) -> None:
        self.told.setdefault(name, []).append(what)


few = st.sampled_from("ab")
of_few = st.one_of(
    st.builds(
        lambda name, task, session, priority: Submit(name, task, session=session, priority=priority),
        few,
        st.sampled_from(["chat", "tts"]),
        st.sampled_from(["", "s", "t"]),
        st.sampled_from([Priority.NORMAL, Priority.CRITICAL]),
    ),
    st.builds(Cancel, few),
    st.builds(EndInput, few),
    st.builds(Pause, st.lists(few, max_size=2, unique=True).map(tuple)),
    st.builds(ForgetVoice, st.just("her")),
)
AGAIN = [Submit("a", "chat", session="s"), Cancel("a"), Submit("a", "chat", session="t")]


@settings(max_examples=examples(300))
@given(st.lists(st.tuples(st.lists(of_few, max_size=8), ways), min_size=1, max_size=6))
@example([(AGAIN, ["next"]), ([EndInput("a"), Pause(("a",))], ["urgent"] * 3)])
@example([(AGAIN[:1], ["next"]), ([AGAIN[2], EndInput("a"), Pause(("a", "b"))], ["urgent"])])
def test_nobody_can_tell_it_from_a_queue_even_where_ids_are_used_again(
    batches: list[tuple[list[ToEngine], list[str]]],
) -> None:
    queue, served = Served(), Served()
    inbox = CommandQueue(lambda name: served.sessions.get(name, ""))
    for came, taken in [*batches, ([], ["next"] * sum(len(came) for came, _ in batches))]:
        for command in came:
            queue.carry_out(command)
        inbox.add(came)
        for way in taken:
            for command in take(inbox, [way]):
                served.carry_out(command)
    assert (served.told, served.sessions) == (queue.told, queue.sessions)


def test_what_takes_no_time_waits_for_its_own_prompt_only() -> None:
    inbox = CommandQueue(lambda name: "")
    first, second = Submit("a", "chat"), Submit("b", "chat", session="s")
    inbox.add([first, second, Append("b", audio=b".."), Cancel("c"), Pause(("t",)), EndInput("b")])
    assert inbox.cheap(9) == [Cancel("c"), Pause(("t",))]
    assert inbox.cheap(9) == []
    assert [inbox.next(), inbox.next()] == [first, second]
    assert inbox.cheap(1) == [Append("b", audio=b"..")]
    assert inbox.next() == EndInput("b")
    assert len(inbox) == 0
    assert not inbox.changes_batch


def test_many_commands_are_looked_at_once_each() -> None:
    asked: list[str] = []
    inbox = CommandQueue(lambda name: asked.append(name) or "")  # type: ignore[func-returns-value]
    inbox.add(
        [Submit("a", "chat"), *(Append(f"r{number}", audio=b"..") for number in range(1000)), Submit("b", "chat")]
    )
    while len(inbox):
        inbox.cheap(16) or inbox.next()
    assert len(asked) == 1002, "an engine that is behind would fall behind for good"
