"""Every parameter is honoured, harmless, or refused by name."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxlane.engine.api import MODEL_DECIDES, ChatMessage, Priority, Submit, Tool, ToolUse, decode, encode
from voxlane.server.api.bodies import Ignored
from voxlane.server.api.chat_request import UNSUPPORTED, ChatBody, parse
from voxlane.server.errors import InvalidRequest, UnsupportedParameter, VoxlaneError
from voxlane.server.http.body import parse_json
from voxlane.server.validation import fields_of

IGNORED = msgspec.inspect.type_info(Ignored)
HARMLESS = {name for name, field in fields_of(ChatBody).items() if field.type == IGNORED}
HELLO = [{"role": "user", "content": "hello"}]


def function(**parts: Any) -> dict[str, Any]:
    return {"type": "function", "function": parts}


TOOLS = [function(name="f", description="does it", parameters={"type": "object"}, strict=True), function(name="g")]
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def test_the_least_request() -> None:
    request = parse({"messages": HELLO})
    assert request.messages == (ChatMessage("user", "hello"),)
    assert (request.model, request.max_tokens, request.choices, request.stream) == (None, None, 1, False)
    assert request.sampling.unset == MODEL_DECIDES
    assert request.priority is Priority.NORMAL


def test_roles_and_parts() -> None:
    request = parse(
        {
            "messages": [
                {"role": "developer", "content": "be kind"},
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
                    "name": "x",
                },
                {"role": "assistant", "content": "c", "refusal": None, "tool_calls": None, "annotations": []},
                {"role": "tool", "content": "d", "tool_call_id": "1"},
            ]
        }
    )
    expected = [("system", "be kind"), ("user", "a\nb"), ("assistant", "c"), ("tool", "d")]
    assert [(message.role, message.content) for message in request.messages] == expected


def test_what_litellm_adds_to_an_answer_changes_nothing() -> None:
    answer = {"role": "assistant", "content": "x"}
    added = {**answer, "provider_specific_fields": {"refusal": None}}
    assert parse({"messages": [*HELLO, added]}) == parse({"messages": [*HELLO, answer]})


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_an_empty_tool_call_id_is_as_good_as_none(role: str) -> None:
    absent, empty = ({"role": role, "content": "x", **given} for given in ({}, {"tool_call_id": ""}))
    assert parse({"messages": [empty]}) == parse({"messages": [absent]})


def test_an_assistants_message_may_be_without_content() -> None:
    request = parse({"messages": [*HELLO, {"role": "assistant", "content": None}, {"role": "assistant"}, *HELLO]})
    assert [message.content for message in request.messages] == ["hello", "", "", "hello"]


@pytest.mark.parametrize(
    ("parameters", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": ["hello"]}, "messages[0]"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "tool", "content": None}]}, "messages[0].content"),
        ({"messages": [*HELLO, {"role": "user", "content": 3}]}, "messages[1].content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": "x", "colour": 1}]}, "messages[0].colour"),
        ({"model": ""}, "model"),
        ({"model": 3}, "model"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": 1.5}, "top_k"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"logit_bias": []}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"logit_bias": {str(number): 1 for number in range(1025)}}, "logit_bias"),
        ({"seed": 1 << 63}, "seed"),
        ({"seed": 0.5}, "seed"),
        ({"stop": 3}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": "a" * 257}, "stop"),
        ({"n": 0}, "n"),
        ({"n": 9}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
        ({"logprobs": 3}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {}}, "stream_options"),
        ({"stream": True, "stream_options": 3}, "stream_options"),
        ({"stream": True, "stream_options": {"colour": 1}}, "stream_options.colour"),
        ({"ignore_eos": 1}, "ignore_eos"),
        ({"priority": "urgent"}, "priority"),
        ({"priority": 2}, "priority"),
        ({"deadline_ms": 0}, "deadline_ms"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"colour": "blue"}, "colour"),
        ({"tools": {}}, "tools"),
        ({"tools": TOOLS * 129}, "tools"),
        ({"tools": ["f"]}, "tools[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [function()]}, "tools[0].function.name"),
        ({"tools": [function(name="f", description=3)]}, "tools[0].function.description"),
        ({"tools": [function(name="f", parameters=[])]}, "tools[0].function.parameters"),
        ({"tools": [function(name="f", colour=1)]}, "tools[0].function.colour"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": 3}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": function(name="other")}, "tool_choice"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "colour": 1}}},
            "response_format.json_schema.colour",
        ),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [CALL]}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "tool_calls": 3}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "tool_calls": [{**CALL, "id": 3}]}]}, "messages[0].tool_calls[0].id"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "f"}}]}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": 3}]}, "messages[0].tool_call_id"),
    ],
)
def test_what_is_wrong_is_named(parameters: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse({"messages": HELLO, **parameters})
    assert caught.value.param == param
    assert param in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    "parameters",
    [
        {"tools": [{"type": "custom", "custom": {"name": "f"}}]},
        {"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools": {}}},
        {"functions": [{"name": "f"}]},
        {"modalities": ["text", "audio"]},
        {"audio": {"voice": "alloy"}},
        {"reasoning_effort": "high"},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        {"messages": [{"role": "assistant", "content": "x", "tool_calls": [{"id": "1", "type": "custom"}]}]},
    ],
)
def test_what_is_not_supported_says_so(parameters: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedParameter) as caught:
        parse({"messages": HELLO, **parameters})
    assert caught.value.param is not None


@pytest.mark.parametrize(
    ("choice", "expected"), [(None, "auto"), ("none", "none"), ("required", "required"), (function(name="g"), "g")]
)
def test_tools_and_who_chooses(choice: Any, expected: str) -> None:
    request = parse({"messages": HELLO, "tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False})
    assert request.tools == (Tool("f", "does it", '{"type": "object"}'), Tool("g"))
    assert request.tool_choice == expected
    assert not request.parallel_calls
    assert parse({"messages": HELLO}).parallel_calls


def test_thoughts_that_are_sent_back_have_no_effect() -> None:
    answer = {"role": "assistant", "content": "Hi.", "reasoning_content": "A greeting."}
    assert parse({"messages": [*HELLO, answer]}).messages[-1] == ChatMessage("assistant", "Hi.")


def test_calls_and_their_results_in_a_conversation() -> None:
    answer = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    request = parse({"messages": [*HELLO, answer, {"role": "tool", "content": "done", "tool_call_id": "call_1"}]})
    assert request.messages[1:] == (
        ChatMessage("assistant", "", (ToolUse("call_1", "f", "{}"),)),
        ChatMessage("tool", "done", call_id="call_1"),
    )


@pytest.mark.parametrize(
    ("response_format", "schema"),
    [
        ({"type": "text"}, ""),
        ({"type": "json_object"}, "json"),
        (
            {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": {"type": "object"}}},
            '{"type": "object"}',
        ),
    ],
)
def test_response_formats(response_format: Any, schema: str) -> None:
    assert parse({"messages": HELLO, "response_format": response_format}).sampling.schema == schema


def test_harmless_and_neutral_values_pass() -> None:
    plain = parse({"messages": HELLO})
    assert parse({"messages": HELLO, **dict.fromkeys(HARMLESS, "x")}) == plain
    assert parse({"messages": HELLO, **dict.fromkeys(UNSUPPORTED | {"temperature", "stop", "n", "colour"})}) == plain
    assert parse({"messages": HELLO, "tools": [], "tool_choice": "auto", "modalities": ["text"]}) == plain


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
KNOWN = sorted(UNSUPPORTED | set(fields_of(ChatBody)))


def refusal_of(data: bytes) -> VoxlaneError | None:
    try:
        request = parse(parse_json(data))
    except VoxlaneError as error:
        return error
    asked = {"sampling": request.sampling, "tenant": request.cache_salt, "tools": request.tools}
    submit = Submit("r", "chat", request.messages, **asked)
    assert decode(encode(submit)) == submit
    return None


@given(st.dictionaries(st.sampled_from(KNOWN) | st.text(), JSON, max_size=5), st.booleans())
def test_any_object_is_a_request_or_an_error_of_ours(body: dict[str, Any], with_messages: bool) -> None:
    if with_messages:
        body = {**body, "messages": HELLO}
    error = refusal_of(json.dumps(body).encode())
    assert error is None or (error.http_status == 400 and error.message.isprintable())


@given(st.binary(max_size=200))
def test_any_bytes_are_json_or_an_error_of_ours(data: bytes) -> None:
    try:
        found = parse_json(data)
    except InvalidRequest:
        return
    assert parse_json(json.dumps(found, ensure_ascii=False, allow_nan=False).encode()) == found


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file"])
def test_images_audio_and_files_are_refused_by_their_words(kind: str) -> None:
    with pytest.raises(UnsupportedParameter) as refused:
        parse({"messages": [{"role": "user", "content": [{"type": kind, kind: {}}]}]})
    assert refused.value.param == "messages[0].content[0].type"
    assert "only text is supported: no images, no audio, no files." in refused.value.message
