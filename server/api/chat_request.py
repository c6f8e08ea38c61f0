"""The body of POST /v1/chat/completions: its description, and what it means for the engine. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta, field, structs

from voxlane.engine.api import ChatMessage, Priority, SamplingParams, Tool, sampling_of
from voxlane.server import limits
from voxlane.server.api import tool_request
from voxlane.server.api.bodies import (
    Body,
    CacheSalt,
    Deadline,
    Ignored,
    Name,
    PriorityName,
    read_body,
    wrong,
)
from voxlane.server.api.tool_request import ChatTool, MadeCall, NamedFunction, ResponseFormat
from voxlane.server.config import PRIORITIES
from voxlane.server.errors import UnsupportedParameter

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

LEAST_TOP_P = 1e-6
"""OpenAI takes top_p 0 and means: only the likeliest token."""

TEXT_ONLY = "only text is supported: no images, no audio, no files"
"""What is said about other parts of a message."""

OWN = "Absent: the model's own, see `/v1/models`."
_MUST_BE_EMPTY = ("refusal", "annotations", "audio", "function_call")

Empty = Annotated[
    Any,
    Meta(
        description="Part of our own answers when they are sent back; always empty.",
        extra_json_schema={"enum": [None, [], "", {}]},
    ),
]
Tokens = Annotated[int, Meta(ge=1, le=1 << 24)]
Share = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
StopString = Annotated[str, Meta(min_length=1, max_length=limits.STOP_CHARACTERS)]
TokenNumber = Annotated[str, Meta(pattern="^[0-9]{1,9}$")]


class TextPart(Body, forbid_unknown_fields=False):
    """A piece of a message's text."""

    type: Annotated[Literal["text"], Meta(extra={"unsupported": TEXT_ONLY})]
    text: str


class SentMessage(Body):
    """One message of the conversation."""

    role: Annotated[
        Literal["system", "developer", "user", "assistant", "tool"],
        Meta(description="`developer` is another word for `system`."),
    ]
    content: Annotated[
        str | Annotated[list[TextPart], Meta(min_length=1, max_length=limits.CONTENT_PARTS)] | None,
        Meta(description="The text. An assistant's may be `null`."),
    ] = None
    name: Ignored = None
    tool_calls: Annotated[
        Annotated[list[MadeCall], Meta(max_length=limits.TOOLS)] | None,
        Meta(description="The calls that the assistant made."),
    ] = None
    # Some clients send it empty in every message.
    tool_call_id: Annotated[
        Annotated[str, Meta(max_length=limits.NAME_CHARACTERS)] | None,
        Meta(description="Which call a tool's message answers; empty is as good as absent."),
    ] = None
    # litellm adds it to our answers; its users send these back as they are.
    provider_specific_fields: Ignored = None
    # Our answers have it where a model thinks, and templates leave old thoughts out.
    reasoning_content: Ignored = None
    refusal: Empty = None
    annotations: Empty = None
    audio: Empty = None
    function_call: Empty = None


class StreamOptions(Body):
    """Only with `stream`."""

    include_usage: Annotated[bool | None, Meta(description="Whether a last chunk tells the usage.")] = None
    # Padding against traffic analysis: nothing in the answer depends on it.
    include_obfuscation: Ignored = None


