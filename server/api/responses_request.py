"""The body of POST /v1/responses: its description, and what it means for the engine. Pure.

A response is a chat completion in other words: `parse` and `chat_request` return what chat_engine.py takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta, field, structs

from voxlane.engine.api import ChatMessage, Tool, ToolUse, sampling_of
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
    read_fields,
    wrong,
)
from voxlane.server.api.chat_request import LEAST_TOP_P, OWN, TEXT_ONLY, ChatRequest, Share, Tokens
from voxlane.server.api.tool_request import FlatFormat, FlatFunctionName, FlatTool
from voxlane.server.config import PRIORITIES
from voxlane.server.errors import UnsupportedParameter

UNSUPPORTED = frozenset(
    {
        "access_programs", "background", "context_management", "conversation", "image", "moderation", "prompt",
        "reasoning", "truncation",
    }
)  # fmt: skip
"""Parameters of OpenAI's that we know and do not honour; their neutral values are let through."""

_NO_REASONING: tuple[object, ...] = ({}, {"effort": None}, {"effort": "none"}, {"effort": None, "summary": None})
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "background": (False,),
    "context_management": ([],),
    "reasoning": _NO_REASONING,
    "truncation": ("disabled",),
}

LOGPROBS = "message.output_text.logprobs"
_ITEMS = "only messages, function calls, their outputs and references to items are supported"
_INCLUDE = "only message.output_text.logprobs can be included"

KeyOfMetadata = Annotated[str, Meta(max_length=limits.METADATA_CHARACTERS[0])]
ValueOfMetadata = Annotated[str, Meta(max_length=limits.METADATA_CHARACTERS[1])]


class ItemPart(Body, forbid_unknown_fields=False):
    """A piece of an item's text."""

    type: Annotated[Literal["input_text", "output_text", "text"], Meta(extra={"unsupported": TEXT_ONLY})]
    text: str


ItemText = str | Annotated[list[ItemPart], Meta(max_length=limits.CONTENT_PARTS)]


class InputItem(Body, forbid_unknown_fields=False, omit_defaults=True):
    """One item of the conversation. What an answer's items hold beyond this may be sent back, and has no effect."""

    type: Annotated[
        Literal["message", "function_call", "function_call_output", "item_reference"],
        Meta(description="A message if absent.", extra={"unsupported": _ITEMS}),
    ] = "message"
    role: Annotated[
        Literal["system", "developer", "user", "assistant"] | None,
        Meta(description="Of a message; `developer` is another word for `system`."),
    ] = None
    content: Annotated[ItemText | None, Meta(description="A message's text.")] = None
    call_id: Annotated[Name | None, Meta(description="Which call it is, or which one it answers.")] = None
    name: Annotated[Name | None, Meta(description="The function that was called.")] = None
    arguments: Annotated[str | None, Meta(description="A call's arguments: a JSON object, as text.")] = None
    output: Annotated[ItemText | None, Meta(description="What the function returned.")] = None
    id: Annotated[Name | None, Meta(description="Of an `item_reference`: an item of a response that is kept.")] = None


class TextOptions(Body):
    """The form of the answer."""

    format: Annotated[FlatFormat | None, Meta(description="Make the answer JSON, of any kind or of a schema.")] = None
    verbosity: Annotated[
        Literal["medium"] | None, Meta(extra={"unsupported": "the length of answers cannot be chosen"})
    ] = None


class ResponsesBody(Body):
    """What was said, and how it is to be answered."""

    input: Annotated[
        str | Annotated[list[InputItem], Meta(min_length=1, max_length=limits.MESSAGES)],
        Meta(description="The user's words, or the items of the conversation so far."),
    ]
    model: Annotated[Name, Meta(description="A name from `/v1/models`; the model served if absent.")] | None = None
    instructions: Annotated[str, Meta(description="The system message; of this response alone.")] | None = None
    previous_response_id: (
        Annotated[Name, Meta(description="Go on after this response of the same key, which was stored.")] | None
    ) = None
    store: Annotated[
        bool,
        Meta(
            description="Keep the response, so that another one can follow it: in memory, the last"
            f" {limits.RESPONSES_KEPT} of a key, for {limits.RESPONSE_KEPT_SECONDS // 60} minutes."
        ),
    ] = True
    max_output_tokens: (
        Annotated[Tokens, Meta(description="Most tokens of the answer; as many as fit the context if absent.")] | None
    ) = None
    temperature: (
        Annotated[
            float,
            Meta(
                ge=limits.TEMPERATURES[0], le=limits.TEMPERATURES[1], description=f"0 takes the likeliest token. {OWN}"
            ),
        ]
        | None
    ) = None
    top_p: (
        Annotated[Share, Meta(description=f"Only the likeliest tokens that together are this likely. {OWN}")] | None
    ) = None
    text: TextOptions | None = None
    tools: Annotated[
        list[FlatTool], Meta(max_length=limits.TOOLS, description="Functions that the model may call.")
    ] = field(default_factory=list)
    tool_choice: Annotated[
        Literal["auto", "none", "required"] | FlatFunctionName | None,
        Meta(
            description="Whether it calls one: as it likes, never, in any case, or this one. The last two need `tools`."
        ),
    ] = None
    parallel_tool_calls: Annotated[bool, Meta(description="Whether one answer may hold several calls.")] = True
    stream: Annotated[bool, Meta(description="Send the answer as events while it is made.")] = False
    stream_options: Ignored = None
    include: Annotated[
        list[
            Annotated[
                Literal["message.output_text.logprobs", "reasoning.encrypted_content"],
                Meta(extra={"unsupported": _INCLUDE}),
            ]
        ],
        Meta(
            max_length=8,
            description="`message.output_text.logprobs` tells how likely each token was. There is no reasoning.",
            extra={"unsupported": _INCLUDE},
        ),
    ] = field(default_factory=list)
    top_logprobs: (
        Annotated[
            int,
            Meta(ge=0, le=limits.TOP_LOGPROBS, description=f"So many alternatives to each token; needs `{LOGPROBS}`."),
        ]
        | None
    ) = None
    metadata: Annotated[
        dict[KeyOfMetadata, ValueOfMetadata],
        Meta(max_length=limits.METADATA_ENTRIES, description="Told again in the response."),
    ] = field(default_factory=dict)
    priority: PriorityName = "normal"
    deadline_ms: Deadline | None = None
    cache_salt: CacheSalt | None = None
    max_tool_calls: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_options: Ignored = None
    prompt_cache_retention: Ignored = None
    safety_identifier: Ignored = None
    service_tier: Ignored = None
    user: Ignored = None


