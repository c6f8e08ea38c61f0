"""POST /v1/responses with the stock client over real sockets: every event against the published types."""

from __future__ import annotations

import asyncio
import json
from typing import Any, get_args

import openai
import pytest
from openai.types.responses import Response, ResponseItemList, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter
from stock_client import blocking_client, stock_client

from voxlane.server.config import KeysConfig, LimitsConfig, ServerConfig
from voxlane.server.errors import StoreUnavailable
from voxlane.server.tenants.key_file import key_hash

MANY = pytest.mark.parametrize
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
PUBLISHED = {get_args(one.model_fields["type"].annotation)[0] for one in get_args(get_args(ResponseStreamEvent)[0])}
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "Tell the weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": True,
}


class Colour(BaseModel):
    """A colour, for structured answers."""

    colour: str


async def events_of(server: Any, **body: Any) -> list[dict[str, Any]]:
    """Return the events of a stream; each has its name before it and is one of the published types."""
    answer = await server.client.post("/v1/responses", json={"stream": True, **body})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = []
    for block in answer.text.split("\n\n")[:-1]:
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["type"] in PUBLISHED
        EVENT.validate_python(event, strict=True)
        events.append(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


TEXT_EVENTS = [
    "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta", "output_text.delta",
    "output_text.done", "content_part.done", "output_item.done", "completed",
]  # fmt: skip
CALL_EVENTS = [
    "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
]  # fmt: skip


async def test_a_thought_is_left_out_and_not_remembered(serving: Any) -> None:
    async with serving() as server, stock_client(server) as client:
        first = await client.responses.create(input="<think> A greeting. </think> Good day.", model="scripted")
        assert first.output_text == "Good day."
        assert first.usage is not None
        assert first.usage.output_tokens == 6
        told = await client.responses.create(input="the history", previous_response_id=first.id, model="scripted")
        assert ";assistant=Good day.;" in told.output_text
        events = await events_of(server, input="<think> A greeting. </think> Good day.")
        assert kinds(events) == TEXT_EVENTS


async def test_a_response_is_of_the_published_type(serving: Any) -> None:
    async with serving() as server, stock_client(server) as client:
        made = await client.responses.create(input="hello there", model="scripted", metadata={"a": "b"})
        assert made.output_text == "hello there"
        assert (made.status, made.model, made.object, made.metadata) == (
            "completed",
            "scripted",
            "response",
            {"a": "b"},
        )
        assert made.usage is not None
        assert (made.usage.input_tokens, made.usage.output_tokens, made.usage.total_tokens) == (7, 2, 9)
        assert made.usage.input_tokens_details.cached_tokens == 3
        raw = await server.client.post("/v1/responses", json={"input": "hello there"})
        Response.model_validate(raw.json(), strict=True)


async def test_a_stream_has_the_published_events_in_their_order(serving: Any) -> None:
    async with serving() as server:
        events = await events_of(server, input="one two")
        assert kinds(events) == TEXT_EVENTS
        assert [one["delta"] for one in events if one["type"] == "response.output_text.delta"] == ["one ", "two"]
        done = events[-1]["response"]
        assert done["output"] == [events[-2]["item"]]
        assert done["output"][0]["content"][0]["text"] == events[6]["text"] == "one two"
        assert {event["item_id"] for event in events if "item_id" in event} == {done["output"][0]["id"]}
        assert events[0]["response"]["status"] == events[1]["response"]["status"] == "in_progress"


async def test_a_call_and_its_answer(serving: Any) -> None:
    async with serving() as server, stock_client(server) as client:
        events = await events_of(server, input="call me", tools=[WEATHER])
        assert kinds(events) == [*TEXT_EVENTS[:5], *TEXT_EVENTS[6:-1], *CALL_EVENTS, "completed"]
        assert [event["output_index"] for event in events if event["type"].endswith("item.done")] == [0, 1]
        made = await client.responses.create(input="call", tools=[WEATHER], tool_choice="required")
        (call,) = made.output
        assert call.type == "function_call"
        assert (call.name, call.call_id, call.arguments) == ("weather", "call_weather", '{"city": "Paris"}')
        assert made.tools[0].to_dict() == WEATHER
        answer: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        asked: Any = {"role": "user", "content": "tools"}
        followed = await client.responses.create(input=[answer, asked], previous_response_id=made.id, tools=[WEATHER])
        stateless = await client.responses.create(
            input=[{"role": "user", "content": "call"}, call.to_dict(), answer, asked],  # type: ignore[list-item]
            tools=[WEATHER],
            store=False,
        )
        assert followed.output_text == stateless.output_text
        assert "ToolUse(call_id='call_weather', name='weather'" in followed.output_text
        assert "'call_weather'), ((), '')" in followed.output_text  # the tool's message names its call


async def test_one_call_at_a_time(serving: Any) -> None:
    async with serving() as server, stock_client(server) as client:
        tools = [WEATHER, {**WEATHER, "name": "time"}]
        both = await client.responses.create(input="call", tools=tools)
        assert [call.type for call in both.output] == ["function_call"] * 2
        one = await client.responses.create(input="call", tools=tools, parallel_tool_calls=False)
        assert [call.type for call in one.output] == ["function_call"]
        named = await client.responses.create(
            input="tools", tools=tools, tool_choice={"type": "function", "name": "time"}
        )
        assert "'time', [" in named.output_text


async def test_the_stock_clients_stream(serving: Any) -> None:
    async with serving() as server, stock_client(server) as client:
        stream = await client.responses.create(input="one two", stream=True)
        assert [event.type.removeprefix("response.") async for event in stream] == TEXT_EVENTS
        async with client.responses.stream(input="one two", model="scripted") as helper:
            seen = [event.type.removeprefix("response.") async for event in helper]
            assert seen == TEXT_EVENTS
            assert (await helper.get_final_response()).output_text == "one two"

        def blocking() -> None:
            with blocking_client(server) as plain:
                assert plain.responses.create(input="one two").output_text == "one two"
                with plain.responses.create(input="one two", stream=True) as events:
                    assert [event.type.removeprefix("response.") for event in events] == TEXT_EVENTS
                with plain.responses.stream(input="call x", model="scripted", tools=[WEATHER]) as called:
                    called.until_done()
                    final = called.get_final_response()
                    assert [item.type for item in final.output] == ["message", "function_call"]

        await asyncio.to_thread(blocking)


async def test_structured_answers(serving: Any) -> None:
    async with serving() as server, stock_client(server) as client:
        parsed = await client.responses.parse(input='{"colour": "red"}', model="scripted", text_format=Colour)
        assert parsed.output_parsed == Colour(colour="red")
        schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
        told = await client.responses.create(
            input="sampling", text={"format": {"type": "json_schema", "name": "n", "schema": schema}}
        )
        assert f"schema='{json.dumps(schema)}'" in told.output_text
        assert told.text is not None
        assert told.text.format is not None
        assert told.text.format.to_dict()["schema"] == schema
        told = await client.responses.create(input="sampling", text={"format": {"type": "json_object"}})
        assert "schema='json'" in told.output_text


async def test_parameters_reach_the_engine(serving: Any) -> None:
    async with serving() as server, stock_client(server) as client:
        text = (await client.responses.create(input="sampling")).output_text
        assert "unset=('temperature', 'top_k', 'top_p', 'min_p', 'repetition_penalty')" in text
        assert "max_tokens=4096" in text
        made = await client.responses.create(input="sampling", temperature=0.5, top_p=0, max_output_tokens=12)
        for expected in ("temperature=0.5", "top_p=1e-06", "max_tokens=12", "logprobs=-1"):
            assert expected in made.output_text
        assert (made.temperature, made.top_p, made.max_output_tokens) == (0.5, 0, 12)
        ours = {"priority": "critical", "deadline_ms": 250, "cache_salt": "tenant-1"}
        made = await client.responses.create(input="submission", extra_body=ours)
        assert made.output_text == "<Priority.CRITICAL: 2> 0.25 http  tenant-1"


@MANY("stream", [False, True])
async def test_log_probabilities_and_an_answer_cut_short(serving: Any, stream: bool) -> None:
    async with serving() as server:
        body = {"input": "logprobs", "include": ["message.output_text.logprobs"], "top_logprobs": 2}
        if stream:
            events = await events_of(server, **body)
            assert events[-1]["type"] == "response.incomplete"
            made = events[-1]["response"]
            assert events[4]["logprobs"] == made["output"][0]["content"][0]["logprobs"]
        else:
            made = (await server.client.post("/v1/responses", json=body)).json()
        assert (made["status"], made["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        (token,) = made["output"][0]["content"][0]["logprobs"]
        assert (token["token"], token["logprob"], len(token["top_logprobs"])) == ("é", -0.5, 2)


async def test_instructions_are_of_one_response_alone(serving: Any) -> None:
    async with serving() as server, stock_client(server) as client:
        first = await client.responses.create(input="hello", instructions="Be brief.")
        assert first.instructions == "Be brief."
        second = await client.responses.create(input="history", instructions="Be kind.", previous_response_id=first.id)
        assert second.output_text == "system=Be kind.;user=hello;assistant=hello;user=history;"
        third = await client.responses.create(input="more history", previous_response_id=second.id, store=False)
        assert third.output_text.startswith("user=hello;assistant=hello;user=history;assistant=system=Be kind.;")
        items: Any = [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be calm."}]},
            {"role": "user", "content": "history"},
        ]
        assert (await client.responses.create(input=items)).output_text == "system=Be calm.;user=history;"


async def test_what_is_kept_can_be_read_referred_to_and_deleted(serving: Any) -> None:
    async with serving() as server, stock_client(server) as client:
        made = await client.responses.create(input="hello")
        assert (await client.responses.retrieve(made.id)).to_dict() == made.to_dict()
        reference: Any = {"type": "item_reference", "id": made.output[0].id}
        asked: Any = {"role": "user", "content": "history"}
        told = await client.responses.create(input=[reference, asked])
        assert told.output_text == "assistant=hello;user=history;"
        with pytest.raises(openai.BadRequestError) as error:  # a small body must not make a large prompt
            await client.responses.create(input=[reference, reference, asked])
        assert error.value.param == "input[1].id"
        await client.responses.delete(made.id)
        for gone in (client.responses.retrieve(made.id), client.responses.delete(made.id)):
            with pytest.raises(openai.NotFoundError) as missing:
                await gone
            assert missing.value.code == "response_not_found"
        with pytest.raises(openai.BadRequestError) as error:
            await client.responses.create(input="more", previous_response_id=made.id)
        assert (error.value.code, error.value.param) == ("previous_response_not_found", "previous_response_id")
        with pytest.raises(openai.BadRequestError) as error:
            await client.responses.create(input=[reference, asked])
        assert error.value.param == "input[0].id"
        # What followed the deleted response holds its own copy.
        later = await client.responses.create(input="history", previous_response_id=told.id)
        assert later.output_text.startswith("assistant=hello;user=history;")


async def test_the_items_that_led_to_a_response(serving: Any) -> None:
    async with serving() as server, stock_client(server) as client:
        first = await client.responses.create(input="call", tools=[WEATHER], instructions="Be brief.")
        (call,) = first.output
        assert call.type == "function_call"
        answer: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        parts: Any = [{"type": "input_text", "text": "one"}, {"type": "input_text", "text": "two"}]
        asked: Any = {"role": "user", "content": parts}
        second = await client.responses.create(input=[answer, asked], previous_response_id=first.id)
        third = await client.responses.create(input="more", previous_response_id=second.id)
        listed = [item async for item in client.responses.input_items.list(third.id, order="asc", limit=2)]
        assert [item.type for item in listed] == [
            "message", "function_call", "function_call_output", "message", "message", "message",
        ]  # fmt: skip
        assert [getattr(item, "role", "") for item in listed] == ["user", "", "", "user", "assistant", "user"]
        assert listed[1].id == call.id
        assert listed[4].id == second.output[0].id
        assert [part.text for part in listed[3].content] == ["one", "two"]  # type: ignore[union-attr]
        assert listed[2].to_dict()["output"] == "sunny"
        newest = [item.id async for item in client.responses.input_items.list(third.id)]
        assert newest == [item.id for item in reversed(listed)]
        raw = (await server.client.get(f"/v1/responses/{third.id}/input_items?limit=4&order=asc")).json()
        ResponseItemList.model_validate(raw, strict=True)
        assert (raw["has_more"], raw["first_id"], raw["last_id"]) == (True, listed[0].id, listed[3].id)
        last = (await server.client.get(f"/v1/responses/{third.id}/input_items?after={listed[0].id}")).json()
        assert (last["data"], last["has_more"]) == ([], False)
        # An item can be referred to by the id under which it is listed.
        reference: Any = {"type": "item_reference", "id": listed[0].id}
        told = await client.responses.create(input=[reference, {"role": "user", "content": "history"}])
        assert told.output_text == "user=call;user=history;"


async def test_a_wrong_question_for_input_items_is_named(serving: Any) -> None:
    async with serving() as server, stock_client(server) as client:
        made = await client.responses.create(input="hello")
        for query in ("limit=0", "limit=101", "limit=x", "order=up", "after=msg_x"):
            answer = await server.client.get(f"/v1/responses/{made.id}/input_items?{query}&include[]=x")
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, query.partition("=")[0])
        with pytest.raises(openai.NotFoundError) as missing:
            await client.responses.input_items.list("resp_none")
        assert missing.value.code == "response_not_found"


async def test_only_a_response_in_the_background_can_be_cancelled(serving: Any) -> None:
    async with serving() as server, stock_client(server) as client:
        made = await client.responses.create(input="hello")
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.cancel(made.id)
        assert refused.value.code == "not_in_background"
        assert "close its connection" in str(refused.value)
        with pytest.raises(openai.NotFoundError):
            await client.responses.cancel("resp_none")
        assert (await client.responses.retrieve(made.id)).status == "completed"


async def test_an_answer_is_given_though_it_cannot_be_kept(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> bool:
        raise StoreUnavailable(detail="full")

    async with serving() as server, stock_client(server) as client:
        monkeypatch.setattr(server.service.responses, "keep", full)
        made = await client.responses.create(input="hello")
        assert (made.output_text, made.to_dict()["store"]) == ("hello", False)
        assert (await events_of(server, input="hello"))[-1]["type"] == "response.completed"


async def test_store_false_keeps_nothing(serving: Any) -> None:
    async with serving() as server, stock_client(server) as client:
        made = await client.responses.create(input="hello", store=False)
        await events_of(server, input="hello", store=False)
        assert len(server.service.responses) == 0
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(made.id)
        large = await client.responses.create(input="size " + "x" * 300_000)
        assert large.to_dict()["store"] is False  # too large to be kept, and says so
        assert len(server.service.responses) == 0


async def test_a_response_belongs_to_its_key(serving: Any, tmp_path: Any) -> None:
    keys = tmp_path / "keys.json"
    records = [{"name": name, "hash": key_hash(name * 8)} for name in ("peter", "maria")]
    keys.write_text(json.dumps({"keys": records}))
    keys.chmod(0o600)
    async with (
        serving(keys=KeysConfig(str(keys))) as server,
        stock_client(server, "peter" * 8) as peter,
        stock_client(server, "maria" * 8) as maria,
    ):
        made = await peter.responses.create(input="hello")
        with pytest.raises(openai.NotFoundError):
            await maria.responses.retrieve(made.id)
        with pytest.raises(openai.NotFoundError):
            await maria.responses.delete(made.id)
        with pytest.raises(openai.NotFoundError):
            await maria.responses.input_items.list(made.id)
        with pytest.raises(openai.NotFoundError):
            await maria.responses.cancel(made.id)
        with pytest.raises(openai.BadRequestError):
            await maria.responses.create(input="history", previous_response_id=made.id)
        assert (await peter.responses.retrieve(made.id)).id == made.id


REFUSED: list[tuple[dict[str, Any], str, str]] = [
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
         "input[0].content[0].type", "no images"),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]},
         "input[0].content[0].type", "no files"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input[0].type", "only messages"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id", "function_call"),
        ({"input": [{"role": "user"}]}, "input[0].content", "needed"),
        ({"input": []}, "input", "1 to"),
        ({}, "input", "must be"),
        ({"input": "x", "tools": [{"type": "web_search_preview"}]}, "tools[0].type", "no built-in"),
        ({"input": "x", "tools": [{"type": "mcp", "server_label": "s"}]}, "tools[0].type", "only functions"),
        ({"input": "x", "tool_choice": {"type": "web_search_preview"}}, "tool_choice.type", "only functions"),
        ({"input": "x", "tool_choice": {"type": "function", "name": "f"}}, "tool_choice", "one of the tools"),
        ({"input": "x", "background": True}, "background", "background is not supported"),
        ({"input": "x", "reasoning": {"effort": "low"}}, "reasoning", "reasoning is not supported"),
        ({"input": "x", "conversation": "c"}, "conversation", "conversation is not supported"),
        ({"input": "x", "prompt": {"id": "p"}}, "prompt", "prompt is not supported"),
        ({"input": "x", "truncation": "auto"}, "truncation", "truncation is not supported"),
        ({"input": "x", "include": ["file_search_call.results"]}, "include", "only message.output_text.logprobs"),
        ({"input": "x", "text": {"verbosity": "low"}}, "text.verbosity", "length of answers"),
        ({"input": "x", "top_logprobs": 2}, "top_logprobs", "needs"),
        ({"input": "x", "max_output_tokens": 0}, "max_output_tokens", "must be"),
        ({"input": "x", "colour": "red"}, "colour", "not a parameter"),
        ({"input": "x", "previous_response_id": "resp_none"}, "previous_response_id", "no such response"),
]  # fmt: skip


