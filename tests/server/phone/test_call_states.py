"""The states of a call under any events in any order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast, get_args

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from phone_line import PlainCodec

from voxlane.engine.api import Tool
from voxlane.server.config import PhoneConfig
from voxlane.server.conversation.client_events import Say, Stop, TextTurn, ToolResult
from voxlane.server.conversation.server_events import (
    Duck,
    FloorState,
    Hold,
    Interrupted,
    Release,
    Speech,
    SpeechDone,
    ToolCalled,
    UserTurn,
)
from voxlane.server.conversation.values import StateName
from voxlane.server.phone.call_states import (
    BegunCall,
    CallEvent,
    Due,
    Effect,
    FloorFacts,
    ModelEnding,
    RingingCall,
    TalkingCall,
)
from voxlane.server.phone.call_tools import CallTools
from voxlane.server.phone.departure import LAST_WORDS_S
from voxlane.server.protocols.dialect import AudioFormat, GoAway
from voxlane.server.protocols.phone.line_events import (
    BufferCleared,
    BufferFull,
    BufferReady,
    CallEnded,
    CallFacts,
    CallStarted,
    KeyPressed,
    LineCodec,
    LineEvent,
    LineTraits,
    MarkReturned,
    Media,
    Message,
    MustSend,
    UnknownMessage,
)

RATE = 8000
FORM = AudioFormat("pcm16", RATE)
START = CallStarted(CallFacts("plain"), FORM, FORM)
CONFIG = PhoneConfig(
    silence_s=3, reprompts=1, reprompt="Hello?", good_bye="Bye.", call_s=30, digits_s=1, hang_up=True,
    send_digits=True, collect_digits=True,
)  # fmt: skip
TOOLS = CallTools(
    hang_up=True,
    send_digits=True,
    collect_digits=True,
    transfer={"sales": "+49"},
    customer=(Tool("weather", "", "{}"),),
)
LISTENING = FloorFacts("listening")
LOUDNESS = (3001, 5001, 7001)  # of the replies 1 to 3: half of it is no other reply's

numbers = st.integers(1, 3)
line_events = st.one_of(
    st.builds(Media, st.sampled_from([bytes(320), bytes(32)]), st.none() | st.integers(0, 20)),
    st.builds(KeyPressed, st.sampled_from("12#")),
    st.builds(MarkReturned, st.sampled_from(["1", "2", "3", "p1", "p2"]), st.booleans()),
    st.sampled_from([BufferFull(), BufferReady(), BufferCleared(), UnknownMessage("x"), MustSend("pong"), START]),
)
calls = st.sampled_from(
    [
        ("hang_up", "{}"), ("transfer", '{"to": "sales"}'), ("transfer", '{"to": "nobody"}'),
        ("send_digits", '{"digits": "1"}'), ("collect_digits", "{}"), ("weather", "{}"), ("nothing", "{}"),
    ]
)  # fmt: skip
conversation_events = st.one_of(
    st.builds(lambda epoch, size: ("say", epoch, size), numbers, st.sampled_from([80, 8000])),
    st.builds(SpeechDone, numbers, st.just(0)),
    st.builds(Hold, numbers),
    st.builds(Release, numbers),
    st.builds(Duck, numbers, st.just(0.5)),
    st.builds(Interrupted, numbers, st.just(""), st.just(0)),
    st.builds(FloorState, st.sampled_from(get_args(StateName))),
    st.builds(UserTurn, numbers, st.just("words")),
    st.builds(GoAway, st.just(5.0), st.just("draining")),
    st.builds(lambda epoch, call: ("tool", epoch, call), numbers, calls),
)
steps = st.tuples(
    st.one_of(line_events, conversation_events, st.sampled_from(Due)),
    st.sampled_from([0.0, 0.02, 0.3, 2.0]),
    st.builds(FloorFacts, st.sampled_from(get_args(StateName)), st.integers(0, 3)),
)


@dataclass
class Life:
    """A call that is fed, and what has come of it."""

    talk: TalkingCall
    now: float = 0.0
    effects: list[Effect] = field(default_factory=list)
    called: list[ToolCalled] = field(default_factory=list)
    offsets: Counter[int] = field(default_factory=Counter)
    silenced: set[int] = field(default_factory=set)  # replies that were interrupted

    def feed(self, event: CallEvent, floor: FloorFacts = LISTENING) -> list[Effect]:
        found = self.talk.feed(event, self.now, floor)
        self.effects += found
        return found

    def step(self, drawn: object, after_s: float, floor: FloorFacts) -> list[Effect]:
        """Feed what was drawn: a reply's sound has the next offset, and a tool's call an id of its own."""
        self.now += after_s
        match drawn:
            case ("say", int(epoch), int(size)):
                if epoch in self.silenced:
                    return []
                sound = np.full(size, LOUDNESS[epoch - 1], "<i2").tobytes()
                self.offsets[epoch] += size
                return self.feed(Speech(epoch, self.offsets[epoch] - size, sound), floor)
            case ("tool", int(epoch), (str(name), str(arguments))):
                self.called.append(ToolCalled(epoch, f"call{len(self.called)}", name, arguments))
                return self.feed(self.called[-1], floor)
            case Interrupted(epoch):
                self.silenced.add(epoch)
        return self.feed(cast(CallEvent, drawn), floor)

    def tick(self, floor: FloorFacts = LISTENING) -> list[Effect]:
        """Do what the clock asks, as call.py does."""
        return [effect for due in Due for effect in self.feed(due, floor)]


def begun(config: PhoneConfig = CONFIG) -> Life:
    return Life(TalkingCall(cast(LineCodec, PlainCodec(LineTraits("plain"))), START, config, TOOLS, 0.0))


Drawn = Sequence[tuple[object, float, FloorFacts]]


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(steps, max_size=40), st.lists(steps, max_size=20))
def test_nothing_follows_the_end(before: Drawn, behind: Drawn) -> None:
    life = begun()
    for step in before:
        life.step(*step)
    life.feed(CallEnded())
    assert life.talk.over
    assert [effect for step in behind for effect in (*life.step(*step), *life.tick())] == []
    assert life.talk.over


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(steps, max_size=40), st.sampled_from(get_args(StateName)))
def test_every_call_ends_soon_after_its_longest_time(drawn: Drawn, state: StateName) -> None:
    life = begun()
    for step in drawn:
        life.step(*step)
    most_s = max(life.now, CONFIG.call_s) + 2 * LAST_WORDS_S + 1
    while not life.talk.over:
        life.tick(FloorFacts(state))
        due_s = life.talk.due_at(life.now)
        life.now = max(due_s, life.now + 0.02)
        assert life.now < most_s


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(steps, max_size=60))
def test_a_tool_is_answered_once_and_only_one_waits_for_keys(drawn: Drawn) -> None:
    life = begun()
    for step in drawn:
        life.step(*step)
        if life.talk.over:
            return
    answers = Counter(effect.call_id for effect in life.effects if isinstance(effect, ToolResult))
    customers = [effect for effect in life.effects if isinstance(effect, ToolCalled)]
    assert [one.name for one in customers] == [one.name for one in life.called if one.name == "weather"]
    answers.update(one.call_id for one in customers)
    assert set(answers.values()) <= {1}
    waiting = [one for one in life.called if one.call_id not in answers]
    assert [one.name for one in waiting] in ([], ["collect_digits"])
    if waiting:  # the caller's words end the wait
        (result,) = (one for one in life.feed(UserTurn(1, "words")) if isinstance(one, ToolResult))
        assert result.call_id == waiting[0].call_id


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(steps, max_size=60))
def test_a_call_is_transferred_only_where_a_tool_has_asked_and_the_caller_stays_silent(drawn: Drawn) -> None:
    life, transfer, chains = begun(), "", True
    for step in drawn:
        asked = len(life.called)
        endings = [effect for effect in life.step(*step) if isinstance(effect, ModelEnding)]
        assert len(endings) <= 1
        for ending in endings:
            chains = not ending.ends
            transfer = ending.transfer_to or (transfer if ending.ends else "")
            if ending.ends:
                (called,) = life.called[asked:]
                assert (called.name, ending.transfer_to) in {("hang_up", ""), ("transfer", "+49")}
        if life.talk.departure.reason is None:  # a call that goes on
            assert (transfer, chains) == ("", True)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(steps, max_size=10), st.lists(steps, max_size=10))
def test_no_reply_is_sent_after_its_interruption(before: Drawn, behind: Drawn) -> None:
    life = begun()
    for step in (*before, (("say", 1, 8000), 0.0, LISTENING)):
        life.step(*step)
    life.tick()
    for step in ((Interrupted(1, "", 0), 0.0, LISTENING), *behind, (Release(1), 1.0, LISTENING)):
        for effect in (*life.step(*step), *life.tick(step[2])):
            if isinstance(effect, str) and effect.startswith("media:"):
                sound = np.frombuffer(bytes.fromhex(effect.removeprefix("media:")), "<i2")
                assert not {LOUDNESS[0], LOUDNESS[0] // 2} & set(sound.tolist())


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.sampled_from("12345#"), max_size=12), st.lists(st.floats(0.0, 1.5), min_size=12, max_size=12))
def test_no_key_is_lost_or_given_twice(keys: list[str], pauses: list[float]) -> None:
    life = begun(PhoneConfig(silence_s=0, digits_s=1, call_s=3600))
    for key, pause in zip(keys, pauses, strict=False):
        life.feed(KeyPressed(key))
        life.now += pause
        life.tick()
    life.now += 2
    life.tick()
    said = [effect.text for effect in life.effects if isinstance(effect, TextTurn)]
    given_on = "".join(text.removeprefix("I pressed ").removesuffix(" on my telephone.") for text in said)
    assert given_on.replace(" ", "").replace("#", "") == "".join(keys).replace("#", "")


# ---- before the call has begun


class ScriptedCodec(PlainCodec):
    """Each message is the number of its events in a script."""

    def __init__(self, script: list[list[LineEvent]]) -> None:
        super().__init__(LineTraits("scripted"))
        self._script = script

    def read(self, message: bytes | str) -> list[object]:
        return list(self._script[int(message)])


first_events = st.sampled_from([MustSend("pong"), UnknownMessage("x"), START, CallEnded(), BufferCleared()])


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.lists(first_events, max_size=4), max_size=6), st.integers(0, 3))
def test_a_ringing_call_begins_or_ends_once_and_loses_nothing(script: list[list[LineEvent]], unknown: int) -> None:
    codec = cast(LineCodec, ScriptedCodec(script))
    read: list[str] = []

    def recognise(messages: Sequence[Message]) -> LineCodec | None:
        return codec if len(messages) > unknown else None

    ringing = RingingCall(recognise)
    assert ringing.system == "unknown"
    events: list[LineEvent] = []
    for number in range(len(script)):
        read.append(str(number))
        found = list(ringing.read(read[-1]))
        events += script[number]
        if number < unknown:
            assert found == []
            continue
        assert ringing.system == "scripted"
        places = [at for at, event in enumerate(events) if isinstance(event, CallStarted | CallEnded)]
        end = places[0] if places else len(events)
        wanted: list[object] = [event.message for event in events[:end] if isinstance(event, MustSend)]
        if places and events[end] == START:
            wanted.append(BegunCall(codec, START, events[end + 1 :]))
        elif places:
            wanted.append(CallEnded())
        assert found == wanted
        if places:
            return
        events = []


@pytest.mark.parametrize(("reply", "at_once"), [(0, True), (2, True), (1, False)], ids=["none", "another", "this one"])
def test_tones_wait_for_the_reply_that_has_asked_for_them(reply: int, at_once: bool) -> None:
    life = begun()
    life.feed(ToolCalled(1, "c", "send_digits", '{"digits": "1"}'), FloorFacts("speaking", reply))
    assert life.talk.player.idle is not at_once
    life.feed(SpeechDone(1, 0))
    assert not life.talk.player.idle


def test_the_longest_time_of_a_call_cuts_no_good_bye_of_a_server_that_goes_down() -> None:
    life = begun()
    life.now = CONFIG.call_s - 1
    life.feed(GoAway(8.0, "draining"))
    assert Say("Bye.") in life.tick()
    life.now = CONFIG.call_s + 1
    assert Stop() not in life.tick(FloorFacts("speaking"))
