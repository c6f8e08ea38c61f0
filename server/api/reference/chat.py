"""POST /v1/chat/completions described: what chat_request.py reads and what chat_reply.py writes."""

from __future__ import annotations

from voxlane.server import limits
from voxlane.server.api import chat_request
from voxlane.server.api.reference.parts import (
    EVENTS,
    JSON,
    READING,
    WORKING,
    Facts,
    Schema,
    answer,
    body,
    choice,
    either,
    enumerated,
    events,
    fixed,
    flag,
    lane,
    listing,
    media,
    name,
    number,
    operation,
    or_null,
    record,
    ref,
    request_body,
    string,
    whole,
    without_effect,
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

_OWN = "Absent: the model's own, see `/v1/models`."

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
    """Return what the endpoint reads and writes."""
    delta = {
        "role": fixed("assistant"),
        "content": string("The next piece of the text."),
        "refusal": {"type": "null"},
        "tool_calls": listing(_tool_call(index=whole("Which of the answer's calls it is.", 0)), "A call, whole."),
    }
    message = {
        "role": fixed("assistant"),
        "content": or_null(string("The text; `null` if there are only calls.")),
        "refusal": {"type": "null"},
        "annotations": listing({}, "Always empty.", most=0),
        "tool_calls": listing(_tool_call(), "The functions to call."),
    }
    return {
        "ChatRequest": _request(),
        "ChatMessage": _message(),
        "ChatTool": _tool(),
        "ChatCompletion": record(
            {
                **_head("chat.completion"),
                "choices": listing(record({**_choice(), "message": record(message, ("tool_calls",))}), least=1),
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


def _request() -> Schema:
    options = {
        "include_usage": flag("Whether a last chunk tells the usage.", usual=False),
        "include_obfuscation": {"description": "Accepted, without effect."},
    }
    named = body({"type": fixed("function"), "function": body({"name": name("")}, ["name"])}, ["type", "function"])
    schema = {"name": {}, "description": {}, "strict": {}, "schema": {"type": "object"}}
    response_format = (
        record({"type": choice("", ("text", "json_object"))}),
        record({"type": fixed("json_schema"), "json_schema": body(schema, ["schema"])}),
    )
    tokens = "Most tokens of the answer; as many as fit the context if absent."
    return body(
        {
            "messages": listing(ref("ChatMessage"), "The conversation so far.", 1, limits.MESSAGES),
            "model": name("A name from `/v1/models`; the model served if absent."),
            "max_completion_tokens": whole(tokens, 1, 1 << 24),
            "max_tokens": whole("The older name of the same.", 1, 1 << 24),
            "stream": flag("Send the answer as events while it is made.", usual=False),
            "stream_options": body(options, description="Only with `stream`."),
            "temperature": number(f"0 takes the likeliest token. {_OWN}", 0, 2),
            "top_p": number(f"Only the likeliest tokens that together are this likely. {_OWN}", 0, 1),
            "top_k": whole(f"Only so many of the likeliest tokens; 0 or -1: all. {_OWN}", -1, 1 << 24),
            "min_p": number(f"Only tokens this likely, compared with the likeliest. {_OWN}", 0, 1),
            "presence_penalty": number("Against tokens that have occurred.", -2, 2, 0),
            "frequency_penalty": number("Against tokens, by how often they have occurred.", -2, 2, 0),
            "repetition_penalty": number(f"Divides the score of tokens that have occurred. {_OWN}", 0.01, 10),
            "logit_bias": {
                "type": "object",
                "propertyNames": {"pattern": "^[0-9]{1,9}$"},
                "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
                "maxProperties": limits.LOGIT_BIASES,
                "description": "What is added to the scores of tokens, by their numbers.",
            },
            "seed": whole("The same seed gives the same answer, as long as `system_fingerprint` is the same.")
            | {"minimum": -(1 << 63), "maximum": (1 << 63) - 1},
            "stop": either(
                "Texts that end the answer, and are not part of it.",
                _stop_string(),
                listing(_stop_string(), most=limits.STOP_STRINGS),
            ),
            "n": whole("How many answers to make.", 1, limits.CHOICES, 1),
            "logprobs": flag("Tell how likely each token was.", usual=False),
            "top_logprobs": whole("So many alternatives to each token; needs `logprobs`.", 0, limits.TOP_LOGPROBS),
            "response_format": either("Make the answer JSON, of any kind or of a schema.", *response_format),
            "tools": listing(ref("ChatTool"), "Functions that the model may call.", most=limits.TOOLS),
            "tool_choice": either(
                "Whether it calls one: as it likes, never, in any case, or this one. The last two need `tools`.",
                choice("", ("auto", "none", "required")),
                named,
            ),
            "parallel_tool_calls": flag("Whether one answer may hold several calls.", usual=True),
            "loop_guard": flag(
                f"End an answer that says the same over and over, four times and {limits.WRITTEN_LOOP_TOKENS} tokens "
                "at least, as `stop`, without most of its repeats. JSON of a schema and required calls never end so.",
                usual=True,
            ),
            "ignore_eos": flag("Go on to `max_tokens`, whatever the model wants.", usual=False),
            **lane(),
            **without_effect(chat_request.HARMLESS),
        },
        ["messages"],
    )


def _message() -> Schema:
    part = record({"type": fixed("text"), "text": string()})
    call = record({"id": name(""), "type": fixed("function"), "function": _called()})
    return body(
        {
            "role": choice("`developer` is another word for `system`.", chat_request.ROLES),
            "content": either(
                "The text. An assistant's may be `null`.",
                string(),
                listing(part, "", 1, limits.CONTENT_PARTS),
                {"type": "null"},
            ),
            "name": {"description": "Accepted, without effect."},
            "tool_calls": or_null(listing(call, "The calls that the assistant made.", most=limits.TOOLS)),
            "tool_call_id": or_null(name("Which call a tool's message answers.")),
            "refusal": _empty(),
            "annotations": _empty(),
            "audio": _empty(),
            "function_call": _empty(),
        },
        ["role"],
    )


def _tool() -> Schema:
    function = {
        "name": name("What the model calls it."),
        "description": string("What it does, for the model."),
        "parameters": {"type": "object", "description": "The JSON schema of its arguments."},
        "strict": {"description": "Accepted, without effect: arguments always fit where a call is required."},
    }
    return record({"type": fixed("function"), "function": body(function, ["name"])})


def _stop_string() -> Schema:
    return string("", 1, limits.STOP_CHARACTERS)


def _empty() -> Schema:
    return {"enum": [None, [], "", {}], "description": "Part of our own answers when they are sent back; always empty."}


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