@dataclass(frozen=True, slots=True)
class ResponsesRequest:
    """A request for a response."""

    body: ResponsesBody
    items: tuple[InputItem, ...]  # of this request; those before it are kept
    tools: tuple[Tool, ...]
    tool_choice: str  # as in Submit


def parse(values: Mapping[str, Any]) -> ResponsesRequest:
    """Return the request in a JSON object, or raise an error that names the parameter."""
    body = read_body(ResponsesBody, values, UNSUPPORTED, _NEUTRAL)
    tools = tuple(tool_request.declared(tool) for tool in body.tools)
    items = (InputItem(role="user", content=body.input),) if isinstance(body.input, str) else tuple(body.input)
    for index, item in enumerate(items):
        _check(f"input[{index}]", item)
    if body.top_logprobs is not None and LOGPROBS not in body.include:
        raise wrong("top_logprobs", f"needs {LOGPROBS} in include")
    return ResponsesRequest(body, items, tools, tool_request.chosen(body.tool_choice, tools))


def chat_request(ask: ResponsesRequest, items: Sequence[InputItem]) -> ChatRequest:
    """Return a request as the engine is asked: these are all items of the conversation, without references."""
    body = ask.body
    instructions = (ChatMessage("system", body.instructions),) if body.instructions else ()
    return ChatRequest(
        model=body.model,
        messages=(*instructions, *_messages(items)),
        sampling=structs.replace(
            sampling_of(
                body.temperature, None, None if body.top_p is None else max(body.top_p, LEAST_TOP_P), None, None
            ),
            logprobs=(body.top_logprobs or 0) if LOGPROBS in body.include else -1,
            loop_tokens=limits.WRITTEN_LOOP_TOKENS,
            schema=tool_request.schema_of(None if body.text is None else body.text.format),
        ),
        max_tokens=body.max_output_tokens,
        choices=1,
        stream=body.stream,
        include_usage=True,
        priority=PRIORITIES[body.priority],
        deadline_s=None if body.deadline_ms is None else body.deadline_ms / 1000,
        cache_salt=body.cache_salt or "",
        tools=ask.tools,
        tool_choice=ask.tool_choice,
        parallel_calls=body.parallel_tool_calls,
    )


_NEEDED: Mapping[str, tuple[str, ...]] = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "item_reference": ("id",),
}


def _check(path: str, item: InputItem) -> None:
    for name in _NEEDED[item.type]:
        if getattr(item, name) is None:
            raise wrong(f"{path}.{name}", f"is needed in a {item.type}")


def text_of(content: ItemText | None) -> str:
    """Return a text that may have come in parts."""
    return content if isinstance(content, str) else "\n".join(part.text for part in content or ())


def _messages(items: Sequence[InputItem]) -> list[ChatMessage]:
    """Return a conversation's messages: calls are part of the assistant's message before them."""
    messages: list[ChatMessage] = []
    for item in items:
        if item.type == "function_call":
            call = ToolUse(item.call_id or "", item.name or "", item.arguments or "")
            if messages and messages[-1].role == "assistant":
                said = messages.pop()
                messages.append(structs.replace(said, tool_calls=(*said.tool_calls, call)))
            else:
                messages.append(ChatMessage("assistant", "", (call,), ""))
        elif item.type == "function_call_output":
            messages.append(ChatMessage("tool", text_of(item.output), (), item.call_id or ""))
        else:
            role = "system" if item.role == "developer" else item.role
            messages.append(ChatMessage(role or "user", text_of(item.content), (), ""))
    return messages


class InputItemsQuery(Body, forbid_unknown_fields=False):
    """Which input items of a response are listed."""

    limit: Annotated[int, Meta(ge=1, le=limits.LISTED_ITEMS, description="At most so many.")] = 20
    order: Annotated[Literal["asc", "desc"], Meta(description="The oldest first, or the newest.")] = "desc"
    after: Annotated[Name | None, Meta(description="Those that follow this item in the order.")] = None


def read_query(values: Sequence[tuple[str, str]]) -> InputItemsQuery:
    """Return what a query asks for, or raise InvalidRequest that names the parameter."""
    return read_fields(InputItemsQuery, [pair for pair in values if pair[0] in ("limit", "order", "after")])


_PREFIXES = {"message": "msg_", "function_call": "fc_", "function_call_output": "fco_"}


def named(items: Sequence[InputItem], key: str) -> list[InputItem]:
    """Return the items of a request, each with an id; `key` is that of the response which they led to."""
    return [
        item if item.id else structs.replace(item, id=f"{_PREFIXES[item.type]}{key}_i{index}")
        for index, item in enumerate(items)
    ]


def no_reference(index: int) -> UnsupportedParameter:
    """Return the error for a reference to an item that is not kept."""
    return UnsupportedParameter(
        f"input[{index}].id: no such item is kept for this key; send the item itself.", param=f"input[{index}].id"
    )
