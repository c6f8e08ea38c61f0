"""The HTTP surface over real sockets: shapes, streams, refusals, disconnects, engine deaths."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from voxlane.server import limits
from voxlane.server.audio.voices import served_name
from voxlane.server.config import LimitsConfig, ServerConfig

MANY = pytest.mark.parametrize


def events_of(text: str) -> list[Any]:
    assert text.endswith("\n\n")
    lines = [line for line in text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    return [line[6:] if line == "data: [DONE]" else json.loads(line[6:]) for line in lines]


async def metric(server: Any, name: str, **labels: str) -> float:
    text = (await server.client.get("/metrics")).text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name and sample.labels == labels:
                return float(sample.value)
    raise AssertionError(f"no metric {name} {labels}")


async def wait_for_metric(server: Any, value: float, name: str, **labels: str) -> None:
    """Ask until it is there; each question is a round trip, and the test's own deadline ends it."""
    while await metric(server, name, **labels) != value:
        pass


async def test_a_whole_answer_has_openais_shape(serving: Any) -> None:
    async with serving() as server:
        answer = await server.chat("hello there", model="scripted")
        assert answer.status_code == 200
        assert answer.headers["x-request-id"].startswith("req_")
        assert answer.headers["content-type"] == "application/json"
        assert "date" in answer.headers
        body = answer.json()
        assert body["object"] == "chat.completion"
        assert body["model"] == "scripted"
        assert body["system_fingerprint"].startswith("fp_")
        (choice,) = body["choices"]
        assert choice["message"]["content"] == "hello there"
        assert choice["message"]["role"] == "assistant"
        assert choice["finish_reason"] == "stop"
        assert choice["logprobs"] is None
        usage = body["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (7, 2, 9)
        assert usage["prompt_tokens_details"] == {"cached_tokens": 3}
        expected = {"queue_ms": 1.0, "first_token_ms": 2.0, "per_token_ms": 3.0, "total_ms": 4.0, "preemptions": 1}
        assert usage["voxlane"] == expected


async def test_a_stream_is_role_text_reason_usage_done(serving: Any) -> None:
    async with serving() as server:
        answer = await server.chat("one two", stream=True, stream_options={"include_usage": True})
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        *chunks, done = events_of(answer.text)
        assert done == "[DONE]"
        assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
        assert len({chunk["id"] for chunk in chunks}) == 1
        assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
        assert [chunk["choices"][0]["delta"].get("content") for chunk in chunks[1:3]] == ["one ", "two"]
        assert chunks[3]["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
        assert chunks[4]["choices"] == []
        assert chunks[4]["usage"]["total_tokens"] == 9
        assert [chunk["usage"] for chunk in chunks[:4]] == [None] * 4


THINKING = "<think> Let me see. It is a greeting. </think> Good day < to you <think>"


async def test_a_thought_is_no_part_of_the_answer(serving: Any) -> None:
    async with serving() as server:
        body = (await server.chat(THINKING, n=2)).json()
        for choice in body["choices"]:
            assert choice["message"]["content"] == "Good day < to you <think>"
            assert choice["message"]["reasoning_content"] == "Let me see. It is a greeting. "
        assert body["usage"]["completion_tokens"] == 2 * len(THINKING.split())
        *chunks, _ = events_of((await server.chat(THINKING, stream=True)).text)
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        assert "".join(delta.get("content", "") for delta in deltas) == "Good day < to you <think>"
        assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Let me see. It is a greeting. "
        assert not [delta for delta in deltas if {"content", "reasoning_content"} <= delta.keys()]
        plain = (await server.chat("no thought")).json()["choices"][0]["message"]
        assert "reasoning_content" not in plain


@MANY("stream", [False, True])
async def test_an_answer_that_only_begins_like_a_thought_is_whole(serving: Any, stream: bool) -> None:
    async with serving() as server:
        answer = await server.chat("<thin", stream=stream)
        if stream:
            deltas = [chunk["choices"][0]["delta"] for chunk in events_of(answer.text)[:-1]]
            assert "".join(delta.get("content", "") for delta in deltas) == "<thin"
        else:
            assert answer.json()["choices"][0]["message"]["content"] == "<thin"


async def test_a_thought_before_a_call(serving: Any) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    async with serving() as server:
        body = (await server.chat("call <think>A tool.</think>", tools=tools)).json()
        (choice,) = body["choices"]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] is None
        assert choice["message"]["reasoning_content"] == "A tool."


async def test_without_include_usage_there_is_none(serving: Any) -> None:
    async with serving() as server:
        *chunks, done = events_of((await server.chat("one", stream=True)).text)
        assert done == "[DONE]"
        assert all("usage" not in chunk for chunk in chunks)


@MANY("stream", [False, True])
async def test_several_choices(serving: Any, stream: bool) -> None:
    async with serving() as server:
        answer = await server.chat("sampling", n=3, seed=-1, stream=stream, temperature=0)
        if stream:
            texts = ["", "", ""]
            reasons = {}
            for chunk in events_of(answer.text)[:-1]:
                for choice in chunk["choices"]:
                    texts[choice["index"]] += choice["delta"].get("content", "")
                    reasons[choice["index"]] = choice["finish_reason"]
            assert reasons == {0: "stop", 1: "stop", 2: "stop"}
        else:
            body = answer.json()
            assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
            assert body["usage"]["prompt_tokens"] == 7
            assert body["usage"]["completion_tokens"] == 3
            texts = [choice["message"]["content"] for choice in body["choices"]]
        assert [f"seed={seed}," in text for seed, text in zip(((1 << 63) - 1, 0, 1), texts, strict=True)] == [True] * 3


async def test_parameters_reach_the_engine(serving: Any) -> None:
    async with serving() as server:
        text = (await server.chat("sampling")).json()["choices"][0]["message"]["content"]
        assert "unset=('temperature', 'top_k', 'top_p', 'min_p', 'repetition_penalty')" in text
        assert "max_tokens=4096" in text  # the context
        assert "logprobs=-1" in text
        everything = {
            "temperature": 0.5, "top_p": 0, "top_k": -1, "min_p": 0.1, "repetition_penalty": 1.2,
            "presence_penalty": 1, "frequency_penalty": -1, "logit_bias": {"5": 3}, "seed": 9, "stop": ["a", "b", "a"],
            "max_completion_tokens": 12, "ignore_eos": True, "logprobs": True, "top_logprobs": 2,
            "user": "u", "metadata": {"a": "b"}, "store": False, "tools": [], "response_format": {"type": "text"},
            "tool_choice": None,
        }  # fmt: skip
        text = (await server.chat("sampling", **everything)).json()["choices"][0]["message"]["content"]
        for expected in (
            "temperature=0.5", "top_p=1e-06", "top_k=0", "min_p=0.1", "repetition_penalty=1.2", "presence_penalty=1.0",
            "frequency_penalty=-1.0", "logit_bias=((5, 3.0),)", "seed=9", "stop=('a', 'b')", "max_tokens=12",
            "ignore_eos=True", "logprobs=2",
        ):  # fmt: skip
            assert expected in text
        extras = {"priority": "critical", "deadline_ms": 250, "cache_salt": "tenant-1"}
        text = (await server.chat("submission", **extras)).json()["choices"][0]["message"]["content"]
        assert text == "<Priority.CRITICAL: 2> 0.25 http  tenant-1"


@MANY("stream", [False, True])
async def test_logprobs(serving: Any, stream: bool) -> None:
    async with serving() as server:
        answer = await server.chat("logprobs", logprobs=True, top_logprobs=2, stream=stream)
        choice = events_of(answer.text)[1]["choices"][0] if stream else answer.json()["choices"][0]
        (token,) = choice["logprobs"]["content"]
        assert (token["token"], token["logprob"], token["bytes"]) == ("é", -0.5, [0xC3, 0xA9])
        assert [other["logprob"] for other in token["top_logprobs"]] == [-0.5, -9999.0]
        if not stream:
            assert choice["finish_reason"] == "length"
        unasked = (await server.chat("logprobs")).json()
        assert unasked["choices"][0]["logprobs"] is None


@MANY("stream", [False, True])
async def test_the_bytes_of_all_tokens_are_the_answer(serving: Any, stream: bool) -> None:
    async with serving() as server:
        answer = await server.chat("emoji", logprobs=True, top_logprobs=2, stream=stream)
        if stream:
            choices = [chunk["choices"][0] for chunk in events_of(answer.text)[1:-2]]
            content = "".join(choice["delta"]["content"] for choice in choices)
        else:
            choices = answer.json()["choices"]
            content = choices[0]["message"]["content"]
        tokens = [token for choice in choices for token in choice["logprobs"]["content"]]
        assert content == "🎉!"
        assert [token["token"] for token in tokens] == ["\ufffd", "\ufffd\ufffd", "!"]  # half characters show as such
        assert bytes(byte for token in tokens for byte in token["bytes"]).decode() == content
        assert [token["top_logprobs"][0]["bytes"] for token in tokens] == [token["bytes"] for token in tokens]
        assert tokens[0]["top_logprobs"][1] == {"token": "\ufffd", "logprob": -3.0, "bytes": [0xF0]}


async def test_what_lookup_guessed_is_told_when_it_guessed(serving: Any) -> None:
    async with serving() as server:
        told = (await server.chat("lookup", n=2)).json()["usage"]["voxlane"]
        assert (told["lookup_proposed"], told["lookup_accepted"]) == (16, 10)


async def test_what_the_engine_reports_becomes_metrics(serving: Any) -> None:
    async with serving() as server:
        assert await metric(server, "voxlane_engine_phase_seconds_total", phase="forward") == 0
        usage = (await server.chat("hello")).json()["usage"]
        await wait_for_metric(server, 2, "voxlane_engine_steps_total")
        for kind, tokens in (("prompt", usage["prompt_tokens"]), ("output", usage["completion_tokens"])):
            assert await metric(server, "voxlane_tokens_total", kind=kind) == tokens > 0
        assert await metric(server, "voxlane_engine_step_requests_total") == 6
        phases = {"schedule": 0.001, "move": 0.002, "forward": 0.003, "sample": 0.004}
        for phase, seconds in phases.items():
            assert await metric(server, "voxlane_engine_phase_seconds_total", phase=phase) == seconds
        assert await metric(server, "voxlane_lookup_proposed_tokens_total") == 8
        assert await metric(server, "voxlane_lookup_accepted_tokens_total") == 5


@MANY(
    ("highest", "asked", "status"),
    [
        ("critical", "critical", 200),
        ("high", "high", 200),
        ("high", "critical", 403),
        ("normal", "high", 403),
        ("normal", None, 200),
    ],
)
async def test_the_operator_says_how_urgent_a_request_may_be(
    serving: Any, highest: Any, asked: str | None, status: int
) -> None:
    async with serving(server=ServerConfig(highest_priority=highest)) as server:
        answer = await server.chat("submission", priority=asked)
        assert answer.status_code == status
        if status == 403:
            error = answer.json()["error"]
            assert (error["code"], error["type"], error["param"]) == ("not_allowed", "permission_error", "priority")
            assert error["message"].endswith(f"priority may be at most {highest}.")


@MANY("stream", [False, True])
@MANY(
    ("said", "status", "code"),
    [
        ("refuse too_long", 400, "context_length_exceeded"),
        ("refuse bad_request", 400, "invalid_request"),
        ("refuse overloaded", 429, "overloaded"),
        ("crash", 503, "engine_lost"),
    ],
)
async def test_what_fails_before_the_first_token_is_an_http_error(
    serving: Any, said: str, status: int, code: str, stream: bool
) -> None:
    async with serving() as server:
        answer = await server.chat(said, stream=stream)
        assert answer.status_code == status
        error = answer.json()["error"]
        assert error["code"] == code
        assert error["message"].endswith("the prompt has 9 tokens." if "refuse" in said else "s.")
        assert ("retry-after" in answer.headers) == (status in (429, 503))


async def test_a_failed_request_is_a_500(serving: Any) -> None:
    async with serving() as server:
        answer = await server.chat("fail later")
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "model_failed")
        assert "not finite" in answer.json()["error"]["message"]
        *_, last = events_of((await server.chat("fail later", stream=True)).text)
        assert last["error"]["code"] == "model_failed"


