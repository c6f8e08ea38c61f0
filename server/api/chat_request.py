"""The body of POST /v1/chat/completions into one checked value.

Every parameter is honoured, known to be harmless, or refused by name: a parameter that is silently ignored is a lie.
It knows JSON and OpenAI's vocabulary; it does not know the engine's state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from voxlane.engine.api import ChatMessage, Priority, SamplingParams, Tool, sampling_of
from voxlane.server import limits
from voxlane.server.api import tool_request
from voxlane.server.api.fields import RequestFields, in_range, wrong
from voxlane.server.config import PRIORITIES
from voxlane.server.errors import UnsupportedParameter
from voxlane.server.log import quote

HARMLESS = frozenset(
    {
        "metadata", "prediction", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "service_tier",
        "store", "user",
    }
)  # fmt: skip
"""Parameters that change nothing in the answer here: bookkeeping, and hints for another company's caches."""

UNSUPPORTED = frozenset(
    {
        "audio", "function_call", "functions", "modalities", "reasoning_effort", "verbosity", "web_search_options",
    }
)  # fmt: skip
"""Parameters of OpenAI's that we know and do not honour; their neutral values are let through."""

_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "modalities": (["text"],),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "reasoning_effort": ("none",),
}

ROLES: Mapping[str, str] = {
    "system": "system",
    "developer": "system",  # OpenAI's newer word for the same thing
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}

# What clients send back when they append our own answer to the history, and what may stand in it.
_MESSAGE_EXTRAS = frozenset({"name", "tool_call_id", "tool_calls"})
_MESSAGE_MUST_BE_EMPTY = frozenset({"refusal", "annotations", "audio", "function_call"})

LEAST_TOP_P = 1e-6
"""OpenAI takes top_p 0 and means: only the likeliest token."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What a client asks for."""

    model: str | None
    messages: tuple[ChatMessage, ...]
    sampling: SamplingParams
    max_tokens: int | None  # None: as many as fit the context
    choices: int
    stream: bool
    include_usage: bool
    priority: Priority
    deadline_s: float | None
    tenant: str
    tools: tuple[Tool, ...]
    tool_choice: str  # as in Submit
    parallel_calls: bool  # whether one answer may hold several


def parse(body: Mapping[str, Any]) -> ChatRequest:
    """Return the request in `body`, or raise an error that names the parameter."""
    fields = RequestFields(body)
    stream = fields.flag("stream")
    tools = tool_request.tools(fields.take("tools"))
    request = ChatRequest(
        model=fields.text("model"),
        messages=_messages(fields.take("messages")),
        sampling=_sampling(fields),
        max_tokens=_max_tokens(fields),
        choices=fields.whole("n", 1, limits.CHOICES) or 1,
        stream=stream,
        include_usage=_stream_options(fields.take("stream_options"), stream),
        priority=PRIORITIES[fields.choice("priority", PRIORITIES) or "normal"],
        deadline_s=fields.seconds("deadline_ms", 1, 3_600_000),
        tenant=fields.text("cache_salt") or "",
        tools=tools,
        tool_choice=tool_request.tool_choice(fields.take("tool_choice"), tools),
        parallel_calls=fields.flag("parallel_tool_calls", usual=True),
    )
    fields.refuse_the_rest(harmless=HARMLESS, unsupported=UNSUPPORTED, neutral=_NEUTRAL)
    return request


def _sampling(fields: RequestFields) -> SamplingParams:
    top_k, top_p = fields.whole("top_k", -1, 1 << 24), fields.number("top_p", 0, 1)
    return replace(
        sampling_of(
            fields.number("temperature", 0, 2),
            None if top_k is None else max(top_k, 0),  # -1 is vLLM's word for off
            None if top_p is None else max(top_p, LEAST_TOP_P),
            fields.number("min_p", 0, 1),
            fields.number("repetition_penalty", 0.01, 10),
        ),
        presence_penalty=fields.number("presence_penalty", -2, 2) or 0.0,
        frequency_penalty=fields.number("frequency_penalty", -2, 2) or 0.0,
        logit_bias=_logit_bias(fields.take("logit_bias")),
        seed=fields.whole("seed", -(1 << 63), (1 << 63) - 1),
        stop=_stop(fields.take("stop")),
        logprobs=_logprobs(fields),
        ignore_eos=fields.flag("ignore_eos"),
        loop_tokens=limits.WRITTEN_LOOP_TOKENS if fields.flag("loop_guard", usual=True) else 0,
        schema=tool_request.response_format(fields.take("response_format")),
    )


