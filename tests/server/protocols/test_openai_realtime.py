"""OpenAI's dialect: each client event into ours, ours into events that the package `openai` and its clients take."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from realtime_desk import CAPABILITIES, RATE, Desk, kinds

from voxlane.engine.api import SpokenWord, Tool
from voxlane.server.conversation import client_events, server_events
from voxlane.server.conversation.replies.history import turn_item
from voxlane.server.conversation.values import Item
from voxlane.server.protocols import dialect, native
from voxlane.server.protocols.dialect import BadMessage, Complaint, ConnectionEnd, Hello
from voxlane.server.protocols.openai_realtime.call_codec import RealtimeCall
from voxlane.server.protocols.openai_realtime.protocol import OpenAIRealtime

TOOL = {"type": "function", "name": "look", "description": "d", "parameters": {"type": "object", "properties": {}}}
SPOKEN = [
    "response.created",
    "response.output_item.added",
    "conversation.item.added",
    "response.content_part.added",
    "response.output_audio_transcript.delta",
    "response.output_audio.delta",
    "response.output_audio.done",
    "response.output_audio_transcript.done",
    "response.content_part.done",
    "conversation.item.done",
    "response.output_item.done",
    "response.done",
    "rate_limits.updated",
]


@pytest.fixture(autouse=True)
def _clean() -> None:
    """Nothing is opened here: looking for leaks a hundred times would be most of the work."""


def update(session: Any) -> dict[str, Any]:
    return {"type": "session.update", "session": session}


def create(response: Any) -> dict[str, Any]:
    return {"type": "response.create", "response": response}


def place(item: Any) -> dict[str, Any]:
    return {"type": "conversation.item.create", "item": item}


def message(text: str, role: str = "user", kind: str = "input_text") -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def pcm(seconds: float, rate: int = RATE) -> bytes:
    return bytes(2 * int(seconds * rate))


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def reply(epoch: int, text: str = "Hi.", seconds: float = 0.1, **started: Any) -> list[Any]:
    """Return a spoken reply from its beginning to its end."""
    return [
        server_events.ReplyStarted(epoch, epoch, f"item_7_r{epoch}", **started),
        server_events.ReplyText(epoch, text),
        server_events.Speech(epoch, 0, pcm(seconds), (SpokenWord(0, len(text), 0, int(seconds * RATE)),)),
        server_events.Thought(epoch, "eos", 20, 8, 3),
        server_events.SpeechDone(epoch, int(seconds * RATE)),
        server_events.ReplyDone(epoch, text),
    ]


# ---- what a client says


def test_every_client_event() -> None:
    desk = Desk()
    desk.tell(server_events.ItemPlaced(Item("i", "user", "hi"), ""))
    ref = "=e1"
    assert desk.say("input_audio_buffer.commit", event_id="e1") == [client_events.CommitInput(ref)]
    assert desk.say("input_audio_buffer.clear") == [client_events.ClearInput()]
    assert desk.say("conversation.item.retrieve", item_id="i", event_id="e1") == [client_events.ShowItem("i", ref)]
    assert desk.say("conversation.item.delete", item_id="i", event_id="e1") == [client_events.DropItem("i", ref)]
    cut = desk.say("conversation.item.truncate", item_id="i", content_index=0, audio_end_ms=1500, event_id="e1")
    assert cut == [client_events.CutItem("i", 1.5, ref)]
    assert desk.say("response.cancel", event_id="e1") == [client_events.CancelReply(None, ref)]
    (sound,) = desk.say("input_audio_buffer.append", audio=encoded(pcm(0.02)))
    assert isinstance(sound, client_events.Audio)
    (respond,) = desk.say("response.create", event_id="e1")
    assert isinstance(respond, client_events.Respond)
    assert (respond.config, respond.aside, respond.input, respond.ref) == (desk.hello.config, False, None, ref)
    (configure,) = desk.say("session.update", session={"type": "realtime", "instructions": "Sing."})
    assert isinstance(configure, client_events.ConfigureSession)
    (refused,) = desk.say("output_audio_buffer.clear", event_id="e1")
    assert isinstance(refused, Complaint)
    assert refused.code == "unsupported_event"


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (message("hi"), Item("", "user", "hi")),
        ({**message("hi"), "id": "mine"}, Item("mine", "user", "hi")),
        (message("be kind", "system"), Item("", "system", "be kind")),
        (message("hello", "assistant", "output_text"), Item("", "assistant", "hello")),
        (message("hello", "assistant", "input_text"), Item("", "assistant", "hello")),
        (
            {"type": "message", "role": "assistant", "content": [{"type": "output_audio", "transcript": "said"}]},
            Item("", "assistant", "said", spoken=True),
        ),
        (
            {"type": "message", "role": "user", "content": [{"type": "input_audio", "transcript": "said"}]},
            Item("", "user", "said", spoken=True),
        ),
        (
            {"type": "message", "role": "user", "content": message("a")["content"] + message("b")["content"]},
            Item("", "user", "a\nb"),
        ),
        (
            {"type": "function_call", "name": "look", "arguments": "{}", "call_id": "c"},
            Item("", "call", "{}", "look", "c"),
        ),
        (
            {"type": "function_call", "name": "look", "arguments": "", "call_id": "c"},
            Item("", "call", "{}", "look", "c"),
        ),
        ({"type": "function_call_output", "call_id": "c", "output": "42"}, Item("", "result", "42", call_id="c")),
    ],
)
def test_items_of_every_kind(item: dict[str, Any], expected: Item) -> None:
    desk = Desk()
    (placed,) = desk.say("conversation.item.create", item=item)
    assert isinstance(placed, client_events.PlaceItem)
    assert replace(placed.item, id=expected.id) == expected
    assert placed.item.id == expected.id or (not expected.id and placed.item.id)
    added, done = desk.tell(server_events.ItemPlaced(placed.item, ""))
    assert kinds([added, done]) == ["conversation.item.added", "conversation.item.done"]
    assert added["item"]["type"] == item["type"]
    (shown,) = desk.tell(server_events.ItemShown(placed.item))
    assert shown["item"] == done["item"]


def test_where_an_item_goes() -> None:
    desk = Desk()
    places = {None: None, "root": "", "before": "before"}
    for given, after in places.items():
        (placed,) = desk.say("conversation.item.create", item=message("x"), previous_item_id=given)
        assert isinstance(placed, client_events.PlaceItem)
        assert placed.after == after


def test_an_item_that_is_sound_is_heard_at_16_khz() -> None:
    item = {"type": "message", "role": "user", "content": [{"type": "input_audio", "audio": encoded(pcm(0.5))}]}
    (placed,) = Desk().say("conversation.item.create", item=item)
    assert isinstance(placed, client_events.PlaceItem)
    assert abs(len(placed.pcm) - 16_000) < 200
    assert (placed.item.spoken, placed.item.whole, placed.item.text) == (True, False, "")


@pytest.mark.parametrize(
    ("event", "code", "param"),
    [
        ({}, "missing_required_parameter", "type"),
        ({"type": 5}, "invalid_type", "type"),
        ({"type": "response.audio.delta"}, "invalid_value", "type"),
        ({"type": "response.create", "event_id": 5}, "invalid_type", "event_id"),
        ({"type": "input_audio_buffer.append"}, "missing_required_parameter", "audio"),
        ({"type": "input_audio_buffer.append", "audio": "?"}, "invalid_value", "audio"),
        ({"type": "input_audio_buffer.append", "audio": "ÄÄÄÄ"}, "invalid_value", "audio"),
        ({"type": "input_audio_buffer.append", "audio": "AAAA"}, "invalid_value", "audio"),  # three bytes
        ({"type": "session.update"}, "invalid_type", "session"),
        (update({"type": "song"}), "invalid_value", "session.type"),
        (update({"modalities": ["text"]}), "unknown_parameter", "session.modalities"),
        (update({"audio": {"input": 5}}), "invalid_type", "session.audio.input"),
        (update({"instructions": "x" * 16_001}), "invalid_value", "session.instructions"),
        (update({"output_modalities": []}), "invalid_value", "session.output_modalities"),
        (update({"max_output_tokens": 4097}), "invalid_value", "session.max_output_tokens"),
        (update({"max_output_tokens": 1e400}), "invalid_json", None),
        (update({"prompt": {"id": "p"}}), "unsupported_parameter", "session.prompt"),
        (update({"tools": [{"type": "mcp"}]}), "unsupported_parameter", "session.tools[0].type"),
        (update({"tools": [TOOL, TOOL]}), "invalid_value", "session.tools"),
        (update({"tools": [{**TOOL, "name": "a b"}]}), "invalid_value", "session.tools[0].name"),
        (
            update({"tools": [TOOL], "tool_choice": {"type": "function", "name": "x"}}),
            "invalid_value",
            "session.tool_choice",
        ),
        (create([]), "invalid_type", "response"),
        (create({"model": "m"}), "unknown_parameter", "response.model"),
        (create({"conversation": "new"}), "invalid_value", "response.conversation"),
        (create({"metadata": {str(k): "" for k in range(17)}}), "invalid_value", "response.metadata"),
        (create({"metadata": {"a": 1}}), "invalid_type", "response.metadata"),
        (create({"input": [5]}), "invalid_type", "response.input[0]"),
        ({"type": "response.cancel", "response_id": "resp_0"}, "response_cancel_not_active", None),
        ({"type": "conversation.item.create"}, "invalid_type", "item"),
        (place({"type": "mcp_call"}), "invalid_value", "item.type"),
        (place(message("x", "robot")), "invalid_value", "item.role"),
        (place(message("x", kind="input_image")), "invalid_value", "item.content[0].type"),
        ({"type": "conversation.item.truncate", "item_id": "old"}, "missing_required_parameter", "audio_end_ms"),
        ({"type": "conversation.item.truncate", "item_id": "old", "audio_end_ms": -1}, "invalid_value", "audio_end_ms"),
        ({"type": "conversation.item.truncate", "item_id": "i"}, "item_truncate_invalid_item_id", "item_id"),
        ({"type": "conversation.item.retrieve", "item_id": "i"}, "item_retrieve_invalid_item_id", "item_id"),
        ({"type": "conversation.item.delete", "item_id": "i"}, "item_delete_invalid_item_id", "item_id"),
        ({"type": "conversation.item.delete"}, "missing_required_parameter", "item_id"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_told_and_changes_nothing(event: dict[str, Any], code: str, param: str | None) -> None:
    desk = Desk()
    desk.tell(server_events.ItemPlaced(Item("old", "user", "hi"), ""))
    named = event if "event_id" in event else {"event_id": "mine", **event}
    (complaint,) = desk.codec.decode(json.dumps(named))
    assert isinstance(complaint, Complaint)
    assert (complaint.code, complaint.param) == (code, param)
    (told,) = desk.tell(complaint)
    assert told["type"] == "error"
    assert told["error"]["event_id"] == (None if event.get("event_id") == 5 or code == "invalid_json" else "mine")
    (after,) = desk.tell(server_events.Configured(desk.hello.config))
    assert after["session"] == desk.created["session"]


@pytest.mark.parametrize(
    ("event", "told"),
    [
        (update({"audio": {"output": {"speed": 3}}}), "session.audio.output.speed must be a number from 0.25 to 2."),
        (place({"type": "function_call"}), "item.name is missing: it must be a string of 1 to 64 characters."),
        (place({"type": "message", "role": "user"}), "item.content must be a list of up to 64 objects."),
        (update({"reasoning": {"hard": 1}}), "session.reasoning.hard is not known; known are effort."),
        (update({"prompt": {"id": "p"}}), "session.prompt names a stored prompt, and this server has none."),
        (update({"tools": [{"type": "mcp"}]}), "session.tools[0].type must be function: others are not supported."),
        (update({"tools": [TOOL, TOOL]}), "session.tools must have different names."),
        (update({"max_output_tokens": 1.5}), "session.max_output_tokens must be a whole number from 1 to 4096 or inf."),
        (
            update({"audio": {"input": {"turn_detection": {"idle_timeout_ms": 5}}}}),
            "session.audio.input.turn_detection.idle_timeout_ms must be a whole number from 1000 to 600000.",
        ),
        (
            create({"metadata": {"a": None}}),
            "response.metadata must be an object of up to 16 entries: names of up to 64 characters, strings of up to"
            " 512.",
        ),
        ({"type": "response.cancel", "response_id": 5}, "response_id must be a string of up to 256 characters."),
    ],
)
def test_a_complaint_names_the_place_and_the_rule(event: dict[str, Any], told: str) -> None:
    (complaint,) = Desk().codec.decode(json.dumps(event))
    assert isinstance(complaint, Complaint)
    assert complaint.message == told
    assert told.startswith(f"{complaint.param} ")


def test_a_whole_number_may_be_written_with_a_point() -> None:
    desk = Desk()
    heard = {"turn_detection": {"type": "server_vad", "silence_duration_ms": 300.0}}
    config = desk.update(max_output_tokens=50.0, audio={"input": heard})
    assert (config.max_tokens, config.turns.min_wait_s) == (50, 0.3)
    assert isinstance(desk.session["max_output_tokens"], int)
    assert isinstance(desk.session["audio"]["input"]["turn_detection"]["silence_duration_ms"], int)


def test_a_voice_of_one_pace_is_not_hurried() -> None:
    desk = Desk(capabilities=replace(CAPABILITIES, one_pace=True))
    wish = {"audio": {"output": {"speed": 1.5}}}
    for event in (update(wish), create(wish)):
        (complaint,) = desk.codec.decode(json.dumps(event))
        assert isinstance(complaint, Complaint)
        assert "audio.output.speed" in (complaint.param or "")


def test_tools_that_a_speech_model_does_not_call_are_refused_and_the_conversation_goes_on() -> None:
    spoken = replace(CAPABILITIES, chat_model="both", tts_model="both", speech_model="both", tools=False)
    tools = {"tools": [{"type": "function", "name": "get_time"}]}
    written = tools | {"output_modalities": ["text"]}
    desk, alone = Desk(capabilities=spoken), Desk(capabilities=replace(spoken, written_tools=False))
    for one, wish in ((desk, tools), (alone, tools), (alone, written)):
        for event, place in ((update(wish), "session"), (create(wish), "response")):
            (complaint,) = one.codec.decode(json.dumps(event))
            assert isinstance(complaint, Complaint)
            assert (complaint.param, complaint.message) == (
                f"{place}.tools",
                f"{place}.tools must be empty: both calls no tools.",
            )
        assert not one.session["tools"]
    assert desk.update(**written).tools  # the chat model writes


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "[]",
        "5",
        '{"type": NaN}',
        '{"a": "\\ud800"}',
        "[" * 100_000,
        '{"a":' * 65 + "1" + "}" * 65,
        '{"type": [' + "0," * 20_000 + "0]}",
    ],
)
def test_what_is_no_json_object_is_told(text: str) -> None:
    (complaint,) = Desk().codec.decode(text)
    assert isinstance(complaint, Complaint)
    assert complaint.code == "invalid_json"


@pytest.mark.parametrize("arguments", ["x", "[]", '{"a":', '{"a":' * 33 + "1" + "}" * 33])
def test_a_call_without_arguments_that_a_model_can_be_shown_is_told(arguments: str) -> None:
    item = {"type": "function_call", "name": "look", "arguments": arguments, "call_id": "c"}
    (complaint,) = Desk().say("conversation.item.create", item=item)
    assert isinstance(complaint, Complaint)
    assert complaint.param == "item.arguments"


def test_only_what_is_no_text_ends_the_conversation() -> None:
    with pytest.raises(BadMessage, match="text"):
        Desk().codec.decode(b'{"type": "response.create"}')


# ---- sessions


def test_a_session_that_nobody_set_up() -> None:
    desk = Desk(query={"model": "gpt-realtime"})
    session = desk.created["session"]
    assert session["model"] == "gpt-realtime"
    assert session["instructions"] == "Be brief."
    assert session["audio"]["output"] == {"format": {"type": "audio/pcm", "rate": 24000}, "voice": "one", "speed": 1.0}
    assert session["audio"]["input"]["turn_detection"] == {
        "type": "server_vad",
        "create_response": True,
        "interrupt_response": True,
        "threshold": 0.5,
        "prefix_padding_ms": 300,
        "silence_duration_ms": 500,
        "idle_timeout_ms": None,
    }
    assert session["audio"]["input"]["transcription"] is None
    config = desk.hello.config
    assert (config.replies, config.chains_tools, config.speaks, config.interruptible) == (True, False, True, True)
    assert config.barge_in.at_once
    assert config.barge_in.hold == "pause"
    assert (config.turns.mode, config.turns.min_wait_s, config.turns.max_wait_s) == ("auto", 0.5, 0.5)


def test_only_what_is_there_changes() -> None:
    desk = Desk()
    desk.update(
        type="realtime", tools=[TOOL], audio={"input": {"turn_detection": {"type": "server_vad", "threshold": 0.7}}}
    )
    config = desk.update(type="realtime", instructions="Sing.", audio={"output": {"speed": 1.2}})
    assert config.tools == (Tool("look", "d", '{"type": "object", "properties": {}}'),)
    assert (config.instructions, config.speed, config.turns.threshold) == ("Sing.", 1.2, 0.7)
    config = desk.update(audio={"input": {"turn_detection": {"silence_duration_ms": 200}}})
    assert (config.turns.threshold, config.turns.max_wait_s) == (0.7, 0.2)
    assert desk.session["audio"]["input"]["turn_detection"]["threshold"] == 0.7
    assert desk.session["tools"] == [TOOL]


def test_null_is_not_absence() -> None:
    desk = Desk()
    config = desk.update(audio={"input": {"turn_detection": None, "transcription": {"model": "whisper-1"}}})
    assert (config.turns.mode, config.replies) == ("buffer", False)
    assert desk.session["audio"]["input"]["turn_detection"] is None
    config = desk.update(instructions="Sing.", audio={"input": {}, "output": None})
    assert config.turns.mode == "buffer"
    assert desk.session["audio"]["input"]["transcription"] == {"model": "whisper-1"}
    config = desk.update(instructions=None, tools=None, audio={"input": {"transcription": None}})
    assert config.instructions == "Be brief."
    assert desk.session["audio"]["input"]["transcription"] is None


def test_another_kind_of_detection_begins_afresh() -> None:
    desk = Desk()
    desk.update(
        audio={"input": {"turn_detection": {"type": "server_vad", "create_response": False, "idle_timeout_ms": 6000}}}
    )
    config = desk.update(audio={"input": {"turn_detection": {"type": "semantic_vad", "eagerness": "low"}}})
    assert config.replies
    assert not config.barge_in.at_once
    assert config.barge_in.hold == "pause"
    assert (config.turns.eagerness, config.turns.idle_s) == ("low", None)
    assert desk.session["audio"]["input"]["turn_detection"] == {
        "type": "semantic_vad",
        "create_response": True,
        "interrupt_response": True,
        "eagerness": "low",
    }
    config = desk.update(audio={"input": {"turn_detection": {"interrupt_response": False, "create_response": False}}})
    assert (config.interruptible, config.replies) == (False, False)


def test_every_setting_of_server_vad() -> None:
    detection = {
        "type": "server_vad",
        "threshold": 0.3,
        "prefix_padding_ms": 120,
        "silence_duration_ms": 900,
        "idle_timeout_ms": 7000,
        "create_response": True,
        "interrupt_response": False,
    }
    desk = Desk()
    turns = desk.update(audio={"input": {"turn_detection": detection}}).turns
    assert (turns.threshold, turns.pre_roll_s, turns.min_wait_s, turns.max_wait_s) == (0.3, 0.12, 0.9, 0.9)
    assert turns.idle_s == 7.0
    assert desk.session["audio"]["input"]["turn_detection"] == detection


def test_names_of_any_kind_are_kept() -> None:
    desk = Desk()
    config = desk.update(
        model="gpt-realtime-9",
        audio={
            "input": {"transcription": {"model": "whisper-9", "language": "en-GB", "prompt": "names"}},
            "output": {"voice": "nobody"},
        },
    )
    assert (config.voice, config.language) == ("nobody", "en")  # what it stands for is the registry's to say
    assert desk.session["model"] == "gpt-realtime-9"
    assert desk.session["audio"]["output"]["voice"] == "nobody"
    assert desk.session["audio"]["input"]["transcription"]["model"] == "whisper-9"
    assert desk.update(audio={"output": {"voice": "alloy"}}).voice == "alloy"
    assert desk.update(audio={"output": {"voice": {"id": "two"}}}).voice == "two"
    config = desk.update(audio={"input": {"transcription": {"keywords": ["Siobhan", "x" * 200]}}})
    assert config.hot_words == ("Siobhan", "x" * 100)
    assert desk.update(audio={"input": {"transcription": {"language": "de"}}}).language == ""


def test_what_has_no_effect_here_is_shown_all_the_same() -> None:
    desk = Desk()
    given = {
        "truncation": {"type": "retention_ratio", "retention_ratio": 0.8},
        "tracing": {"workflow_name": "w", "group_id": "g", "metadata": {"a": "b"}},
        "parallel_tool_calls": False,
        "include": [],
        "reasoning": {"effort": "low"},
        "temperature": 0.8,
    }
    config = desk.update(**given, audio={"input": {"noise_reduction": {"type": "near_field"}}})
    assert config.temperature == 0.8
    assert {key: desk.session[key] for key in given} == given
    assert desk.session["audio"]["input"]["noise_reduction"] == {"type": "near_field"}
    desk.update(**desk.session)  # what is shown may be sent back


def test_the_times_of_a_turn_include_its_padding_and_its_silence() -> None:
    desk = Desk()
    detection = {"type": "server_vad", "prefix_padding_ms": 200, "silence_duration_ms": 400}
    desk.update(audio={"input": {"turn_detection": detection}})
    second = base64.b64encode(bytes(2 * 24_000)).decode()
    for _ in range(3):
        desk.say("input_audio_buffer.append", audio=second)
    started, stopped = desk.tell(server_events.SpeechStarted(1, 1.0), server_events.SpeechStopped(1, 2.0))
    assert (started["audio_start_ms"], stopped["audio_end_ms"]) == (800, 2400)
    (early,) = desk.tell(server_events.SpeechStarted(2, 0.1))
    assert early["audio_start_ms"] == 0


def test_log_probabilities_of_transcripts_are_refused_by_name() -> None:
    (refused,) = Desk().say("session.update", session={"include": ["item.input_audio_transcription.logprobs"]})
    assert isinstance(refused, Complaint)
    assert (refused.code, refused.param) == ("invalid_value", "session.include")
    assert "no log probabilities" in refused.message


def test_tools_are_chosen_among_those_that_are_there() -> None:
    desk = Desk()
    assert desk.update(tools=[TOOL], tool_choice="required").tool_choice == "required"
    assert desk.update(tool_choice={"type": "function", "name": "look"}).tool_choice == "look"
    assert desk.update(tools=[], tool_choice="required").tool_choice == "auto"


def test_a_session_that_only_writes_down() -> None:
    desk = Desk({"type": "transcription", "audio": {"input": {"transcription": {"model": "whisper-1"}}}})
    assert desk.created["session"]["object"] == "realtime.transcription_session"
    config = desk.hello.config
    assert (config.replies, config.speaks, config.greeting) == (False, False, "")
    (refused,) = desk.say("response.create")
    assert isinstance(refused, Complaint)
    desk.update(audio={"input": {"transcription": None}})
    assert desk.tell(*turn(1))[-1]["transcript"] == "hello"
    assert Desk(query={"intent": "transcription"}).created["session"]["type"] == "transcription"


def test_a_secret_brings_its_session_and_a_bad_one_none() -> None:
    desk = Desk({"type": "realtime", "instructions": "Sing.", "model": "theirs"}, query={"model": "asked"})
    assert desk.hello.config.instructions == "Sing."
    assert desk.created["session"]["model"] == "theirs"
    with pytest.raises(BadMessage, match=r"session\.type"):
        Desk({"type": "song"})


def test_without_a_voice_replies_are_text() -> None:
    desk = Desk(capabilities=replace(CAPABILITIES, tts_model="", voices=()), rate=0)
    assert not desk.hello.config.speaks
    received = desk.tell(
        server_events.ReplyStarted(1, 1, "i"), server_events.ReplyText(1, "Hi."), server_events.ReplyDone(1, "Hi.")
    )
    assert received[-2]["response"]["output_modalities"] == ["text"]


# ---- sound


def test_sound_of_every_format_is_heard() -> None:
    for name, data in (("audio/pcm", pcm(1.0)), ("audio/pcmu", bytes(8000)), ("audio/pcma", bytes(8000))):
        desk = Desk()
        desk.say("input_audio_buffer.append", audio=encoded(pcm(0.5)))
        desk.update(audio={"input": {"format": {"type": name}}})
        heard = desk.say("input_audio_buffer.append", audio=encoded(data))
        size = sum(len(piece.pcm) for piece in heard if isinstance(piece, client_events.Audio))
        assert abs(size - 32_000) < 200
        assert desk.codec.heard_s() == pytest.approx(1.5)


def test_much_sound_at_once_comes_in_pieces() -> None:
    pieces = Desk().say("input_audio_buffer.append", audio=encoded(pcm(20.0)))
    assert len(pieces) == 40
    assert all(isinstance(piece, client_events.Audio) and len(piece.pcm) <= 16_100 for piece in pieces)


@pytest.mark.parametrize(("name", "size"), [("audio/pcm", 48_000), ("audio/pcmu", 8_000), ("audio/pcma", 8_000)])
def test_sound_of_every_format_is_spoken(name: str, size: int) -> None:
    desk = Desk()
    desk.update(audio={"output": {"format": {"type": name}}})
    received = desk.tell(*reply(1, seconds=1.0))
    deltas = [base64.b64decode(event["delta"]) for event in received if event["type"] == "response.output_audio.delta"]
    assert abs(sum(map(len, deltas)) - size) <= 4


def test_no_delta_is_too_large_and_all_of_it_is_counted() -> None:
    desk = Desk()
    desk.tell(server_events.ReplyStarted(1, 1, "i"), server_events.ReplyText(1, "Long."))
    packets = desk.codec.encode(server_events.Speech(1, 0, pcm(60.0)))
    assert len(packets) > 1
    assert all(len(desk.codec.write(packet, 1)) < 1 << 20 for packet in packets)
    assert (packets[-1].epoch, packets[-1].end) == (1, 60 * RATE)
    assert sum(packet.seconds for packet in packets) == pytest.approx(60.0)


# ---- responses


def test_a_spoken_reply() -> None:
    received = Desk().tell(*reply(1))
    assert kinds(received) == SPOKEN
    response = received[-2]["response"]
    assert response["status"] == "completed"
    assert response["output"][0]["content"] == [{"type": "output_audio", "transcript": "Hi."}]
    assert [response["usage"][f"{part}_tokens"] for part in ("input", "output", "total")] == [20, 3, 23]
    assert response["usage"]["input_token_details"]["cached_tokens"] == 8


def spoken_in_two(desk: Desk) -> tuple[list[Any], Callable[[], list[Any]]]:
    """Return what a client receives of a reply of two words until the first has sounded, and what tells the second."""
    words = [SpokenWord(0, 3, 0, RATE // 2), SpokenWord(4, 10, RATE // 2, RATE)]
    first = desk.tell(
        server_events.ReplyStarted(1, 1, "item_7_r1"),
        server_events.ReplyText(1, "One t"),
        server_events.ReplyText(1, "hree!  "),
        server_events.Speech(1, 0, pcm(0.5), (words[0],)),
    )
    return first, lambda: desk.tell(server_events.Speech(1, RATE // 2, pcm(0.5), (words[1],)))


def transcript_deltas(received: list[Any]) -> list[str]:
    return [one["delta"] for one in received if one["type"] == "response.output_audio_transcript.delta"]


def test_the_words_of_a_spoken_reply_come_with_their_sound() -> None:
    desk = Desk()
    first, go_on = spoken_in_two(desk)
    assert transcript_deltas(first) == ["One"]
    assert kinds(first)[-2:] == ["response.output_audio_transcript.delta", "response.output_audio.delta"]
    assert transcript_deltas(go_on()) == [" three!"]
    end = desk.tell(server_events.SpeechDone(1, RATE), server_events.ReplyDone(1, "One three!  "))
    assert transcript_deltas(end) == ["  "]
    (done,) = [one for one in end if one["type"] == "response.output_audio_transcript.done"]
    assert done["transcript"] == "One three!  "


def test_words_whose_sound_was_never_sent_are_not_part_of_an_interrupted_reply() -> None:
    desk = Desk()
    first, _ = spoken_in_two(desk)
    end = desk.tell(server_events.Interrupted(1, "One", RATE // 2))
    (done,) = [one for one in end if one["type"] == "response.output_audio_transcript.done"]
    assert done["transcript"] == "".join(transcript_deltas([*first, *end])) == "One"


@pytest.mark.parametrize(
    "end",
    [
        [server_events.SpeechDone(1, RATE), server_events.ReplyDone(1, "One three!  ")],
        [server_events.Interrupted(1, "One", RATE // 2)],
    ],
)
def test_over_webrtc_the_words_are_the_same_and_no_event_holds_sound(end: list[Any]) -> None:
    told = []
    for codec in (OpenAIRealtime, RealtimeCall):
        desk = Desk(codec=codec)
        first, go_on = spoken_in_two(desk)
        received = [*first, *(go_on() if len(end) > 1 else []), *desk.tell(*end)]
        told.append(
            [
                (one["type"], one.get("delta", one.get("transcript")))
                for one in received
                if one["type"].startswith("response.output_audio_transcript")
            ]
        )
        assert ("response.output_audio.delta" in kinds(received)) == (codec is OpenAIRealtime)
    assert told[0] == told[1]
    assert told[1][0][1] == "One"


def test_a_response_is_as_its_client_wants_it() -> None:
    desk = Desk()
    wish = {
        "instructions": "Sing.",
        "metadata": {"topic": "song"},
        "output_modalities": ["text"],
        "max_output_tokens": 7,
        "tools": [TOOL],
        "tool_choice": "required",
        "temperature": 0.1,
    }
    (asked,) = desk.say("response.create", response=wish)
    assert isinstance(asked, client_events.Respond)
    config = asked.config
    assert (config.instructions, config.speaks, config.max_tokens, config.temperature) == ("Sing.", False, 7, 0.1)
    assert (config.tools[0].name, config.tool_choice) == ("look", "required")
    received = desk.tell(
        server_events.ReplyStarted(1, 1, "i", asked.tag),
        server_events.ReplyText(1, "La."),
        server_events.Thought(1, "length", 1, 0, 7),
        server_events.ReplyDone(1, "La."),
    )
    assert "response.output_text.delta" in kinds(received)
    assert received[0]["response"]["metadata"] == received[-2]["response"]["metadata"] == {"topic": "song"}
    assert received[-2]["response"]["status_details"] == {"type": "incomplete", "reason": "max_output_tokens"}
    assert desk.hello.config.instructions == "Be brief."
    spoken = desk.tell(*reply(2))
    assert spoken[0]["response"]["metadata"] is None
    assert spoken[0]["response"]["output_modalities"] == ["audio"]


def test_an_aside_is_no_part_of_the_conversation() -> None:
    desk = Desk()
    given = {"conversation": "none", "input": [message("only this"), {"type": "item_reference", "id": "old"}]}
    (asked,) = desk.say("response.create", response=given)
    assert isinstance(asked, client_events.Respond)
    assert asked.aside
    assert asked.input is not None
    item, old = asked.input
    assert isinstance(item, Item)
    assert (item.text, old) == ("only this", "old")
    inside = desk.tell(*reply(1)[:3])
    aside = desk.tell(
        server_events.ReplyStarted(2, 0, "", asked.tag),
        server_events.ReplyText(2, "Psst."),
        server_events.Speech(2, 0, pcm(0.1)),
    )
    both = [
        *inside,
        *aside,
        *desk.tell(*reply(1)[3:5], server_events.SpeechDone(2, 2400), server_events.ReplyDone(2, "Psst.")),
    ]
    assert kinds(both).count("conversation.item.added") == 1
    assert kinds(both).count("response.done") == 2
    assert aside[0]["response"]["conversation_id"] is None
    desk.grammar.end()


def test_calls_are_told_when_all_was_said() -> None:
    desk = Desk()
    called = server_events.ToolCalled(1, "c1", "look", '{"at": 1}', "item_7_r1_c0")
    received = desk.tell(*reply(1)[:2], called, *reply(1)[2:])
    order = kinds(received)
    assert order.index("response.function_call_arguments.done") > order.index("response.content_part.done")
    output = received[-2]["response"]["output"]
    assert [item["type"] for item in output] == ["message", "function_call"]
    assert (output[1]["id"], output[1]["call_id"], output[1]["arguments"]) == ("item_7_r1_c0", "c1", '{"at": 1}')


def test_a_reply_that_only_calls_has_no_message() -> None:
    desk = Desk()
    started, *_, thought, _, _ = reply(1)
    calls = [server_events.ToolCalled(1, f"c{place}", "look", "{}") for place in range(2)]
    received = desk.tell(started, *calls, thought, server_events.SpeechDone(1, 0), server_events.ReplyDone(1, ""))
    assert [item["type"] for item in received[-2]["response"]["output"]] == ["function_call", "function_call"]
    assert "response.content_part.added" not in kinds(received)
    assert len({item["id"] for item in received[-2]["response"]["output"]}) == 2


def test_a_reply_of_nothing_ends_all_the_same() -> None:
    received = Desk().tell(
        server_events.ReplyStarted(1, 1, "i"), server_events.SpeechDone(1, 0), server_events.ReplyDone(1, "")
    )
    assert kinds(received) == ["response.created", "response.done", "rate_limits.updated"]


def test_what_the_engine_cannot_do_fails_the_response_and_is_no_error() -> None:
    desk = Desk()
    fault = server_events.Fault("engine_failed", "please repeat", retryable=True, epoch=1)
    started, text, sound, *_ = reply(1)
    received = desk.tell(started, text, sound, replace(fault, epoch=0), fault, server_events.SpeechDone(1, 2400))
    assert received[-2]["response"]["status"] == "failed"
    assert received[-2]["response"]["status_details"]["error"]["code"] == "engine_failed"
    assert "error" not in kinds(received)
    assert desk.tell(*reply(2))[-2]["response"]["status"] == "completed"


def test_a_fault_that_concerned_nothing_fails_nothing() -> None:
    desk = Desk()
    started, *rest = reply(7)
    overheard = server_events.Fault("overloaded", "nobody can listen", retryable=True)
    assert desk.tell(started, overheard, *rest)[-2]["response"]["status"] == "completed"
    assert desk.tell(server_events.Fault("engine_lost", "it is restarting", retryable=True)) == []
    assert desk.tell(*reply(1))[-2]["response"]["status"] == "completed"


def test_a_reply_nobody_asked_for_is_as_the_session_wants_it() -> None:
    desk = Desk()
    desk.update(output_modalities=["text"])
    received = desk.tell(
        server_events.ReplyStarted(1, 1, "i"), server_events.ReplyText(1, "Hi."), server_events.ReplyDone(1, "Hi.")
    )
    assert received[-2]["response"]["output_modalities"] == ["text"]


@pytest.mark.parametrize(("lost", "ended"), [((1, 2), ["failed", "failed"]), ((2,), ["completed", "failed"])])
def test_a_lost_engine_fails_what_it_had_not_completed(lost: tuple[int, ...], ended: list[str]) -> None:
    desk = Desk({"type": "realtime", "audio": {"input": {"transcription": {"model": "w"}}}})
    (asked,) = desk.say("response.create", response={"conversation": "none"})
    assert isinstance(asked, client_events.Respond)
    desk.tell(*reply(1)[:3], server_events.ReplyStarted(2, 0, "", asked.tag))
    desk.tell(
        server_events.SpeechStarted(2, 1.0),
        server_events.SpeechStopped(2, 2.0),
        server_events.InputCommitted(2, turn_item("voice-7", 2), ""),
    )
    received = desk.tell(
        *(server_events.Fault("engine_lost", "it is restarting", retryable=True, epoch=epoch) for epoch in lost),
        server_events.TurnDone(2, "failed"),
        server_events.SpeechDone(1, 2400),
        server_events.SpeechDone(2, 0),
    )
    assert [event["response"]["status"] for event in received if event["type"] == "response.done"] == ended
    assert received[0]["type"].endswith("input_audio_transcription.failed")
    assert received[0]["error"]["code"] == "engine_lost"


def test_what_the_client_did_wrong_is_an_error_with_its_id() -> None:
    desk = Desk()
    for said in ({"event_id": "mine"}, {}):
        (cancel,) = desk.say("response.cancel", **said)
        assert isinstance(cancel, client_events.CancelReply)
        (error,) = desk.tell(server_events.Fault("response_cancel_not_active", "none", retryable=False, ref=cancel.ref))
        assert error["error"]["code"] == "response_cancel_not_active"
        assert error["error"]["event_id"] == said.get("event_id")
    (error,) = desk.tell(ConnectionEnd("rate_limit_error", "too_fast", "Slow down.", retryable=False))
    assert (error["error"]["type"], error["error"]["code"]) == ("rate_limit_error", "too_fast")


# ---- turns and interruptions


def turn(number: int, text: str = "hello", at_s: float = 1.0) -> list[Any]:
    item = turn_item("voice-7", number)
    return [
        server_events.SpeechStarted(number, at_s),
        server_events.UserWords(number, "", "hel"),
        server_events.SpeechStopped(number, at_s + 1),
        server_events.InputCommitted(number, item, ""),
        server_events.UserWords(number, text, ""),
        server_events.UserTurn(number, text),
    ]


def test_a_spoken_turn() -> None:
    desk = Desk({"type": "realtime", "audio": {"input": {"transcription": {"model": "w"}}}})
    received = desk.tell(*turn(1), *reply(1), server_events.TurnDone(1, "done"))
    assert kinds(received)[:7] == [
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "conversation.item.input_audio_transcription.delta",
        "conversation.item.input_audio_transcription.completed",
    ]
    assert kinds(received)[7:] == SPOKEN
    started, stopped, committed, added, *_ = received
    assert (started["audio_start_ms"], stopped["audio_end_ms"]) == (700, 2000)  # with the padding before it
    assert started["item_id"] == committed["item_id"] == added["item"]["id"]
    assert added["item"]["content"] == [{"type": "input_audio", "transcript": None}]
    assert (received[6]["transcript"], received[6]["usage"]) == ("hello", {"type": "duration", "seconds": 1.0})
    reply_added = next(event for event in received[7:] if event["type"] == "conversation.item.added")
    assert reply_added["previous_item_id"] == added["item"]["id"]
    desk.grammar.end()


def test_nobody_is_sent_a_transcript_unasked() -> None:
    received = Desk().tell(*turn(1))
    assert not any("transcription" in kind for kind in kinds(received))


def test_a_turn_without_words_and_one_that_failed() -> None:
    desk = Desk({"type": "realtime", "audio": {"input": {"transcription": {"model": "w"}}}})
    received = desk.tell(*turn(1)[:4], server_events.TurnDone(1, "done"))
    assert received[-1]["transcript"] == ""
    fault = server_events.Fault("engine_failed", "please repeat", retryable=True)
    received = desk.tell(*turn(2, at_s=3.0)[:4], fault, server_events.TurnDone(2, "failed"))
    assert received[-1]["type"].endswith(".failed")
    assert desk.tell(*reply(1))[-2]["response"]["status"] == "completed"


def test_a_voice_that_was_no_turn_stops() -> None:
    received = Desk().tell(server_events.SpeechStarted(1, 1.0), server_events.TurnDone(1, "done"))
    assert kinds(received) == ["input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped"]


def test_a_client_that_ends_turns_itself() -> None:
    desk = Desk({"type": "realtime", "audio": {"input": {"turn_detection": None, "transcription": {"model": "w"}}}})
    desk.say("input_audio_buffer.append", audio=encoded(pcm(2.0)))
    (cleared,) = desk.tell(server_events.InputCleared())
    assert cleared["type"] == "input_audio_buffer.cleared"
    desk.say("input_audio_buffer.append", audio=encoded(pcm(1.0)))
    received = desk.tell(server_events.InputCommitted(1, "item_7_t1", ""), server_events.UserTurn(1, "hello"))
    assert kinds(received)[0] == "input_audio_buffer.committed"
    assert received[-1]["usage"]["seconds"] == pytest.approx(1.0, abs=0.01)


def test_silence_that_lasts_too_long() -> None:
    received = Desk().tell(
        server_events.IdleTimeout(1, "item_7_t1", 2.0, 8.0), server_events.InputCommitted(1, "item_7_t1", ""), *reply(1)
    )
    assert kinds(received)[:2] == ["input_audio_buffer.timeout_triggered", "input_audio_buffer.committed"]
    assert (received[0]["audio_start_ms"], received[0]["audio_end_ms"]) == (2000, 8000)


def test_a_voice_that_is_meant_is_told_before_the_response_ends() -> None:
    desk = Desk()
    desk.tell(*reply(1)[:3])
    assert desk.tell(server_events.Hold(1), server_events.SpeechStarted(2, 5.0)) == []
    received = desk.tell(server_events.Interrupted(1, "H", 100), *turn(2)[1:])
    assert kinds(received)[0] == "input_audio_buffer.speech_started"
    done = next(event for event in received if event["type"] == "response.done")
    assert done["response"]["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
    assert done["response"]["output"][0]["status"] == "incomplete"
    assert kinds(received).index("response.done") < kinds(received).index("input_audio_buffer.speech_stopped")
    assert (
        desk.tell(
            server_events.Speech(1, 2400, pcm(0.1)), server_events.SpeechDone(1, 4800), server_events.ReplyDone(1, "H")
        )
        == []
    )
    desk.grammar.end()


def test_a_voice_that_ends_its_turn_while_it_holds_the_reply() -> None:
    desk = Desk()
    desk.tell(*reply(1)[:3], server_events.Hold(1))
    started, _, stopped, committed, *_ = turn(2)
    assert desk.tell(started, stopped, committed) == []
    received = desk.tell(server_events.Interrupted(1, "", 0))
    order = [kind for kind in kinds(received) if kind.startswith("input_") or kind == "response.done"]
    assert order == [
        "input_audio_buffer.speech_started",
        "response.done",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
    ]


def test_of_a_voice_that_was_nothing_nothing_is_told() -> None:
    desk = Desk()
    *begun, thought, done, over = reply(1)
    desk.tell(*begun, server_events.Hold(1))
    assert (
        desk.tell(server_events.SpeechStarted(2, 5.0), server_events.Release(1), server_events.TurnDone(2, "done"))
        == []
    )
    assert desk.tell(thought, done, over)[-2]["response"]["status"] == "completed"


def test_a_voice_after_one_that_was_nothing_is_told_alone() -> None:
    desk = Desk()
    desk.tell(*reply(1)[:3], server_events.Hold(1), server_events.SpeechStarted(2, 5.0), server_events.Release(1))
    received = desk.tell(
        server_events.Hold(1), server_events.SpeechStarted(3, 6.0), server_events.Interrupted(1, "H", 100)
    )
    started = [event for event in received if event["type"] == "input_audio_buffer.speech_started"]
    assert [event["item_id"] for event in started] == [turn_item("voice-7", 3)]


def test_an_interruption_after_all_was_sent_ends_no_response_again() -> None:
    desk = Desk()
    desk.tell(*reply(1)[:5])
    received = desk.tell(
        server_events.Hold(1), server_events.SpeechStarted(2, 5.0), server_events.Interrupted(1, "H", 100)
    )
    assert kinds(received) == ["input_audio_buffer.speech_started"]


def test_who_ended_a_response_is_told() -> None:
    for said in (
        ("response.cancel", {}),
        ("response.cancel", {"response_id": "resp_7_1"}),
        ("conversation.item.truncate", {"item_id": "item_7_r1", "content_index": 0, "audio_end_ms": 10}),
    ):
        desk = Desk()
        desk.tell(*reply(1)[:3])
        (event,) = desk.say(said[0], **said[1])
        assert not isinstance(event, Complaint)
        received = desk.tell(server_events.Interrupted(1, "H", 100), server_events.ItemCut("item_7_r1", 0.01, "H"))
        done = next(event for event in received if event["type"] == "response.done")
        assert done["response"]["status_details"]["reason"] == "client_cancelled"
        assert received[-1]["type"] == "conversation.item.truncated"
        assert received[-1]["audio_end_ms"] == 10


def test_a_wish_to_cancel_that_crosses_an_interruption_is_no_mistake() -> None:
    desk = Desk()
    desk.tell(
        *reply(1)[:3],
        server_events.Hold(1),
        server_events.SpeechStarted(2, 5.0),
        server_events.Interrupted(1, "H", 100),
    )
    assert desk.say("response.cancel") == []
    desk.tell(*reply(2)[:3])
    assert len(desk.say("response.cancel")) == 1
    desk.tell(server_events.Interrupted(2, "H", 100))
    assert len(desk.say("response.cancel")) == 1  # the client has ended that one: another wish is a mistake


def test_what_is_left_of_an_item_is_shown() -> None:
    desk = Desk()
    desk.tell(*reply(1))
    (shown,) = desk.tell(server_events.ItemShown(Item("item_7_r1", "assistant", "H", spoken=True, whole=False)))
    assert shown["item"]["content"] == [{"type": "output_audio", "transcript": "H"}]
    assert shown["item"]["status"] == "incomplete"
    (deleted,) = desk.tell(server_events.ItemDropped("item_7_r1"))
    assert deleted["item_id"] == "item_7_r1"


def test_nobody_is_sent_the_id_of_an_item_they_do_not_know() -> None:
    desk = Desk()
    desk.tell(server_events.ReplyStarted(1, 1, "item_7_r1"), server_events.Interrupted(1, "", 0))
    received = desk.tell(
        server_events.SpeechStarted(2, 1.0),
        server_events.SpeechStopped(2, 2.0),
        server_events.InputCommitted(2, "item_7_t2", "item_7_r1"),
    )
    assert [event["previous_item_id"] for event in received[2:]] == [None, None, None]


# ---- the native dialect beside it


def test_the_native_dialect_has_no_words_for_items() -> None:
    codec = native.Native(Hello(), RATE)
    item = Item("i", "user")
    for event in (
        server_events.InputCommitted(1, "i", ""),
        server_events.InputCleared(),
        server_events.IdleTimeout(1, "i", 0.0, 1.0),
        server_events.ItemPlaced(item, ""),
        server_events.ItemDropped("i"),
        server_events.ItemShown(item),
        server_events.ItemCut("i", 1.0, ""),
        server_events.Thought(1, "eos", 1, 0, 1),
    ):
        assert codec.encode(event) == []
    (packet,) = codec.encode(dialect.ConnectionEnd("server_error", "draining", "Later.", retryable=True))
    assert packet.fields == ("error", "draining", "Later.", True, 1)