class ChatBody(Body):
    """A conversation, and how it is to go on."""

    messages: Annotated[
        list[SentMessage], Meta(min_length=1, max_length=limits.MESSAGES, description="The conversation so far.")
    ]
    model: Annotated[Name, Meta(description="A name from `/v1/models`; the model served if absent.")] | None = None
    max_completion_tokens: (
        Annotated[Tokens, Meta(description="Most tokens of the answer; as many as fit the context if absent.")] | None
    ) = None
    max_tokens: Annotated[Tokens, Meta(description="The older name of the same.")] | None = None
    stream: Annotated[bool, Meta(description="Send the answer as events while it is made.")] = False
    stream_options: StreamOptions | None = None
    temperature: (
        Annotated[
            float,
            Meta(
                ge=limits.TEMPERATURES[0],
                le=limits.TEMPERATURES[1],
                description=f"0 takes the likeliest token. {OWN}",
            ),
        ]
        | None
    ) = None
    top_p: (
        Annotated[Share, Meta(description=f"Only the likeliest tokens that together are this likely. {OWN}")] | None
    ) = None
    top_k: (
        Annotated[
            int,
            Meta(ge=-1, le=1 << 24, description=f"Only so many of the likeliest tokens; 0 or -1: all. {OWN}"),
        ]
        | None
    ) = None
    min_p: Annotated[Share, Meta(description=f"Only tokens this likely, compared with the likeliest. {OWN}")] | None = (
        None
    )
    presence_penalty: Annotated[Penalty, Meta(description="Against tokens that have occurred.")] = 0
    frequency_penalty: Annotated[Penalty, Meta(description="Against tokens, by how often they have occurred.")] = 0
    repetition_penalty: (
        Annotated[float, Meta(ge=0.01, le=10, description=f"Divides the score of tokens that have occurred. {OWN}")]
        | None
    ) = None
    logit_bias: Annotated[
        dict[TokenNumber, Annotated[float, Meta(ge=-100, le=100)]],
        Meta(
            max_length=limits.LOGIT_BIASES,
            description="What is added to the scores of tokens, by their numbers.",
            extra={
                "rule": f"must be an object of up to {limits.LOGIT_BIASES} entries, from token numbers to numbers"
                " from -100 to 100"
            },
        ),
    ] = field(default_factory=dict)
    seed: (
        Annotated[
            int,
            Meta(
                ge=-(1 << 63),
                le=(1 << 63) - 1,
                description="The same seed gives the same answer, as long as `system_fingerprint` is the same.",
            ),
        ]
        | None
    ) = None
    stop: Annotated[
        StopString | Annotated[list[StopString], Meta(max_length=limits.STOP_STRINGS)] | None,
        Meta(description="Texts that end the answer, and are not part of it."),
    ] = None
    n: Annotated[int, Meta(ge=1, le=limits.CHOICES, description="How many answers to make.")] = 1
    logprobs: Annotated[bool, Meta(description="Tell how likely each token was.")] = False
    top_logprobs: (
        Annotated[
            int,
            Meta(ge=0, le=limits.TOP_LOGPROBS, description="So many alternatives to each token; needs `logprobs`."),
        ]
        | None
    ) = None
    response_format: Annotated[
        ResponseFormat | None, Meta(description="Make the answer JSON, of any kind or of a schema.")
    ] = None
    tools: Annotated[
        list[ChatTool], Meta(max_length=limits.TOOLS, description="Functions that the model may call.")
    ] = field(default_factory=list)
    tool_choice: Annotated[
        Literal["auto", "none", "required"] | NamedFunction | None,
        Meta(
            description="Whether it calls one: as it likes, never, in any case, or this one. The last two need `tools`."
        ),
    ] = None
    parallel_tool_calls: Annotated[bool, Meta(description="Whether one answer may hold several calls.")] = True
    loop_guard: Annotated[
        bool,
        Meta(
            description="End an answer that says the same over and over, four times and"
            f" {limits.WRITTEN_LOOP_TOKENS} tokens at least, as `stop`, without most of its repeats. JSON of a schema"
            " and required calls never end so."
        ),
    ] = True
    ignore_eos: Annotated[bool, Meta(description="Go on to `max_tokens`, whatever the model wants.")] = False
    priority: PriorityName = "normal"
    deadline_ms: Deadline | None = None
    cache_salt: CacheSalt | None = None
    metadata: Ignored = None
    prediction: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_retention: Ignored = None
    safety_identifier: Ignored = None
    service_tier: Ignored = None
    store: Ignored = None
    user: Ignored = None


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A chat request in the engine's values."""

    model: str | None
    messages: tuple[ChatMessage, ...]
    sampling: SamplingParams
    max_tokens: int | None  # None: as many as fit the context
    choices: int
    stream: bool
    include_usage: bool
    priority: Priority
    deadline_s: float | None
    cache_salt: str  # what the client adds to its tenant's
    tools: tuple[Tool, ...]
    tool_choice: str  # as in Submit
    parallel_calls: bool  # whether one answer may hold several


