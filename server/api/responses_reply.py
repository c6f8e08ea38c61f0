"""The engine's output as OpenAI's responses: the object, and the events of its stream in their order. Pure.

One writer serves both forms of an answer: an answer that is not streamed is the object in the last event.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field, structs, to_builtins

from voxlane.engine.api import Finished, RequestStats, Started, Text, TokenLogprob, ToolCall
from voxlane.server.api.bodies import JsonReply, wrong
from voxlane.server.api.chat_reply import FINISH_REASONS, ChatOutput, ChosenToken, token_logprobs
from voxlane.server.api.responses_request import LOGPROBS, InputItem, InputItemsQuery, ResponsesRequest, text_of
from voxlane.server.api.thoughts import ReasoningText
from voxlane.server.errors import Overloaded, VoxlaneError

_EVENT = {
    "properties": {"type": {"type": "string"}, "sequence_number": {"type": "integer", "minimum": 0}},
    "required": ["type", "sequence_number"],
    "additionalProperties": True,
}
Event = Annotated[dict[str, Any], Meta(description="As `response.output_text.delta`.", extra_json_schema=_EVENT)]

RESPONSE_PREFIX = "resp_"
_MESSAGE_PREFIX, _CALL_PREFIX, _RESULT_PREFIX = "msg_", "fc_", "fco_"


def response_of_item(item_id: str) -> str:
    """Return the id of the response that has made an item, "" for an item of another origin."""
    for prefix in (_MESSAGE_PREFIX, _CALL_PREFIX, _RESULT_PREFIX):
        if item_id.startswith(prefix):
            return RESPONSE_PREFIX + item_id.removeprefix(prefix).rpartition("_")[0]
    return ""


class OutputText(JsonReply, tag_field="type", tag="output_text", kw_only=True):
    """A piece of what the model said."""

    text: str
    annotations: Annotated[list[Any], Meta(max_length=0, description="Always empty.")] = field(default_factory=list)
    logprobs: Annotated[list[ChosenToken], Meta(description="Empty unless they were asked for.")]


class InputText(JsonReply, tag_field="type", tag="input_text"):
    """A piece of what the model was given."""

    text: str


class MessageItem(JsonReply, tag_field="type", tag="message", kw_only=True):
    """A message."""

    id: str
    status: Literal["in_progress", "completed", "incomplete"] = "completed"
    role: Literal["assistant", "user", "system", "developer"] = "assistant"
    content: list[OutputText | InputText]


class CallItem(JsonReply, tag_field="type", tag="function_call", kw_only=True):
    """A function to call."""

    id: str
    status: Literal["in_progress", "completed"] = "completed"
    call_id: Annotated[str, Meta(description="For the `function_call_output`.")]
    name: str
    arguments: Annotated[str, Meta(description="A JSON object, as text.")]


class ResultItem(JsonReply, tag_field="type", tag="function_call_output", kw_only=True):
    """What a function returned."""

    id: str
    status: Literal["completed"] = "completed"
    call_id: Annotated[str, Meta(description="Of the call that it answers.")]
    output: str


class ResponseItemList(JsonReply, kw_only=True):
    """A page of the items that led to a response."""

    object: Literal["list"] = "list"
    data: list[MessageItem | CallItem | ResultItem]
    first_id: Annotated[str, Meta(description="Of the first item; empty if there is none.")]
    last_id: Annotated[str, Meta(description="For `after`; empty if there is none.")]
    has_more: Annotated[bool, Meta(description="Whether others follow.")]


class ReadTokens(JsonReply):
    """Some of the tokens that were read."""

    cached_tokens: Annotated[int, Meta(description="Tokens that were already known.")]
    cache_write_tokens: Annotated[int, Meta(description="Always 0.")] = 0


class WrittenTokens(JsonReply):
    """Some of the tokens that were written."""

    reasoning_tokens: Annotated[int, Meta(description="Always 0.")] = 0


class ResponseUsage(JsonReply):
    """How much the model read and wrote."""

    input_tokens: int
    input_tokens_details: ReadTokens
    output_tokens: int
    output_tokens_details: WrittenTokens
    total_tokens: int


class ResponseFailure(JsonReply):
    """Why there is no response."""

    code: str
    message: str


class Incomplete(JsonReply):
    """Why a response ended early."""

    reason: Literal["max_output_tokens"] = "max_output_tokens"


class Reasoning(JsonReply):
    """How the model was told to think: it cannot be."""

    effort: None = None
    summary: None = None


class ResponseObject(JsonReply, kw_only=True):
    """A response, with what was asked for."""

    id: Annotated[str, Meta(description="For `previous_response_id`.")]
    object: Literal["response"] = "response"
    created_at: Annotated[int, Meta(description="When, in seconds since 1970.")]
    status: Literal["completed", "incomplete", "failed", "in_progress"] = "in_progress"
    background: Annotated[bool, Meta(description="Always false.")] = False
    completed_at: Annotated[
        int | None, Meta(description="When, in seconds since 1970; `null` unless it is complete.")
    ] = None
    error: ResponseFailure | None = None
    incomplete_details: Incomplete | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: None = None
    model: Annotated[str, Meta(description="The name that was asked for.")]
    output: Annotated[
        list[MessageItem | CallItem], Meta(description="What the model said, and the functions to call.")
    ] = field(default_factory=list)
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: Reasoning = field(default_factory=Reasoning)
    service_tier: Literal["default"] = "default"
    store: Annotated[bool, Meta(description="Whether it is kept.")]
    temperature: Annotated[float | None, Meta(description="`null`: the model's own.")]
    text: Annotated[dict[str, Any], Meta(description="As it was asked for.")]
    tool_choice: Annotated[Any, Meta(description="As it was asked for.")]
    tools: Annotated[list[dict[str, Any]], Meta(description="As they were declared.")]
    top_logprobs: int
    top_p: Annotated[float | None, Meta(description="`null`: the model's own.")]
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None = None
    metadata: dict[str, str]


class ResponseDeleted(JsonReply):
    """A response that is kept no longer."""

    id: str
    object: Literal["response"] = "response"
    deleted: Annotated[bool, Meta(description="Always true.")] = True


class ResponseWriter:
    """One response as it grows; each output of the engine becomes events."""

    def __init__(self, ask: ResponsesRequest, response_id: str, created_s: int, model: str) -> None:
        self.response = _opening(ask, response_id, created_s, model)
        self._key = response_id.removeprefix(RESPONSE_PREFIX)
        self._with_logprobs = LOGPROBS in ask.body.include
        self._text: list[str] = []  # of the message that is being written
        self._tokens: list[TokenLogprob] = []
        self._writing = False
        self._sequence = 0

    def begin(self) -> Iterator[Event]:
        """Yield the events with which a stream begins."""
        yield self._event("response.created", response=structs.replace(self.response, output=[]))
        yield self._event("response.in_progress", response=structs.replace(self.response, output=[]))

    def write(self, output: ChatOutput, now_s: int) -> Iterator[Event]:
        """Yield the events for one output; the last output completes the response."""
        match output:
            case Started() | ReasoningText():
                return
            case Text():
                yield from self._begin_message()
                self._text.append(output.text)
                self._tokens.extend(output.logprobs)
                yield self._part_event("response.output_text.delta", delta=output.text, logprobs=self._told(output))
            case ToolCall():
                yield from self._end_message("completed")
                yield from self._call(output)
            case Finished():
                yield from self._finish(output, now_s)

    def fail(self, error: VoxlaneError) -> Iterator[Event]:
        """Yield the event of a response that has failed after its stream began."""
        code = "rate_limit_exceeded" if isinstance(error, Overloaded) else "server_error"
        self.response.status, self.response.error = "failed", ResponseFailure(code=code, message=error.message)
        yield self._event("response.failed", response=self.response)

    def _finish(self, end: Finished, now_s: int) -> Iterator[Event]:
        whole = FINISH_REASONS[end.reason] == "stop"
        status: Literal["completed", "incomplete"] = "completed" if whole else "incomplete"
        if not self.response.output:
            yield from self._begin_message()  # an answer without a word is an empty message
        yield from self._end_message(status)
        self.response.status, self.response.usage = status, _usage(end.stats)
        if whole:
            self.response.completed_at = now_s
        else:
            self.response.incomplete_details = Incomplete()
        yield self._event(f"response.{status}", response=self.response)

    # ---- items

    @property
    def _index(self) -> int:
        """The number of the item that is being written."""
        return len(self.response.output)

    def _begin_message(self) -> Iterator[Event]:
        if self._writing:
            return
        self._writing, self._text, self._tokens = True, [], []
        item = self._message("in_progress", [])
        yield self._event("response.output_item.added", output_index=self._index, item=item)
        yield self._part_event("response.content_part.added", part=OutputText(text="", logprobs=[]))

    def _end_message(self, status: Literal["completed", "incomplete"]) -> Iterator[Event]:
        if not self._writing:
            return
        text, told = "".join(self._text), token_logprobs(self._tokens)
        part = OutputText(text=text, logprobs=told)
        yield self._part_event("response.output_text.done", text=text, logprobs=told)
        yield self._part_event("response.content_part.done", part=part)
        item = self._message(status, [part])
        yield self._event("response.output_item.done", output_index=self._index, item=item)
        self.response.output.append(item)
        self._writing = False

    def _call(self, call: ToolCall) -> Iterator[Event]:
        item_id, index = self._item_id(_CALL_PREFIX), self._index
        whole = CallItem(id=item_id, call_id=call.call_id, name=call.name, arguments=call.arguments)
        opening = structs.replace(whole, arguments="", status="in_progress")
        at = {"item_id": item_id, "output_index": index}
        yield self._event("response.output_item.added", output_index=index, item=opening)
        yield self._event("response.function_call_arguments.delta", **at, delta=call.arguments)
        yield self._event("response.function_call_arguments.done", **at, name=call.name, arguments=call.arguments)
        yield self._event("response.output_item.done", output_index=index, item=whole)
        self.response.output.append(whole)

    def _message(
        self, status: Literal["in_progress", "completed", "incomplete"], content: list[OutputText | InputText]
    ) -> MessageItem:
        return MessageItem(id=self._item_id(_MESSAGE_PREFIX), status=status, content=content)

    def _item_id(self, prefix: str) -> str:
        """Return an id that leads back to this response: see response_of_item()."""
        return f"{prefix}{self._key}_{self._index}"

    def _told(self, output: Text) -> list[ChosenToken]:
        return token_logprobs(output.logprobs) if self._with_logprobs else []

    # ---- events

    def _part_event(self, kind: str, **values: object) -> Event:
        """Return an event about the text of the message that is being written."""
        at = {"item_id": self._item_id(_MESSAGE_PREFIX), "output_index": self._index, "content_index": 0}
        return self._event(kind, **at, **values)

    def _event(self, kind: str, **values: object) -> Event:
        self._sequence += 1
        return {"type": kind, "sequence_number": self._sequence - 1, **values}


def _opening(ask: ResponsesRequest, response_id: str, created_s: int, model: str) -> ResponseObject:
    """Return a response before its first word, with what was asked for."""
    body = ask.body
    return ResponseObject(
        id=response_id,
        created_at=created_s,
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        model=model,
        parallel_tool_calls=body.parallel_tool_calls,
        previous_response_id=body.previous_response_id,
        store=body.store,
        temperature=body.temperature,
        text={"format": _format(ask), "verbosity": "medium"},
        tool_choice=to_builtins(body.tool_choice or "auto"),
        tools=[
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
                "strict": tool.strict is True,
            }
            for tool in body.tools
        ],
        top_logprobs=body.top_logprobs or 0,
        top_p=body.top_p,
        metadata=body.metadata,
    )


def _format(ask: ResponsesRequest) -> dict[str, Any]:
    text = ask.body.text
    if text is None or text.format is None:
        return {"type": "text"}
    told: dict[str, Any] = to_builtins(text.format)
    if told["type"] == "json_schema":
        told["name"] = told["name"] if isinstance(told["name"], str) else "schema"
        told["strict"] = told["strict"] is True
    return told


def _usage(stats: RequestStats) -> ResponseUsage:
    return ResponseUsage(
        input_tokens=stats.prompt_tokens,
        input_tokens_details=ReadTokens(cached_tokens=stats.cached_tokens),
        output_tokens=stats.output_tokens,
        output_tokens_details=WrittenTokens(),
        total_tokens=stats.prompt_tokens + stats.output_tokens,
    )


# ---- the items that led to a response


def item_page(items: Sequence[InputItem], query: InputItemsQuery) -> ResponseItemList:
    """Return one page of input items; raise InvalidRequest if `after` is none of them."""
    told = [_input_item(item) for item in (items if query.order == "asc" else reversed(items))]
    if query.after is not None:
        places = [place for place, item in enumerate(told) if item.id == query.after]
        if not places:
            raise wrong("after", "is not the id of an input item of this response")
        told = told[places[0] + 1 :]
    page = told[: query.limit]
    return ResponseItemList(
        data=page,
        first_id=page[0].id if page else "",
        last_id=page[-1].id if page else "",
        has_more=len(told) > len(page),
    )


def _input_item(item: InputItem) -> MessageItem | CallItem | ResultItem:
    item_id, call_id = item.id or "", item.call_id or ""
    match item.type:
        case "function_call":
            return CallItem(id=item_id, call_id=call_id, name=item.name or "", arguments=item.arguments or "")
        case "function_call_output":
            return ResultItem(id=item_id, call_id=call_id, output=text_of(item.output))
        case _:
            texts = [item.content] if isinstance(item.content, str) else [part.text for part in item.content or ()]
            said = item.role == "assistant"
            parts = [OutputText(text=text, logprobs=[]) if said else InputText(text=text) for text in texts]
            return MessageItem(id=item_id, role=item.role or "user", content=parts)


class KeptResponse(Struct):
    """A response with all that led to it, as it is kept for the one that follows."""

    response: ResponseObject
    before: list[InputItem]  # the items of earlier responses
    input: list[InputItem]

    def conversation(self) -> list[InputItem]:
        """Return all items up to and with this response's own."""
        return [*self.context(), *self.output()]

    def context(self) -> list[InputItem]:
        """Return all items that led to this response."""
        return [*self.before, *self.input]

    def output(self) -> list[InputItem]:
        """Return the items that this response has made, as they are sent back."""
        return [_output_item(item) for item in self.response.output]


def _output_item(item: MessageItem | CallItem) -> InputItem:
    if isinstance(item, MessageItem):
        return InputItem(id=item.id, role="assistant", content="".join(part.text for part in item.content))
    return InputItem(type="function_call", id=item.id, call_id=item.call_id, name=item.name, arguments=item.arguments)
