"""OpenAI's dialect under random and mutated client events, 5,000 of them in conversations with a real session.

Whatever comes: what the client is told is valid by the types of the `openai` package and in order, and the conversation
goes on. The one documented end is that of a message which is no text; size and speed are the connection's business.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from realtime_desk import Desk, kinds
from session_simulation import sound
from session_table import Table

from voxlane.server.conversation import client_events, effects, server_events, values
from voxlane.server.protocols.dialect import BadMessage, Complaint

CONVERSATIONS, STEPS = 500, 10

IDS = ("item_s_t1", "item_s_r1", "item_s_t2", "item_s_r2", "item_s_1", "mine", "root", "resp_s_1", "resp_s_2", "")


def message(role: str, *content: dict[str, Any]) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": list(content)}


TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}
SOUND = base64.b64encode(bytes(9600)).decode()

ITEMS: list[dict[str, Any]] = [
    message("user", {"type": "input_text", "text": "hello"}),
    message("user", {"type": "input_audio", "audio": SOUND}),
    message("system", {"type": "input_text", "text": "be kind"}),
    message("assistant", {"type": "output_text", "text": "hi"}),
    message("assistant", {"type": "output_audio", "transcript": "hi"}),
    {"type": "function_call", "name": "look", "arguments": "{}", "call_id": "c"},
    {"type": "function_call_output", "call_id": "c", "output": "42"},
]

EVENTS: list[dict[str, Any]] = [
    {"type": "session.update", "session": {"type": "realtime", "instructions": "Sing.", "tools": [TOOL]}},
    {"type": "session.update", "session": {"type": "transcription", "audio": {"input": {"turn_detection": None}}}},
    {
        "type": "session.update",
        "session": {
            "type": "realtime",
            "output_modalities": ["text"],
            "tool_choice": "auto",
            "max_output_tokens": "inf",
            "audio": {
                "input": {
                    "format": {"type": "audio/pcmu"},
                    "transcription": {"model": "w", "language": "en"},
                    "noise_reduction": {"type": "near_field"},
                    "turn_detection": {"type": "server_vad", "threshold": 0.5, "silence_duration_ms": 200},
                },
                "output": {"format": {"type": "audio/pcm", "rate": 24000}, "voice": "alloy", "speed": 1.1},
            },
        },
    },
    {"type": "session.update", "session": {"audio": {"input": {"turn_detection": {"type": "semantic_vad"}}}}},
    {"type": "session.update", "session": {"audio": {"input": {"turn_detection": None}, "output": {"speed": 2}}}},
    {"type": "input_audio_buffer.append", "audio": SOUND},
    {"type": "input_audio_buffer.commit"},
    {"type": "input_audio_buffer.clear"},
    *({"type": "conversation.item.create", "item": item, "previous_item_id": None} for item in ITEMS),
    {"type": "conversation.item.retrieve", "item_id": "item_s_r1"},
    {"type": "conversation.item.delete", "item_id": "mine"},
    {"type": "conversation.item.delete", "item_id": "item_s_r1"},
    {"type": "conversation.item.truncate", "item_id": "item_s_r1", "content_index": 0, "audio_end_ms": 300},
    {"type": "conversation.item.truncate", "item_id": "item_s_r1", "content_index": 0, "audio_end_ms": 90000},
    {"type": "response.create"},
    {"type": "response.create", "response": {"output_modalities": ["audio"], "metadata": {"a": "b"}}},
    {
        "type": "response.create",
        "response": {"conversation": "none", "input": [*ITEMS[:1], {"type": "item_reference", "id": "item_s_t1"}]},
    },
    {"type": "response.cancel"},
    {"type": "response.cancel", "response_id": "resp_s_1"},
    {"type": "output_audio_buffer.clear"},
]

SCALARS = (
    st.none() | st.booleans() | st.integers(-10, 10**18) | st.floats() | st.text(max_size=8) | st.sampled_from(IDS)
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the way to every value inside a value."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [path] if path else []
    for key, inner in entries:
        found += paths(inner, (*path, key))
    return found


@st.composite
def mutated(draw: Callable[..., Any]) -> str:
    """An event as it should be, or with something in it changed, gone or added."""
    event = json.loads(json.dumps(draw(st.sampled_from(EVENTS))))
    for _ in range(draw(st.integers(0, 2))):
        path = draw(st.sampled_from(paths(event)))
        place = event
        for key in path[:-1]:
            place = place[key]
        match draw(st.sampled_from(["change", "drop", "add", "id"])):
            case "change":
                place[path[-1]] = draw(JSON)
            case "drop":
                del place[path[-1]]
            case "add" if isinstance(place, dict):
                place[draw(st.text(max_size=8) | st.sampled_from(["id", "type", "audio", "session"]))] = draw(JSON)
            case _:
                place[path[-1]] = draw(st.sampled_from(IDS))
        if not paths(event):
            break
    if draw(st.booleans()):
        event["event_id"] = draw(st.text(max_size=8))
    return json.dumps(event)


SAID = st.tuples(st.just("say"), mutated() | st.text(max_size=20) | JSON.map(json.dumps))
HAPPENS = st.tuples(st.sampled_from(["voice", "silence", "noise", "work", "wait", "lose"]), st.integers(1, 40))


class Parlour:
    """A session whose client speaks OpenAI's dialect."""

    def __init__(self) -> None:
        self.desk = Desk(name="s")
        self.table = Table(self.desk.hello.config)
        self.table.engine.calls.extend([("look", '{"at": "x"}'), ("look", "{}")])

    def say(self, text: str) -> None:
        for incoming in self.desk.codec.decode(text):
            if isinstance(incoming, Complaint):
                (told,) = self.desk.tell(incoming)
                assert told["type"] == "error"
            else:
                self.feed(incoming)

    def feed(self, event: Any) -> None:
        self.desk.tell(*self.table.feed(event))

    def hear(self, kind: str, frames: int) -> None:
        """Let the person be heard, in the format of the client's microphone; the ear gets what the script says."""
        for _ in range(frames):
            self.table.now += 0.02
            self.feed(client_events.Audio(sound(kind, 1)))
            self.desk.tell(*self.table.work(3))

    def happen(self, what: str, much: int) -> None:
        match what:
            case "voice" | "silence" | "noise":
                self.hear(what[0], much)
            case "work":
                self.desk.tell(*self.table.work(much))
            case "wait":
                self.desk.tell(*self.table.wait(much / 10))
            case "lose":
                if much > 35:
                    self.table.engine.work.clear()
                    self.feed(effects.RequestsLost())

    def finish(self) -> None:
        """Let all that is under way come to its end."""
        self.hear("s", 60)
        self.desk.tell(*self.table.work(), *self.table.wait(60))
        self.desk.grammar.end()