def parse(values: Mapping[str, Any]) -> ChatRequest:
    """Return the request in a JSON object, or raise an error that names the parameter."""
    body = read_body(ChatBody, values, UNSUPPORTED, _NEUTRAL)
    if body.stream_options is not None and not body.stream:
        raise wrong("stream_options", "needs stream to be true")
    tools = tuple(tool_request.declared(tool.function) for tool in body.tools)
    return ChatRequest(
        model=body.model,
        messages=tuple(_message(f"messages[{index}]", message) for index, message in enumerate(body.messages)),
        sampling=_sampling(body),
        max_tokens=_max_tokens(body),
        choices=body.n,
        stream=body.stream,
        include_usage=body.stream_options is not None and bool(body.stream_options.include_usage),
        priority=PRIORITIES[body.priority],
        deadline_s=None if body.deadline_ms is None else body.deadline_ms / 1000,
        cache_salt=body.cache_salt or "",
        tools=tools,
        tool_choice=tool_request.chosen(body.tool_choice, tools),
        parallel_calls=body.parallel_tool_calls,
    )


def _sampling(body: ChatBody) -> SamplingParams:
    return structs.replace(
        sampling_of(
            body.temperature,
            None if body.top_k is None else max(body.top_k, 0),  # -1 is vLLM's word for off
            None if body.top_p is None else max(body.top_p, LEAST_TOP_P),
            body.min_p,
            body.repetition_penalty,
        ),
        presence_penalty=float(body.presence_penalty),
        frequency_penalty=float(body.frequency_penalty),
        logit_bias=tuple((int(token), bias) for token, bias in body.logit_bias.items()),
        seed=body.seed,
        stop=_stop(body.stop),
        logprobs=_logprobs(body),
        ignore_eos=body.ignore_eos,
        loop_tokens=limits.WRITTEN_LOOP_TOKENS if body.loop_guard else 0,
        schema=tool_request.schema_of(body.response_format),
    )


def _max_tokens(body: ChatBody) -> int | None:
    old, new = body.max_tokens, body.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise wrong("max_tokens", "and max_completion_tokens differ: give one of them")
    return new if new is not None else old


def _logprobs(body: ChatBody) -> int:
    if body.top_logprobs is not None and not body.logprobs:
        raise wrong("top_logprobs", "needs logprobs to be true")
    return (body.top_logprobs or 0) if body.logprobs else -1


def _stop(given: str | list[str] | None) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(dict.fromkeys(given or ()))


def _message(path: str, message: SentMessage) -> ChatMessage:
    for name in _MUST_BE_EMPTY:
        if getattr(message, name):
            raise UnsupportedParameter(f"{path}.{name} is not supported.", param=f"{path}.{name}")
    if message.tool_calls and message.role != "assistant":
        raise wrong(f"{path}.tool_calls", "can only be the assistant's")
    # An assistant's answer without text is sent back as null.
    if message.content is None and message.role != "assistant":
        raise wrong(f"{path}.content", f"must be a string or a list of 1 to {limits.CONTENT_PARTS} text parts")
    content = message.content or ""
    return ChatMessage(
        "system" if message.role == "developer" else message.role,
        content if isinstance(content, str) else "\n".join(part.text for part in content),
        tuple(tool_request.made(call) for call in message.tool_calls or ()),
        (message.tool_call_id or "") if message.role == "tool" else "",
    )
