"""The body of POST /v1/chat/completions into one checked value.

Every parameter is honoured, known to be harmless, or refused by name: a parameter that is silently ignored is a lie.
It knows JSON and OpenAI's vocabulary; it does not know the engine's state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from voxlane.engine.api import ChatMessage, Priority, SamplingParams
from voxlane.server import limits
from voxlane.server.errors import InvalidRequest, UnsupportedParameter
from voxlane.server.log import quote

HARMLESS = frozenset(
    {
        "metadata", "parallel_tool_calls", "prediction", "prompt_cache_key", "prompt_cache_retention",
        "safety_identifier", "service_tier", "store", "user",
    }
)  # fmt: skip
"""Parameters that change nothing in the answer here: bookkeeping, and hints for another company's caches."""

UNSUPPORTED = frozenset(
    {
        "audio", "function_call", "functions", "modalities", "reasoning_effort", "response_format", "tool_choice",
        "tools", "verbosity", "web_search_options",
    }
)  # fmt: skip
"""Parameters of OpenAI's that we know and do not honour; their neutral values are let through."""

_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
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
_MESSAGE_EXTRAS = frozenset({"name", "tool_call_id"})
_MESSAGE_MUST_BE_EMPTY = frozenset({"refusal", "annotations", "audio", "function_call", "tool_calls"})

PRIORITIES = {"normal": Priority.NORMAL, "high": Priority.HIGH, "critical": Priority.CRITICAL}

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


def parse(body: Mapping[str, Any]) -> ChatRequest:
    """Return the request in `body`, or raise an error that names the parameter."""
    fields = _Fields(body)
    stream = fields.flag("stream")
    request = ChatRequest(
        model=fields.text("model"),
        messages=_messages(fields.take("messages")),
        sampling=_sampling(fields),
        max_tokens=_max_tokens(fields),
        choices=fields.whole("n", 1, limits.CHOICES) or 1,
        stream=stream,
        include_usage=_stream_options(fields.take("stream_options"), stream),
        priority=PRIORITIES[fields.choice("priority", PRIORITIES) or "normal"],
        deadline_s=_seconds(fields.number("deadline_ms", 1, 3_600_000)),
        tenant=fields.text("cache_salt") or "",
    )
    _refuse_the_rest(fields.rest())
    return request