def _max_tokens(fields: RequestFields) -> int | None:
    old = fields.whole("max_tokens", 1, 1 << 24)
    new = fields.whole("max_completion_tokens", 1, 1 << 24)
    if old is not None and new is not None and old != new:
        raise wrong("max_tokens", "and max_completion_tokens differ: give one of them")
    return new if new is not None else old


def _logprobs(fields: RequestFields) -> int:
    wanted = fields.flag("logprobs")
    top = fields.whole("top_logprobs", 0, limits.TOP_LOGPROBS)
    if top is not None and not wanted:
        raise wrong("top_logprobs", "needs logprobs to be true")
    return (top or 0) if wanted else -1


def _stop(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else ([] if value is None else value)
    if not isinstance(stops, list) or len(stops) > limits.STOP_STRINGS:
        raise wrong("stop", f"must be a string or a list of up to {limits.STOP_STRINGS} strings")
    for stop in stops:
        if not isinstance(stop, str) or not 0 < len(stop) <= limits.STOP_CHARACTERS:
            raise wrong("stop", f"must hold strings of 1 to {limits.STOP_CHARACTERS} characters")
    return tuple(dict.fromkeys(stops))


def _logit_bias(value: Any) -> tuple[tuple[int, float], ...]:
    if value is None:
        return ()
    if not isinstance(value, dict) or len(value) > limits.LOGIT_BIASES:
        raise wrong("logit_bias", f"must be an object of up to {limits.LOGIT_BIASES} entries")
    biases = []
    for token, bias in value.items():
        if not (token.isascii() and token.isdigit() and len(token) < 10):
            raise wrong("logit_bias", "must have token numbers as its keys")
        biases.append((int(token), in_range("logit_bias", bias, -100, 100)))
    return tuple(biases)


def _stream_options(value: Any, stream: bool) -> bool:
    if value is None:
        return False
    if not isinstance(value, dict):
        raise wrong("stream_options", "must be an object")
    if not stream:
        raise wrong("stream_options", "needs stream to be true")
    options = RequestFields(value)
    wanted = options.flag("include_usage")
    options.take("include_obfuscation")  # padding against traffic analysis: nothing in the answer depends on it
    for name in options.rest():
        raise wrong(f"stream_options.{quote(name)}", "is not known")
    return wanted


def _messages(value: Any) -> tuple[ChatMessage, ...]:
    if not isinstance(value, list) or not 0 < len(value) <= limits.MESSAGES:
        raise wrong("messages", f"must be a list of 1 to {limits.MESSAGES} messages")
    return tuple(_message(f"messages[{index}]", message) for index, message in enumerate(value))


def _message(path: str, value: Any) -> ChatMessage:
    if not isinstance(value, dict):
        raise wrong(path, "must be an object with role and content")
    role = value.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise wrong(f"{path}.role", f"must be one of {', '.join(ROLES)}")
    for name, extra in value.items():
        if name in _MESSAGE_MUST_BE_EMPTY:
            if extra:
                raise UnsupportedParameter(f"{path}.{name} is not supported.", param=f"{path}.{name}")
        elif name == "tool_calls" and extra and role != "assistant":
            raise wrong(f"{path}.tool_calls", "can only be the assistant's")
        elif name not in _MESSAGE_EXTRAS and name not in ("role", "content"):
            raise wrong(f"{path}.{quote(name)}", "is not known")
    content = value.get("content")
    if role == "assistant" and content is None:
        content = ""  # an answer without text, as clients send it back
    return ChatMessage(
        ROLES[role],
        _content(f"{path}.content", content),
        tool_request.tool_calls(f"{path}.tool_calls", value.get("tool_calls")),
        tool_request.call_id(f"{path}.tool_call_id", value.get("tool_call_id") if role == "tool" else None),
    )


def _content(path: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not 0 < len(value) <= limits.CONTENT_PARTS:
        raise wrong(path, f"must be a string or a list of 1 to {limits.CONTENT_PARTS} text parts")
    texts = []
    for index, part in enumerate(value):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise wrong(f"{path}[{index}]", "must be an object with a type")
        if part["type"] != "text":
            param = f"{path}[{index}].type"
            raise UnsupportedParameter(f"{param}: only text can be read here.", param=param)
        if not isinstance(part.get("text"), str):
            raise wrong(f"{path}[{index}].text", "must be a string")
        texts.append(part["text"])
    return "\n".join(texts)
