"""A conversation under arbitrary events: the laws hold, time is virtual, and everything happens the same way twice."""

from __future__ import annotations

import hypothesis.strategies as st
from examples import examples
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from session_simulation import SPEAK_RATE
from session_table import PAUSES, Table, ask, begin_reply

from voxlane.engine.api import Submit, Words
from voxlane.server.conversation.client_events import (
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
    StartTurn,
    Stop,
    TextTurn,
    ToolResult,
)
from voxlane.server.conversation.effects import RequestsLost, Tick
from voxlane.server.conversation.server_events import (
    BargeIn,
    Fault,
    FloorState,
    Hold,
    InputCommitted,
    Interrupted,
    Release,
    ReplyDone,
    ReplyStarted,
    Speech,
    SpeechStarted,
    ToolCalled,
    TurnDone,
    UserTurn,
)
from voxlane.server.conversation.turns.policies import BargePolicy, TurnPolicy
from voxlane.server.conversation.values import Item, SessionConfig


def test_a_spoken_turn_is_answered_and_remembered():
    table = Table()
    ask(table)
    table.wait(60)
    (turn,) = table.of(UserTurn)
    assert turn.text == "tell me a story"
    (done,) = table.of(ReplyDone)
    assert [(message.role, message.content) for message in table.session.history.messages] == [
        ("user", "tell me a story"),
        ("assistant", done.text.strip()),
    ]
    assert [event.name for event in table.of(FloorState)] == ["hearing", "thinking", "speaking", "listening"]
    assert [(event.turn, event.how) for event in table.of(TurnDone)] == [(1, "done")]