async def test_a_stream_that_loses_its_engine_ends_with_an_error_event(
    serving: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RESTART_DELAY_SECONDS", 1.0)  # else a busy machine asks when it is back
    async with serving() as server:
        answer = await server.chat("crash later", stream=True)
        assert answer.status_code == 200
        events = events_of(answer.text)
        assert events[1]["choices"][0]["delta"]["content"] == "one "
        assert events[-1]["error"]["code"] == "engine_lost"
        assert (await server.client.get("/healthz")).json()["status"] == "restarting"
        refused = await server.chat("hello")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_not_ready")
        await server.service.engine.wait_ready()
        assert (await server.chat("back again")).json()["choices"][0]["message"]["content"] == "back again"


async def test_leaving_a_stream_cancels_in_the_engine(serving: Any) -> None:
    async with serving() as server:
        body = {"messages": [{"role": "user", "content": "wait"}], "stream": True}
        async with server.client.stream("POST", "/v1/chat/completions", json=body) as answer:
            await anext(answer.aiter_lines())
        await wait_for_metric(server, 1, "voxlane_finished_requests_total", reason="cancelled")
        await wait_for_metric(server, 1, "voxlane_client_disconnects_total")
        assert server.service.engine.open_streams == 0
        assert server.service.request_limit.inside == 0


async def test_leaving_a_whole_answer_cancels_in_the_engine(serving: Any) -> None:
    async with serving() as server:
        task = asyncio.create_task(server.chat("wait"))
        await wait_for_metric(server, 1, "voxlane_engine_requests", state="running")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await wait_for_metric(server, 1, "voxlane_finished_requests_total", reason="cancelled")
        await wait_for_metric(server, 0, "voxlane_engine_requests", state="running")
        labels = {"route": "/v1/chat/completions", "status": "499"}
        await wait_for_metric(server, 1, "voxlane_http_requests_total", **labels)


async def test_leaving_with_several_choices_cancels_them_all(serving: Any) -> None:
    async with serving() as server:
        body = {"messages": [{"role": "user", "content": "wait"}], "stream": True, "n": 3}
        async with server.client.stream("POST", "/v1/chat/completions", json=body) as answer:
            await anext(answer.aiter_lines())
        await wait_for_metric(server, 3, "voxlane_finished_requests_total", reason="cancelled")
        await wait_for_metric(server, 1, "voxlane_client_disconnects_total")
        assert server.service.engine.open_streams == 0
        assert server.service.request_limit.inside == 0


async def test_a_client_that_does_not_read_is_given_up(serving: Any) -> None:
    limits = LimitsConfig(write_s=0.1)
    async with serving(limits=limits) as server:
        reader, writer = await asyncio.open_connection(*server.listener.getsockname(), limit=1024)
        said = json.dumps({"messages": [{"role": "user", "content": "big 12000000"}], "stream": True}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(said)}\r\n\r\n"
        writer.write(head.encode() + said)
        await wait_for_metric(server, 1, "voxlane_client_disconnects_total")
        assert server.service.engine.open_streams == 0
        writer.transport.abort()
        del reader


async def test_models(serving: Any) -> None:
    async with serving(server=ServerConfig(model_alias="my-name")) as server:
        listed = (await server.client.get("/v1/models")).json()
        assert [model["id"] for model in listed["data"]] == ["scripted", "my-name", "moonshine-tiny-en", "hibari"]
        assert (await server.client.get("/v1/models/my-name")).json()["voxlane"]["architecture"] == "scripted"
        missing = await server.client.get("/v1/models/gpt-9")
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")
        assert (await server.chat("hi", model="my-name")).json()["model"] == "my-name"
        wrong = await server.chat("hi", model="gpt-9")
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (404, "model_not_found")
        assert wrong.json()["error"]["param"] == "model"


async def test_an_adapter_is_told_and_changes_no_name(serving: Any) -> None:
    async with serving(adapter="/somewhere/of/mine/peter") as server:
        listed = (await server.client.get("/v1/models")).json()["data"]
        assert [model["id"] for model in listed] == ["scripted", "moonshine-tiny-en", "hibari"]
        assert [model["voxlane"].get("adapter") for model in listed] == ["peter", None, None]


async def test_the_key_is_asked_for(serving: Any) -> None:
    async with serving(api_key="secret") as server:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "secret"}):
            answer = await server.client.get("/v1/models", headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
        right = {"authorization": "Bearer secret"}
        assert (await server.client.get("/v1/models", headers=right)).status_code == 200
        assert (await server.client.get("/healthz")).status_code == 200


async def test_health_before_the_engine_is_ready(serving: Any) -> None:
    async with serving(model="never-ready", wait=False) as server:
        answer = await server.client.get("/healthz")
        assert (answer.status_code, answer.json()["status"]) == (503, "starting")
        chat = await server.chat("hello")
        assert (chat.status_code, chat.json()["error"]["code"]) == (503, "engine_not_ready")
        assert (await server.client.get("/")).json()["status"] == "starting"


async def test_health_after_a_kill(serving: Any) -> None:
    async with serving() as server:
        assert (await server.client.get("/healthz")).status_code == 200
        server.kill_engine()
        while (await server.client.get("/healthz")).json()["status"] == "ready":
            pass
        await server.service.engine.wait_ready()
        assert await metric(server, "voxlane_engine_starts_total") == 2


async def test_addresses_and_methods_that_do_not_exist(serving: Any) -> None:
    async with serving() as server:
        answer = await server.client.get("/v1/nothing")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
        answer = await server.client.get("/v1/chat/completions")
        assert (answer.status_code, answer.json()["error"]["code"]) == (405, "method_not_allowed")
        for conversations in ("/v1/voice", "/v1/realtime"):
            answer = await server.client.get(conversations)
            assert (answer.status_code, answer.json()["error"]["code"]) == (426, "websocket_only")
            assert answer.headers["upgrade"] == "websocket"
        assert await metric(server, "voxlane_http_requests_total", route="other", status="404") == 1


@MANY(
    "body",
    [
        b"", b"[]", b"null", b"{", b'{"messages": NaN}', b'{"temperature": 1e999}', b"\xff\xfe", b"[" * 100_000,
        b'{"a":' * 50_000, b'{"messages":[{"role":"user","content":"\\ud800"}]}', b"9" * 5000,
    ],
)  # fmt: skip
async def test_a_body_that_is_no_proper_json(serving: Any, body: bytes) -> None:
    async with serving() as server:
        answer = await server.client.post("/v1/chat/completions", content=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "invalid_request_error"
        assert (await server.chat("fine")).status_code == 200


async def test_a_body_that_is_too_large(serving: Any) -> None:
    limits = LimitsConfig(body_bytes=2000)
    async with serving(limits=limits) as server:
        declared = await server.client.post("/v1/chat/completions", content=b" " * 2001)
        assert (declared.status_code, declared.json()["error"]["code"]) == (413, "too_large")

        async def pieces() -> Any:
            for _ in range(3):
                yield b" " * 1000

        chunked = await server.client.post("/v1/chat/completions", content=pieces())
        assert (chunked.status_code, chunked.json()["error"]["code"]) == (413, "too_large")


async def test_a_body_that_never_comes(serving: Any) -> None:
    async with serving(limits=LimitsConfig(body_s=0.1)) as server:
        reader, writer = await asyncio.open_connection(*server.listener.getsockname())
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        assert b" 408 " in await reader.readline()
        writer.close()
        await writer.wait_closed()


async def test_more_requests_than_allowed(serving: Any) -> None:
    async with serving(limits=LimitsConfig(open_requests=1)) as server:
        first = asyncio.create_task(server.chat("hold"))
        await wait_for_metric(server, 0, "voxlane_finished_requests_total", reason="eos")
        while not server.service.request_limit.inside:
            await server.client.get("/healthz")
        second = await server.chat("hello")
        assert (second.status_code, second.json()["error"]["code"]) == (429, "overloaded")
        assert (await server.client.get("/v1/models")).status_code == 200  # no work for the engine, no place needed
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


async def test_half_a_body_takes_nobodys_place(serving: Any) -> None:
    async with serving(limits=LimitsConfig(open_requests=1)) as server:
        said = json.dumps({"messages": [{"role": "user", "content": "late"}]}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(said)}\r\n\r\n"
        reader, writer = await asyncio.open_connection(*server.listener.getsockname())
        writer.write(head.encode() + said[:9])
        await wait_for_metric(server, 2, "voxlane_open_requests")  # that one, and the question itself
        assert (await server.chat("hello")).status_code == 200
        writer.write(said[9:])
        assert b" 200 " in await reader.readline()
        writer.close()
        await writer.wait_closed()


async def test_a_body_that_comes_when_all_places_are_taken_is_turned_away(serving: Any) -> None:
    async with serving(limits=LimitsConfig(open_requests=1)) as server:
        said = json.dumps({"messages": [{"role": "user", "content": "late"}]}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(said)}\r\n\r\n"
        reader, writer = await asyncio.open_connection(*server.listener.getsockname())
        writer.write(head.encode() + said[:9])
        await wait_for_metric(server, 2, "voxlane_open_requests")
        first = asyncio.create_task(server.chat("hold"))
        while not server.service.request_limit.inside:
            await server.client.get("/healthz")
        writer.write(said[9:])
        assert b" 429 " in await reader.readline()
        writer.close()
        await writer.wait_closed()
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


async def test_content_never_reaches_the_log(serving: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    async with serving() as server:
        await server.chat("xylophone")
        await server.chat("crash later xylophone")
        await server.client.post("/v1/chat/completions", json={"messages": [], "xylophone": "xylophone"})
    assert not [record for record in caplog.records if record.name.startswith("voxlane") and "xylo" in record.message]
    assert any("http request=req_" in record.message for record in caplog.records)


@MANY(
    ("model", "name"),
    [
        ("a", "a"),
        ("/data/models/my-model.gguf", "my-model"),
        ("./llama/", "llama"),
        ("hf:me/it#x.gguf", "hf:me/it#x.gguf"),
    ],
)
def test_a_models_name_does_not_tell_where_its_file_lies(model: str, name: str) -> None:
    assert served_name(model) == name


def declared(*names: str) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": name}} for name in names]


async def test_calls_are_part_of_a_whole_answer(serving: Any) -> None:
    async with serving() as server:
        (choice,) = (await server.chat("call", tools=declared("f", "g"))).json()["choices"]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] is None
        function = {"name": "f", "arguments": '{"city": "Paris"}'}
        assert choice["message"]["tool_calls"][0] == {"id": "call_f", "type": "function", "function": function}
        assert [call["id"] for call in choice["message"]["tool_calls"]] == ["call_f", "call_g"]
        (choice,) = (await server.chat("call wait", tools=declared("f"))).json()["choices"]
        assert choice["message"]["content"] == "wait"
        (choice,) = (await server.chat("call wait")).json()["choices"]
        assert choice["finish_reason"] == "stop"
        assert "tool_calls" not in choice["message"]


@MANY("n", [1, 2])
async def test_calls_are_part_of_a_stream(serving: Any, n: int) -> None:
    async with serving() as server:
        *chunks, _ = events_of((await server.chat("call wait", tools=declared("f", "g"), stream=True, n=n)).text)
        for index in range(n):
            choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
            calls = [call for choice in choices for call in choice["delta"].get("tool_calls", ())]
            assert [(call["index"], call["id"], call["function"]["name"]) for call in calls] == [
                (0, "call_f", "f"),
                (1, "call_g", "g"),
            ]
            assert "".join(choice["delta"].get("content", "") for choice in choices) == "wait"
            assert choices[-1]["finish_reason"] == "tool_calls"


@MANY("stream", [False, True])
async def test_a_client_that_handles_one_call_at_a_time_gets_one(serving: Any, stream: bool) -> None:
    async with serving() as server:
        answer = await server.chat("call", tools=declared("f", "g"), parallel_tool_calls=False, stream=stream)
        assert "call_f" in answer.text
        assert "call_g" not in answer.text


async def test_tools_and_schemas_reach_the_engine(serving: Any) -> None:
    async with serving() as server:
        choice: Any = {"type": "function", "function": {"name": "g"}}
        told = (await server.chat("tools", tools=declared("f", "g"), tool_choice=choice)).json()
        text = told["choices"][0]["message"]["content"]
        assert "Tool(name='f'" in text
        assert "'g', [((), '')]" in text
        schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
        told = (await server.chat("sampling", response_format=schema)).json()
        assert """schema='{"type": "object"}'""" in told["choices"][0]["message"]["content"]