async def test_what_is_not_done_is_refused_by_name(serving: Any) -> None:
    async with serving() as server:
        for body, param, words in REFUSED:
            answer = await server.client.post("/v1/responses", json=body)
            error = answer.json()["error"]
            assert (answer.status_code, error["param"]) == (400, param), error
            assert words in error["message"]


async def test_neutral_values_are_let_through(serving: Any) -> None:
    async with serving() as server:
        body = {
            "input": "x", "background": False, "truncation": "disabled", "reasoning": {"effort": "none"}, "user": "u",
            "include": ["reasoning.encrypted_content"], "text": {"format": {"type": "text"}, "verbosity": "medium"},
            "prompt_cache_key": "k", "service_tier": "auto", "conversation": None, "tools": [], "tool_choice": "auto",
            "stream_options": {"include_obfuscation": False}, "previous_response_id": None, "max_tool_calls": 3,
        }  # fmt: skip
        answer = await server.client.post("/v1/responses", json=body)
        assert answer.status_code == 200, answer.text


async def test_failures_are_those_of_chat(serving: Any) -> None:
    async with serving() as server:
        for said, status, code in (
            ("refuse too_long", 400, "context_length_exceeded"),
            ("refuse overloaded", 429, "overloaded"),
            ("fail", 500, "model_failed"),
            ("crash", 503, "engine_lost"),
        ):
            answer = await server.client.post("/v1/responses", json={"input": said})
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
            assert len(server.service.responses) == 0