def test_speech_runs_ahead_of_the_listener_by_the_buffer_and_no_more():
    table = Table(SessionConfig(buffer_s=0.5))
    table.feed(TextTurn("hello"))
    table.work()
    sent = sum(len(event.pcm) // 2 for event in table.of(Speech))
    assert 0.5 * SPEAK_RATE <= sent <= 0.6 * SPEAK_RATE
    table.wait(1.0)
    sent = sum(len(event.pcm) // 2 for event in table.of(Speech))
    assert 1.45 * SPEAK_RATE <= sent <= 1.6 * SPEAK_RATE


def test_a_real_interruption_cuts_the_history_to_what_was_heard():
    table = Table()
    reply = begin_reply(table)
    table.engine.transcripts[0] = "no I meant something else"
    table.speak("v", 60)
    (cut,) = table.of(Interrupted)
    assert cut.epoch == reply.epoch
    spoken = table.engine.answer[: len(cut.heard)]
    assert cut.heard == spoken != table.engine.answer
    assert table.session.history.messages[-1].content == cut.heard.strip()
    (barge,) = table.of(BargeIn)
    assert barge.committed
    assert barge.hold_ms <= 60
    table.speak("s", 100)
    table.work()
    assert table.of(UserTurn)[-1].text == "no I meant something else"
    assert table.of(ReplyStarted)[-1].epoch == reply.epoch + 1


def test_a_backchannel_holds_and_releases_without_a_gap():
    table = Table(PAUSES)
    reply = begin_reply(table)
    table.engine.transcripts[0] = "mhm"
    table.speak("v", 20)
    table.speak("s", 40)
    assert [type(event) for event in table.of(Hold, Release, Interrupted)] == [Hold, Release]
    table.work()
    table.wait(60)
    assert table.of(ReplyDone)[-1].epoch == reply.epoch
    whole = len(table.engine.answer) + 1
    assert table.client.samples[reply.epoch] == whole * 50
    assert table.session.history.messages[-1].content == table.engine.answer


def test_noise_releases_too_and_leaves_no_turn():
    table = Table(PAUSES)
    begin_reply(table)
    table.speak("n", 5)
    table.speak("s", 10)
    assert [type(event) for event in table.of(Hold, Release)] == [Hold, Release]
    assert not table.of(SpeechStarted)


def test_while_held_nothing_runs_in_the_engine_for_the_reply():
    table = Table(PAUSES)
    table.feed(TextTurn("hello"))
    for _ in range(12):
        table.feed(table.engine.bring(table.engine.ready()[0]))
    table.wait(0.2)
    table.engine.transcripts[0] = "mhm"
    table.speak("v", 3)
    assert table.client.held is not None
    replies = [name for name in table.engine.work if "chat" in name or "say" in name]
    assert replies
    assert all(table.engine.work[name].paused for name in replies)


def test_an_eager_reply_that_is_taken_back_leaves_no_trace():
    table = Table()
    table.speak("v", 40)
    table.speak("s", 1)
    submitted = []
    for _ in range(40):
        table.speak("s", 1)
        submitted = [e.message for e in table.log if isinstance(getattr(e, "message", None), Submit)]
        if any(message.task == "chat" for message in submitted):
            break
    assert any(message.task == "chat" for message in submitted)
    assert not table.of(ReplyStarted, Speech, UserTurn)
    table.speak("v", 20)
    assert not any("chat" in name for name in table.engine.work)
    assert not table.of(ReplyStarted, Speech, Interrupted)
    assert table.session.history.messages == ()
    table.speak("s", 100)
    table.work()
    assert len(table.of(UserTurn)) == 1
    assert len(table.of(ReplyStarted)) == 1


def test_settled_words_are_read_by_the_chat_model_while_the_person_speaks():
    table = Table()
    table.speak("v", 30)
    table.feed(Words("s/hear1", 0, "the ship that sails around the world", " is", 1.0, covered_s=1e6))
    table.speak("v", 5)
    probes = [e.message for e in table.log if isinstance(getattr(e, "message", None), Submit)][1:]
    assert {message.tenant for message in probes} == {table.session.name}  # others cannot tell by what is cached
    assert [(message.task, message.messages[-1].content) for message in probes] == [
        ("probe", "the ship that sails around the world")
    ]


def test_push_to_talk_begins_and_ends_when_the_client_says():
    table = Table(SessionConfig(turns=TurnPolicy(mode="manual")))
    table.speak("v", 40)
    assert not table.of(SpeechStarted)
    table.feed(StartTurn())
    table.speak("v", 30)
    table.speak("s", 200)
    assert not table.of(UserTurn)
    table.feed(EndTurn())
    table.work()
    assert table.of(UserTurn)[0].text == "tell me a story"


def test_a_tool_result_is_answered_once():
    table = Table(answer="Let me see.")
    table.engine.calls.append(("weather", '{"city": "Oslo"}'))
    table.feed(TextTurn("What is the weather?"))
    table.work()
    (call,) = table.of(ToolCalled)
    assert (call.name, call.arguments) == ("weather", '{"city": "Oslo"}')
    table.wait(60)
    assert not table.of(TurnDone)
    table.feed(ToolResult(call.call_id, "rain"))
    table.feed(ToolResult(call.call_id, "sun"))
    assert [fault.code for fault in table.of(Fault)] == ["unknown_call"]
    table.work()
    table.wait(60)
    assert [message.role for message in table.session.history.messages] == ["user", "assistant", "tool", "assistant"]
    assert [message.content for message in table.session.history.messages if message.role == "tool"] == ["rain"]
    assert [(event.turn, event.how) for event in table.of(TurnDone)] == [(1, "done")]


def test_a_result_that_comes_after_an_interruption_is_kept_and_not_answered():
    table = Table(answer="Let me see.")
    table.engine.calls.append(("weather", "{}"))
    table.feed(TextTurn("What is the weather?"))
    table.work()
    table.wait(60)
    table.feed(TextTurn("Never mind, tell me a joke."))
    (call,) = table.of(ToolCalled)
    table.feed(ToolResult(call.call_id, "rain"))
    table.work()
    table.wait(60)
    roles = [message.role for message in table.session.history.messages]
    assert roles == ["user", "assistant", "tool", "user", "assistant"]
    assert [event.how for event in table.of(TurnDone)] == ["interrupted", "done"]


def test_a_lost_engine_ends_the_turn_once_and_the_next_one_works():
    table = Table()
    table.speak("v", 40)
    table.engine.work.clear()
    table.feed(RequestsLost())
    assert [(event.turn, event.how) for event in table.of(TurnDone)] == [(1, "failed")]
    assert table.of(Fault)[0].retryable
    table.speak("s", 100)
    ask(table)
    table.wait(60)
    assert [event.how for event in table.of(TurnDone)] == ["failed", "done"]


BEGINNINGS = (SpeechStarted, UserTurn, ReplyStarted, InputCommitted)
ASIDE = 0  # the turn of replies that belong to none


class Conversation(RuleBasedStateMachine):
    """Random events; every law after each of them."""

    @initialize(buffer=st.sampled_from([0.1, 1.0, 30.0]), speaks=st.booleans(), barge=st.booleans())
    def start(self, buffer, speaks, barge):
        config = SessionConfig(buffer_s=buffer, speaks=speaks, interruptible=barge)
        self.tables = [Table(config), Table(config)]  # the second must do what the first does
        self.compared = 0  # effects of both, which are only ever added to

    def _both(self, action) -> None:
        for table in self.tables:
            action(table)

    @rule(kind=st.sampled_from("vvvns"), frames=st.integers(1, 60))
    def sound(self, kind, frames):
        self._both(lambda table: table.speak(kind, frames))

    @rule(bursts=st.lists(st.tuples(st.integers(2, 20), st.integers(1, 12)), max_size=4))
    def murmurs(self, bursts):
        for voiced, silent in bursts:
            self._both(lambda table, count=voiced: table.speak("v", count))
            self._both(lambda table, count=silent: table.speak("s", count))

    @rule(excess_db=st.sampled_from([-10.0, 0.0, 20.0]))
    def loudness(self, excess_db):
        self._both(lambda table: setattr(table.ear, "excess_db", excess_db))

    @rule(words=st.sampled_from(["mhm", "stop", "tell me more", "", "yeah and another thing"]))
    def next_words(self, words):
        self._both(lambda table: table.engine.transcripts.__setitem__(0, words))

    @rule(seconds=st.floats(0.001, 4.0))
    def wait(self, seconds):
        self._both(lambda table: table.wait(seconds))

    @rule(seconds=st.floats(0.1, 10.0))
    def stand_still(self, seconds):
        def tick_late(table: Table) -> None:
            table.now += seconds
            table.feed(Tick())

        self._both(tick_late)

    @rule(most=st.integers(1, 30))
    def work(self, most):
        self._both(lambda table: table.work(most))

    @rule(text=st.sampled_from(["hello", "  ", "and then?"]))
    def type_text(self, text):
        self._both(lambda table: table.feed(TextTurn(text)))

    @rule(event=st.sampled_from([StartTurn(), EndTurn(), Stop()]))
    def button(self, event):
        self._both(lambda table: table.feed(event))

    @rule()
    def a_tool_is_wanted(self):
        self._both(lambda table: table.engine.calls.append(("tool", "{}")))

    @rule(known=st.booleans())
    def tool_result(self, known):
        def answer(table: Table) -> None:
            calls = table.of(ToolCalled)
            table.feed(ToolResult(calls[-1].call_id if calls and known else "nobody", "result"))

        self._both(answer)

    @rule(share=st.floats(-0.5, 2.0))
    def ack(self, share):
        def acknowledge(table: Table) -> None:
            for epoch, samples in list(table.client.samples.items())[-1:]:
                table.feed(Played(epoch, int(samples * share)))

        self._both(acknowledge)

    @rule(
        mode=st.sampled_from(["auto", "auto", "manual", "buffer"]),
        idle=st.sampled_from([None, None, 3.0]),
        at_once=st.booleans(),
        replies=st.sampled_from([True, True, False]),
        chains=st.booleans(),
        hold=st.sampled_from(["duck", "pause"]),
    )
    def configure(self, mode, idle, at_once, replies, chains, hold):
        policy, barge = TurnPolicy(mode=mode, idle_s=idle), BargePolicy(at_once=at_once, hold=hold)
        config = SessionConfig(turns=policy, barge_in=barge, replies=replies, chains_tools=chains)
        self._both(lambda table: table.feed(ConfigureSession(config)))

    @rule(event=st.sampled_from([CommitInput("r"), ClearInput(), CancelReply(), CancelReply(2), CancelReply(99)]))
    def command(self, event):
        self._both(lambda table: table.feed(event))

    @rule(aside=st.booleans(), speaks=st.booleans(), given=st.sampled_from([None, (), ("nobody",), ("i0",)]))
    def respond(self, aside, speaks, given):
        event = Respond(SessionConfig(speaks=speaks), tag="t", aside=aside, input=given, ref="r")
        self._both(lambda table: table.feed(event))

    @rule(
        name=st.sampled_from(["i0", "i1"]),
        kind=st.sampled_from(["user", "assistant", "system", "result"]),
        after=st.sampled_from([None, "", "i0", "nobody"]),
        sounds=st.booleans(),
    )
    def place(self, name, kind, after, sounds):
        pcm = bytes(40_000) if sounds and kind == "user" else b""
        event = PlaceItem(Item(name, kind, "" if pcm else "words", call_id="call-x"), after, pcm, "r")
        self._both(lambda table: table.feed(event))

    @rule(kind=st.sampled_from([DropItem, ShowItem, CutItem]), pick=st.integers(0, 40), seconds=st.floats(0, 9))
    def edit(self, kind, pick, seconds):
        def change(table: Table) -> None:
            items = table.session.history.items
            name = items[pick % len(items)].id if items else "nobody"
            table.feed(CutItem(name, seconds, "r") if kind is CutItem else kind(name, "r"))

        self._both(change)

    @precondition(lambda self: hasattr(self, "tables"))
    @rule()
    def lose_engine(self):
        def lose(table: Table) -> None:
            table.engine.work.clear()
            table.feed(RequestsLost())

        self._both(lose)

    @precondition(lambda self: hasattr(self, "tables"))
    @rule()
    def go_down(self):
        def end(table: Table) -> None:
            effects = table.session.end(table.now)
            table.log += effects
            table.client.apply(effects, table.engine)
            begun = {event.turn for event in table.of(*BEGINNINGS)} - {ASIDE}
            assert begun == {event.turn for event in table.of(TurnDone)}, "a turn outlives the server"
            assert table.session.silent

        self._both(end)

    @invariant()
    def laws(self):
        if not hasattr(self, "tables"):
            return
        first, second = self.tables
        assert len(first.log) == len(second.log), "not the same twice"
        assert first.log[self.compared :] == second.log[self.compared :], "not the same twice"
        self.compared = len(first.log)
        turns = [event.turn for event in first.of(TurnDone)]
        assert len(turns) == len(set(turns)), "a turn ended twice"
        begun = {event.turn for event in first.of(*BEGINNINGS)}
        assert set(turns) <= begun - {ASIDE}, "a turn ended that had not begun"
        self._played(first)

    def _played(self, table: Table) -> None:
        """A reply is played as the session believes; only a voice without a verdict lowers it or holds it."""
        reply, client = table.session.answers.reply, table.client
        running = reply.epoch if reply is not None else None
        assert (client.held == running is not None) == (reply is not None and reply.stage == "held")
        assert (client.ducked == running is not None) == (reply is not None and reply.ducked)
        if reply is not None and (reply.ducked or reply.stage == "held"):
            assert table.session._floor.undecided, "lowered or held for no voice"
            assert not (reply.ducked and reply.stage != "live")

    def teardown(self):
        if not hasattr(self, "tables"):
            return

        def finish(table: Table) -> None:
            table.feed(EndTurn())
            table.feed(ConfigureSession(SessionConfig()))
            table.speak("s", 400)
            table.work()
            table.wait(120)
            while table.engine.calls or table.session.answers.open_calls:
                table.engine.calls.clear()
                for call_id in sorted(table.session.answers.open_calls):
                    table.feed(ToolResult(call_id, "late"))
                table.work()
                table.wait(120)
            begun = {event.turn for event in table.of(*BEGINNINGS)} - {ASIDE}
            ended = {event.turn for event in table.of(TurnDone)}
            assert begun == ended, f"turns that never ended: {begun - ended}"
            assert not table.engine.work, "the engine still works for nobody"
            results = [m.call_id for m in table.session.history.messages if m.role == "tool"]
            assert len(results) == len(set(results)), "a result was kept twice"

        self._both(finish)


Conversation.TestCase.settings = settings(
    max_examples=examples(300), stateful_step_count=80, deadline=None, suppress_health_check=list(HealthCheck)
)
TestConversation = Conversation.TestCase