@settings(max_examples=CONVERSATIONS, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(["", "item", "turn"]),
    st.lists(st.tuples(SAID, st.none() | HAPPENS), min_size=STEPS, max_size=STEPS),
)
def test_whatever_a_client_says(before: str, steps: list[tuple[tuple[str, str], tuple[str, int] | None]]) -> None:
    parlour = Parlour()
    if before:
        parlour.say(json.dumps({"type": "conversation.item.create", "item": {**ITEMS[0], "id": "mine"}}))
    if before == "turn":  # it is answered, and the answer is being heard
        parlour.hear("v", 20)
        parlour.hear("s", 30)
        parlour.happen("work", 1000)
    for (_, text), happens in steps:
        parlour.say(text)
        if happens is not None:
            parlour.happen(*happens)
    parlour.finish()
    # Desk and Grammar have checked each event; what is said now is answered all the same.
    before_last = len(parlour.desk.grammar.events)
    parlour.say("no JSON")
    assert [event["type"] for event in parlour.desk.grammar.events[before_last:]] == ["error"]


@given(st.binary(max_size=20))
def test_what_is_no_text_is_the_documented_end(data: bytes) -> None:
    with pytest.raises(BadMessage):
        Desk().codec.decode(data)


def test_every_event_as_it_should_be_is_taken() -> None:
    """Else the mutations would start from nothing."""
    for event in EVENTS:
        if event["type"] == "output_audio_buffer.clear" or "response_id" in event:
            continue
        desk = Desk()
        for name in IDS:
            desk.tell(server_events.ItemPlaced(values.Item(name or "x", "user", "hi"), ""))
        assert not any(isinstance(one, Complaint) for one in desk.codec.decode(json.dumps(event))), event


def test_a_conversation_of_the_parlour_has_everything_in_it() -> None:
    """Else the fuzzing would prove little."""
    parlour = Parlour()
    parlour.say(json.dumps(EVENTS[0]))
    parlour.say('{"type":"session.update","session":{"audio":{"input":{"transcription":{"model":"w"}}}}}')
    parlour.hear("v", 40)
    parlour.hear("s", 60)
    parlour.happen("work", 1000)
    parlour.happen("wait", 5)
    parlour.hear("v", 40)
    parlour.finish()
    seen = set(kinds(parlour.desk.grammar.events))
    assert {
        "input_audio_buffer.committed",
        "conversation.item.input_audio_transcription.completed",
        "response.output_audio.delta",
        "response.function_call_arguments.done",
        "response.done",
    } <= seen
    statuses = [
        event["response"]["status"] for event in parlour.desk.grammar.events if event["type"] == "response.done"
    ]
    assert "cancelled" in statuses
    assert "completed" in statuses