class _Fields:
    """The body's parameters, each taken once; null means absent."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self._left = {name: value for name, value in body.items() if value is not None}

    def take(self, name: str) -> Any:
        return self._left.pop(name, None)

    def rest(self) -> Mapping[str, Any]:
        return self._left

    def flag(self, name: str) -> bool:
        value = self.take(name)
        if value is not None and type(value) is not bool:
            raise _wrong(name, "must be true or false")
        return bool(value)

    def text(self, name: str) -> str | None:
        value = self.take(name)
        if value is not None and not (isinstance(value, str) and 0 < len(value) <= limits.NAME_CHARACTERS):
            raise _wrong(name, f"must be a string of 1 to {limits.NAME_CHARACTERS} characters")
        return value

    def choice(self, name: str, choices: Iterable[str]) -> str | None:
        value = self.take(name)
        if value is not None and (not isinstance(value, str) or value not in choices):
            raise _wrong(name, f"must be one of {', '.join(choices)}")
        return value

    def number(self, name: str, least: float, most: float) -> float | None:
        value = self.take(name)
        return None if value is None else _number(name, value, least, most)

    def whole(self, name: str, least: int, most: int) -> int | None:
        value = self.take(name)
        if value is None:
            return None
        if type(value) is not int or not least <= value <= most:
            raise _wrong(name, f"must be a whole number from {least} to {most}")
        return value


def _sampling(fields: _Fields) -> SamplingParams:
    def number(name: str, least: float, most: float, usual: float) -> float:
        value = fields.number(name, least, most)
        return usual if value is None else value

    top_k = fields.whole("top_k", -1, 1 << 24) or 0
    return SamplingParams(
        temperature=number("temperature", 0, 2, 1.0),
        top_k=max(top_k, 0),  # -1 is vLLM's word for off
        top_p=max(number("top_p", 0, 1, 1.0), LEAST_TOP_P),
        min_p=number("min_p", 0, 1, 0.0),
        repetition_penalty=number("repetition_penalty", 0.01, 10, 1.0),
        presence_penalty=number("presence_penalty", -2, 2, 0.0),
        frequency_penalty=number("frequency_penalty", -2, 2, 0.0),
        logit_bias=_logit_bias(fields.take("logit_bias")),
        seed=fields.whole("seed", -(1 << 63), (1 << 63) - 1),
        stop=_stop(fields.take("stop")),
        logprobs=_logprobs(fields),
        ignore_eos=fields.flag("ignore_eos"),
    )


def _max_tokens(fields: _Fields) -> int | None:
    old = fields.whole("max_tokens", 1, 1 << 24)
    new = fields.whole("max_completion_tokens", 1, 1 << 24)
    if old is not None and new is not None and old != new:
        raise _wrong("max_tokens", "and max_completion_tokens differ: give one of them")
    return new if new is not None else old


def _logprobs(fields: _Fields) -> int:
    wanted = fields.flag("logprobs")
    top = fields.whole("top_logprobs", 0, limits.TOP_LOGPROBS)
    if top is not None and not wanted:
        raise _wrong("top_logprobs", "needs logprobs to be true")
    return (top or 0) if wanted else -1


def _stop(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else ([] if value is None else value)
    if not isinstance(stops, list) or len(stops) > limits.STOP_STRINGS:
        raise _wrong("stop", f"must be a string or a list of up to {limits.STOP_STRINGS} strings")
    for stop in stops:
        if not isinstance(stop, str) or not 0 < len(stop) <= limits.STOP_CHARACTERS:
            raise _wrong("stop", f"must hold strings of 1 to {limits.STOP_CHARACTERS} characters")
    return tuple(dict.fromkeys(stops))


def _logit_bias(value: Any) -> tuple[tuple[int, float], ...]:
    if value is None:
        return ()
    if not isinstance(value, dict) or len(value) > limits.LOGIT_BIASES:
        raise _wrong("logit_bias", f"must be an object of up to {limits.LOGIT_BIASES} entries")
    biases = []
    for token, bias in value.items():
        if not (token.isascii() and token.isdigit() and len(token) < 10):
            raise _wrong("logit_bias", "must have token numbers as its keys")
        biases.append((int(token), _number("logit_bias", bias, -100, 100)))
    return tuple(biases)


def _stream_options(value: Any, stream: bool) -> bool:
    if value is None:
        return False
    if not isinstance(value, dict):
        raise _wrong("stream_options", "must be an object")
    if not stream:
        raise _wrong("stream_options", "needs stream to be true")
    options = _Fields(value)
    wanted = options.flag("include_usage")
    options.take("include_obfuscation")  # padding against traffic analysis: nothing in the answer depends on it
    for name in options.rest():
        raise _wrong(f"stream_options.{quote(name)}", "is not known")
    return wanted


def _messages(value: Any) -> tuple[ChatMessage, ...]:
    if not isinstance(value, list) or not 0 < len(value) <= limits.MESSAGES:
        raise _wrong("messages", f"must be a list of 1 to {limits.MESSAGES} messages")
    return tuple(_message(f"messages[{index}]", message) for index, message in enumerate(value))


def _message(path: str, value: Any) -> ChatMessage:
    if not isinstance(value, dict):
        raise _wrong(path, "must be an object with role and content")
    role = value.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise _wrong(f"{path}.role", f"must be one of {', '.join(ROLES)}")
    for name, extra in value.items():
        if name in _MESSAGE_MUST_BE_EMPTY:
            if extra:
                raise UnsupportedParameter(f"{path}.{name} is not supported.", param=f"{path}.{name}")
        elif name not in _MESSAGE_EXTRAS and name not in ("role", "content"):
            raise _wrong(f"{path}.{quote(name)}", "is not known")
    content = value.get("content")
    if role == "assistant" and content is None:
        content = ""  # an answer without text, as clients send it back
    return ChatMessage(ROLES[role], _content(f"{path}.content", content))


def _content(path: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not 0 < len(value) <= limits.CONTENT_PARTS:
        raise _wrong(path, f"must be a string or a list of 1 to {limits.CONTENT_PARTS} text parts")
    texts = []
    for index, part in enumerate(value):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise _wrong(f"{path}[{index}]", "must be an object with a type")
        if part["type"] != "text":
            param = f"{path}[{index}].type"
            raise UnsupportedParameter(f"{param}: only text can be read here.", param=param)
        if not isinstance(part.get("text"), str):
            raise _wrong(f"{path}[{index}].text", "must be a string")
        texts.append(part["text"])
    return "\n".join(texts)


def _refuse_the_rest(rest: Mapping[str, Any]) -> None:
    for name, value in rest.items():
        if name in HARMLESS or value in _NEUTRAL.get(name, ()):
            continue
        if name in UNSUPPORTED:
            raise UnsupportedParameter(f"{name} is not supported.", param=name)
        raise InvalidRequest(f"{quote(name)} is not a parameter of this endpoint.", param=name[:64])


def _number(name: str, value: Any, least: float, most: float) -> float:
    if type(value) not in (int, float) or not least <= value <= most:
        raise _wrong(name, f"must be a number from {least:g} to {most:g}")
    return float(value)


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _wrong(param: str, rule: str) -> InvalidRequest:
    return InvalidRequest(f"{param} {rule}.", param=param)
