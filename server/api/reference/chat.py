"""Description of POST /v1/chat/completions: its request and its answers."""

from __future__ import annotations

from voxlane.server.api import chat_request
from voxlane.server.api.reference.parts import (
    EVENTS,
    JSON,
    READING,
    WORKING,
    Facts,
    Schema,
    answer,
    body_schemas,
    choice,
    enumerated,
    events,
    fixed,
    listing,
    media,
    number,
    operation,
    or_null,
    record,
    ref,
    request_body,
    string,
    whole,
)
from voxlane.server.errors import ContextTooLong

_DESCRIPTION = f"""A parameter is honoured, or listed as one without effect, or refused by name: none is silently
ignored. `null` counts as absent.

How tokens are drawn where the request does not say is the model's own affair: `generation_config.json` or the GGUF
file's `general.sampling.*` decide, and where they are silent the temperature is 0.3 for models of fewer than 3 billion
parameters and 0.7 for others. Each parameter is by itself: a request that gives only a `temperature` has the model's
`top_p`. A `temperature` of 0 is greedy, whatever the model recommends.

Known and refused, unless set to what happens anyway: {enumerated(chat_request.UNSUPPORTED)}.

With `stream`, the answer is server-sent events: each is a `ChatCompletionChunk`, the last is `data: [DONE]`. What goes
wrong after the first of them comes as an event with an `error`."""

_WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tell the weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}

_EXAMPLES: dict[str, Schema] = {
    "A question": {"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 64},
    "A stream, in the interrupt lane": {
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello!"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "priority": "critical",
    },
    "A function to call": {
        "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
        "tools": [_WEATHER],
        "tool_choice": "required",
    },
    "An answer that follows a schema": {
        "messages": [{"role": "user", "content": "Name a colour."}],
        "response_format": {
            "type": "json_schema",
            "json_schema": {
                "name": "colour",
                "schema": {"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]},
            },
        },
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 2,
    },
}


def paths(facts: Facts) -> Schema:
    """Return the endpoint."""
    answers = {
        JSON: media(ref("ChatCompletion")),
        EVENTS: events("ChatCompletionChunk"),
    }
    post = operation(
        "createChatCompletion",
        "Chat",
        "Chat with the model, OpenAI's protocol",
        _DESCRIPTION,
        {"200": answer("The completion; with `stream`, its events.", **answers)},
        (*READING, ContextTooLong, *WORKING),
        request=request_body(JSON, "ChatRequest", _EXAMPLES),
    )
    return {"/v1/chat/completions": {"post": post}}


def schemas(facts: Facts) -> dict[str, Schema]:
    """Return the schemas of requests and answers."""
    delta = {
        "role": fixed("assistant"),
        "content": string("The next piece of the text."),
        "reasoning_content": string("The next piece of what the model thinks before it answers."),
        "refusal": {"type": "null"},
        "tool_calls": listing(_tool_call(index=whole("Which of the answer's calls it is.", 0)), "A call, whole."),
    }
    message = {
        "role": fixed("assistant"),
        "content": or_null(string("The text; `null` if there are only calls.")),
        "refusal": {"type": "null"},
        "annotations": listing({}, "Always empty.", most=0),
        "reasoning_content": string("What the model thought before it answered, if it did."),
        "tool_calls": listing(_tool_call(), "The functions to call."),
    }
    whole_message = record(message, ("reasoning_content", "tool_calls"))
    return {
        **body_schemas("ChatRequest", chat_request.ChatBody),
        "ChatCompletion": record(
            {
                **_head("chat.completion"),
                "choices": listing(record({**_choice(), "message": whole_message}), least=1),
                "usage": ref("ChatUsage"),
            }
        ),
        "ChatCompletionChunk": record(
            {
                **_head("chat.completion.chunk"),
                "choices": listing(record({**_choice(done=False), "delta": record(delta, tuple(delta))})),
                "usage": or_null(ref("ChatUsage")),
            },
            ("usage",),
            "The first names the role, the last of a choice has its `finish_reason`, and the last of all the `usage`, "
            "where it was asked for.",
        ),
        "ChatUsage": _usage(),
    }


def _called() -> Schema:
    return record({"name": string(), "arguments": string("A JSON object, as text.")})


def _tool_call(**more: Schema) -> Schema:
    return record({**more, "id": string(), "type": fixed("function"), "function": _called()})


def _head(kind: str) -> dict[str, Schema]:
    return {
        "id": string("The same in every chunk of one answer."),
        "object": fixed(kind),
        "created": whole("When, in seconds since 1970."),
        "model": string("The name that was asked for."),
        "system_fingerprint": string("What a seed's reproducibility depends on."),
        "service_tier": fixed("default"),
    }


def _choice(*, done: bool = True) -> dict[str, Schema]:
    token = {"token": string(), "logprob": number(""), "bytes": listing(whole("", 0, 255))}
    alternatives = listing(record(token), "Those as likely, and the likeliest first.")
    content = listing(record({**token, "top_logprobs": alternatives}))
    reason = choice("Why it ended.", ("stop", "length", "tool_calls"))
    return {
        "index": whole("Which of the `n` answers it is.", 0),
        "logprobs": or_null(record({"content": content, "refusal": {"type": "null"}})),
        "finish_reason": reason if done else {"anyOf": [reason, {"type": "null"}]},
    }


def _usage() -> Schema:
    measured = {
        "queue_ms": number("Wait before the first step."),
        "first_token_ms": number("From arrival to the first token."),
        "per_token_ms": number("Between two tokens, on average."),
        "total_ms": number("From arrival to the end."),
        "preemptions": whole("How often it had to make room."),
        "lookup_proposed": whole("Tokens guessed from the text before; absent without guesses."),
        "lookup_accepted": whole("How many of the guesses were right."),
    }
    return record(
        {
            "prompt_tokens": whole(""),
            "completion_tokens": whole(""),
            "total_tokens": whole(""),
            "prompt_tokens_details": record({"cached_tokens": whole("Tokens of the prompt that were already known.")}),
            "voxlane": record(measured, ("lookup_proposed", "lookup_accepted"), "What the engine measured."),
        }
    )