@MANY("said", ["fail later", "crash later"])
async def test_a_failure_within_a_stream_is_an_event(serving: Any, said: str) -> None:
    async with serving() as server:
        events = await events_of(server, input=said)
        assert events[-1]["type"] == "response.failed"
        assert events[-1]["response"]["error"]["code"] == "server_error"
        assert len(server.service.responses) == 0


async def test_limits_are_those_of_chat(serving: Any) -> None:
    config = ServerConfig(highest_priority="normal")
    async with serving(api_key="sesame", server=config, limits=LimitsConfig(body_bytes=2000)) as server:
        async with stock_client(server, "wrong") as stranger:
            with pytest.raises(openai.AuthenticationError):
                await stranger.responses.create(input="x")
        async with stock_client(server, "sesame") as client:
            with pytest.raises(openai.PermissionDeniedError):
                await client.responses.create(input="x", extra_body={"priority": "high"})
            with pytest.raises(openai.NotFoundError) as unknown:
                await client.responses.create(input="x", model="gpt-9")
            assert unknown.value.code == "model_not_found"
            with pytest.raises(openai.APIStatusError) as large:
                await client.responses.create(input="x" * 3000)
            assert large.value.status_code == 413


async def test_a_client_that_leaves_cancels_its_response(serving: Any) -> None:
    async with serving() as server, stock_client(server) as client:
        stream = await client.responses.create(input="wait", stream=True)
        async for event in stream:
            if event.type == "response.output_text.delta":
                break
        assert server.service.engine.open_streams == 1
        await stream.close()
        while server.service.engine.open_streams:  # the test's own deadline ends it
            await server.client.get("/livez")
        assert len(server.service.responses) == 0
