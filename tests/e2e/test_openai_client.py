"""The stock `openai` client against a real model."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from typing import Any, Literal

import httpx
import openai
import pydantic
import pytest
from examples import SOAK
from openai import AsyncOpenAI

pytestmark = pytest.mark.weights

MODEL = "smollm2-135m-instruct"
# "Answer in English" matters: without it "The" and "L'" are a tenth of a nat apart, and rounding decides.
FRANCE = [{"role": "user", "content": "What is the capital city of France? Answer in English."}]
COUNT = [{"role": "user", "content": "Count from 1 to 20, separated by commas."}]
STORY = [{"role": "user", "content": "Tell me a long story about a dragon."}]


def ask(server: Any, messages: Any = FRANCE, **parameters: Any) -> Any:
    parameters = {"model": MODEL, "temperature": 0, "max_tokens": 40, **parameters}
    return server.client.chat.completions.create(messages=messages, **parameters)


@pytest.fixture(scope="module")
def france(server: Any) -> Any:
    """The answer to one question; greedy answers are always the same."""
    return ask(server)


@pytest.fixture(scope="module")
def counted(server: Any) -> Any:
    """The answer to another."""
    return ask(server, COUNT)


def test_it_makes_sense(france: Any) -> None:
    answer = france
    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens > 10
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.voxlane["first_token_ms"] > 0


def test_a_stream_says_the_same(server: Any, counted: Any) -> None:
    whole = counted
    chunks = list(ask(server, COUNT, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == whole.choices[0].finish_reason
    assert len(chunks) > 10


def test_many_at_once_say_what_each_says_alone(server: Any) -> None:
    questions = [
        [{"role": "user", "content": f"Name a city in {country}."}]
        for country in ("France", "Japan", "Brazil", "Kenya")
    ]
    alone = [ask(server, question, max_tokens=16).choices[0].message.content for question in questions]

    async def all_of_them() -> list[str | None]:
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=120) as client:
            parameters: Any = {"model": MODEL, "temperature": 0, "max_tokens": 16}
            answers = await asyncio.gather(
                *(client.chat.completions.create(messages=question, **parameters) for question in questions)  # type: ignore[arg-type]
            )
        return [answer.choices[0].message.content for answer in answers]

    assert asyncio.run(all_of_them()) == alone


def test_an_async_stream(server: Any, france: Any) -> None:
    async def text() -> str:
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            parameters: Any = {"model": MODEL, "temperature": 0, "max_tokens": 40, "messages": FRANCE}
            stream: Any = await client.chat.completions.create(stream=True, **parameters)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    assert asyncio.run(text()) == france.choices[0].message.content


def test_stop_strings(server: Any, counted: Any) -> None:
    free = counted.choices[0].message.content
    middle = free[len(free) // 2 :][:3]
    stopped = ask(server, COUNT, stop=[middle, "never said"])
    assert stopped.choices[0].message.content == free.partition(middle)[0]
    assert stopped.choices[0].finish_reason == "stop"


def test_a_seed_repeats_itself_and_choices_differ(server: Any) -> None:
    def run(seed: int) -> list[str]:
        answer = ask(server, STORY, temperature=1.0, seed=seed, n=2, max_tokens=12)
        return [choice.message.content for choice in answer.choices]

    first = run(7)
    assert run(7) == first
    assert first[0] != first[1]
    assert run(8) != first


def test_length(server: Any) -> None:
    answer = ask(server, STORY, max_tokens=5)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 5


def test_logprobs(server: Any) -> None:
    choice = ask(server, logprobs=True, top_logprobs=3).choices[0]
    tokens = choice.logprobs.content
    assert "".join(token.token for token in tokens) == choice.message.content
    for token in tokens:
        scores = [other.logprob for other in token.top_logprobs]
        assert len(scores) == 3
        assert scores == sorted(scores, reverse=True)
        assert token.top_logprobs[0].token == token.token  # greedy takes the likeliest
        assert token.logprob == scores[0] <= 0


def test_the_bytes_of_all_tokens_are_an_emoji_reply(server: Any) -> None:
    party = [{"role": "user", "content": "Repeat exactly: 🎉🎉🎉"}]
    choice = ask(server, party, logprobs=True, top_logprobs=2).choices[0]
    tokens = choice.logprobs.content
    assert "🎉" in choice.message.content
    assert any("\ufffd" in token.token for token in tokens)  # half a character
    assert bytes(byte for token in tokens for byte in token.bytes).decode() == choice.message.content
    assert all(token.top_logprobs[0].bytes == token.bytes for token in tokens)  # greedy takes the likeliest


def test_a_prompt_is_remembered(server: Any) -> None:
    long = [{"role": "user", "content": "The quick brown fox jumps over the lazy dog. " * 12 + "What jumps?"}]
    first = ask(server, long, max_tokens=8)
    second = ask(server, long, max_tokens=8)
    assert second.usage.prompt_tokens_details.cached_tokens >= 96
    assert second.choices[0].message.content == first.choices[0].message.content
    salted = ask(server, long, max_tokens=8, extra_body={"cache_salt": "somebody else"})
    assert salted.usage.prompt_tokens_details.cached_tokens == 0
    assert salted.choices[0].message.content == first.choices[0].message.content


def test_parameters_beyond_openais_pass_in_the_extra_body(server: Any) -> None:
    extra = {"priority": "critical", "deadline_ms": 500, "top_k": 1, "repetition_penalty": 1.0}
    assert "Paris" in ask(server, temperature=1.5, seed=1, extra_body=extra).choices[0].message.content


def test_leaving_cancels_in_the_engine(server: Any) -> None:
    before = server.metric("voxlane_finished_requests_total", reason="cancelled")
    stream = ask(server, STORY, stream=True, max_tokens=4000, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    server.wait_metric(before + 1, "voxlane_finished_requests_total", reason="cancelled")
    server.wait_metric(0, "voxlane_engine_requests", state="running")
    assert server.metric("voxlane_kv_blocks", state="used") == 0


def test_models(server: Any) -> None:
    chat, listener, voice = (model.id for model in server.client.models.list())
    assert (chat, voice) == (MODEL, "hibari")
    assert listener in ("whisper-tiny-en", "moonshine-tiny-en")  # the machine's choice
    assert server.client.models.retrieve(MODEL).owned_by == "voxlane"


def test_errors_arrive_as_the_clients_exceptions(server: Any) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        ask(server, temperature=3)
    assert (bad.value.param, bad.value.code) == ("temperature", "invalid_request")
    with pytest.raises(openai.NotFoundError) as missing:
        ask(server, model="gpt-9")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        ask(server, [{"role": "user", "content": "word " * 20_000}])
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="tools"):
        ask(server, tools=[{"type": "function", "function": {}}])
    with pytest.raises(openai.BadRequestError, match="logit_bias"):
        ask(server, logit_bias={"999999": 1})


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def test_a_function_is_called_and_its_result_is_used(server: Any) -> None:
    talk: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
    first = ask(server, talk, tools=[WEATHER], tool_choice="required").choices[0]
    assert first.finish_reason == "tool_calls"
    assert first.message.content is None
    (call,) = first.message.tool_calls
    assert (call.type, call.function.name) == ("function", "get_weather")
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    result = {"role": "tool", "tool_call_id": call.id, "content": "It is raining in Paris, 11 degrees."}
    second = ask(server, [*talk, first.message, result], tools=[WEATHER], tool_choice="none").choices[0]
    assert second.finish_reason in ("stop", "length")
    assert "<tool" not in second.message.content
    assert re.search(r"rain|\b11\b", second.message.content), second.message.content  # only the result says it


def test_a_streamed_call_adds_up(server: Any) -> None:
    talk: Any = [{"role": "user", "content": "What is the weather in Rome?"}]
    choice: Any = {"type": "function", "function": {"name": "get_weather"}}
    parameters: Any = {"model": MODEL, "messages": talk, "tools": [WEATHER], "tool_choice": choice, "temperature": 0}
    with server.client.chat.completions.stream(**parameters) as stream:
        answer = stream.get_final_completion()
    (call,) = answer.choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Rome"}
    assert answer.choices[0].finish_reason == "tool_calls"


class Person(pydantic.BaseModel):
    name: str
    age: int = pydantic.Field(ge=0, le=120)
    colours: list[Literal["red", "green", "blue"]] = pydantic.Field(max_length=3)


def test_an_answer_of_a_type(server: Any) -> None:
    talk: Any = [{"role": "user", "content": "Describe a person."}]
    for seed in range(3 if SOAK else 1):
        parameters: Any = {"model": MODEL, "messages": talk, "temperature": 1, "seed": seed, "max_tokens": 200}
        answer = server.client.chat.completions.parse(response_format=Person, **parameters)
        assert isinstance(answer.choices[0].message.parsed, Person)
    text = ask(server, talk, response_format={"type": "json_object"}, max_tokens=10).choices[0].message.content
    assert text.startswith("{")
    schema: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"not": {}}}}
    with pytest.raises(openai.BadRequestError, match="cannot be enforced: not"):
        ask(server, talk, response_format=schema)


def test_a_killed_engine_is_a_retryable_error_and_the_next_request_works(server: Any, france: Any) -> None:
    answer = france.choices[0].message.content
    starts = server.metric("voxlane_engine_starts_total")
    with httpx.Client() as open_connection:
        open_connection.get(f"{server.url}/healthz")
        stream = ask(server, STORY, stream=True, max_tokens=4000, extra_body={"ignore_eos": True})
        pieces = iter(stream)
        next(pieces)
        engine, template = server.engine_pid(), server.template_pid()
        os.kill(template, signal.SIGSTOP)  # else the next engine is there before the next request
        os.kill(engine, signal.SIGKILL)
        with pytest.raises(openai.APIError, match="engine was lost"):
            list(pieces)
        with pytest.raises(openai.InternalServerError) as refused:
            ask(server)
        assert refused.value.status_code == 503
        assert refused.value.response.headers["retry-after"] == "1"
        os.kill(template, signal.SIGCONT)
        server.wait_ready()
        assert server.metric("voxlane_engine_starts_total") == starts + 1
        assert ask(server).choices[0].message.content == answer
        assert open_connection.get(f"{server.url}/healthz").status_code == 200
