"""The engine's output as OpenAI's responses: the object, and the events of its stream in their order. Pure.

One writer serves both forms of an answer: an answer that is not streamed is the object in the last event.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import to_builtins

from voxlane.engine.api import Finished, RequestStats, Started, Text, TokenLogprob, ToolCall
from voxlane.server.api.bodies import wrong
from voxlane.server.api.chat_reply import FINISH_REASONS, ChatOutput, token_logprobs
from voxlane.server.api.responses_request import LOGPROBS, InputItem, InputItemsQuery, ResponsesRequest, text_of
from voxlane.server.api.thoughts import ReasoningText
from voxlane.server.errors import Overloaded, VoxlaneError

Event = dict[str, Any]

RESPONSE_PREFIX = "resp_"
_MESSAGE_PREFIX, _CALL_PREFIX, _RESULT_PREFIX = "msg_", "fc_", "fco_"


def response_of_item(item_id: str) -> str:
    """Return the id of the response that has made an item, "" for an item of another origin."""
    for prefix in (_MESSAGE_PREFIX, _CALL_PREFIX, _RESULT_PREFIX):
        if item_id.startswith(prefix):
            return RESPONSE_PREFIX + item_id.removeprefix(prefix).rpartition("_")[0]
    return ""


class ResponseWriter:
    """One response as it grows; each output of the engine becomes events."""

    def __init__(self, ask: ResponsesRequest, response_id: str, created_s: int, model: str) -> None:
        self.response: dict[str, Any] = _opening(ask, response_id, created_s, model)
        self._key = response_id.removeprefix(RESPONSE_PREFIX)
        self._with_logprobs = LOGPROBS in ask.body.include
        self._text: list[str] = []  # of the message that is being written
        self._tokens: list[TokenLogprob] = []
        self._writing = False
        self._sequence = 0

    def begin(self) -> Iterator[Event]:
        """Yield the events with which a stream begins."""
        yield self._event("response.created", response=self.response | {"output": []})
        yield self._event("response.in_progress", response=self.response | {"output": []})

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
        self.response |= {"status": "failed", "error": {"code": code, "message": error.message}}
        yield self._event("response.failed", response=self.response)

    def _finish(self, end: Finished, now_s: int) -> Iterator[Event]:
        whole = FINISH_REASONS[end.reason] == "stop"
        status = "completed" if whole else "incomplete"
        if not self.response["output"]:
            yield from self._begin_message()  # an answer without a word is an empty message
        yield from self._end_message(status)
        self.response |= {"status": status, "usage": _usage(end.stats)}
        if whole:
            self.response["completed_at"] = now_s
        else:
            self.response["incomplete_details"] = {"reason": "max_output_tokens"}
        yield self._event(f"response.{status}", response=self.response)

    # ---- items

    @property
    def _index(self) -> int:
        """The number of the item that is being written."""
        return len(self.response["output"])

    def _begin_message(self) -> Iterator[Event]:
        if self._writing:
            return
        self._writing, self._text, self._tokens = True, [], []
        item = self._message("in_progress", [])
        yield self._event("response.output_item.added", output_index=self._index, item=item)
        yield self._part_event("response.content_part.added", part=_part("", []))

    def _end_message(self, status: str) -> Iterator[Event]:
        if not self._writing:
            return
        text, told = "".join(self._text), token_logprobs(self._tokens)
        part = _part(text, told)
        yield self._part_event("response.output_text.done", text=text, logprobs=told)
        yield self._part_event("response.content_part.done", part=part)
        item = self._message(status, [part])
        yield self._event("response.output_item.done", output_index=self._index, item=item)
        self.response["output"].append(item)
        self._writing = False

    def _call(self, call: ToolCall) -> Iterator[Event]:
        item_id, index = self._item_id(_CALL_PREFIX), self._index
        item = {"id": item_id, "type": "function_call", "call_id": call.call_id, "name": call.name}
        opening = item | {"arguments": "", "status": "in_progress"}
        whole = item | {"arguments": call.arguments, "status": "completed"}
        at = {"item_id": item_id, "output_index": index}
        yield self._event("response.output_item.added", output_index=index, item=opening)
        yield self._event("response.function_call_arguments.delta", **at, delta=call.arguments)
        yield self._event("response.function_call_arguments.done", **at, name=call.name, arguments=call.arguments)
        yield self._event("response.output_item.done", output_index=index, item=whole)
        self.response["output"].append(whole)

    def _message(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        item_id = self._item_id(_MESSAGE_PREFIX)
        return {"id": item_id, "type": "message", "status": status, "role": "assistant", "content": content}

    def _item_id(self, prefix: str) -> str:
        """Return an id that leads back to this response: see response_of_item()."""
        return f"{prefix}{self._key}_{self._index}"

    def _told(self, output: Text) -> list[dict[str, object]]:
        return token_logprobs(output.logprobs) if self._with_logprobs else []

    # ---- events

    def _part_event(self, kind: str, **values: object) -> Event:
        """Return an event about the text of the message that is being written."""
        at = {"item_id": self._item_id(_MESSAGE_PREFIX), "output_index": self._index, "content_index": 0}
        return self._event(kind, **at, **values)

    def _event(self, kind: str, **values: object) -> Event:
        self._sequence += 1
        return {"type": kind, "sequence_number": self._sequence - 1, **values}


def _part(text: str, logprobs: list[dict[str, object]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _opening(ask: ResponsesRequest, response_id: str, created_s: int, model: str) -> dict[str, Any]:
    """Return a response before its first word, with what was asked for."""
    body = ask.body
    return {
        "id": response_id,
        "object": "response",
        "created_at": created_s,
        "status": "in_progress",
        "background": False,
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": None,
        "model": model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls,
        "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": None, "summary": None},
        "service_tier": "default",
        "store": body.store,
        "temperature": body.temperature,
        "text": {"format": _format(ask), "verbosity": "medium"},
        "tool_choice": to_builtins(body.tool_choice or "auto"),
        "tools": [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
                "strict": tool.strict is True,
            }
            for tool in body.tools
        ],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": body.top_p,
        "truncation": "disabled",
        "usage": None,
        "metadata": body.metadata,
    }


def _format(ask: ResponsesRequest) -> dict[str, Any]:
    text = ask.body.text
    if text is None or text.format is None:
        return {"type": "text"}
    told: dict[str, Any] = to_builtins(text.format)
    if told["type"] == "json_schema":
        told["name"] = told["name"] if isinstance(told["name"], str) else "schema"
        told["strict"] = told["strict"] is True
    return told


def _usage(stats: RequestStats) -> dict[str, Any]:
    return {
        "input_tokens": stats.prompt_tokens,
        "input_tokens_details": {"cached_tokens": stats.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": stats.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": stats.prompt_tokens + stats.output_tokens,
    }


# ---- the items that led to a response


def item_page(items: Sequence[InputItem], query: InputItemsQuery) -> dict[str, Any]:
    """Return one page of input items; raise InvalidRequest if `after` is none of them."""
    told = [_input_item(item) for item in (items if query.order == "asc" else reversed(items))]
    if query.after is not None:
        places = [place for place, item in enumerate(told) if item["id"] == query.after]
        if not places:
            raise wrong("after", "is not the id of an input item of this response")
        told = told[places[0] + 1 :]
    page = told[: query.limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else "",
        "last_id": page[-1]["id"] if page else "",
        "has_more": len(told) > len(page),
    }


def _input_item(item: InputItem) -> dict[str, Any]:
    about = {"id": item.id, "type": item.type, "status": "completed"}
    match item.type:
        case "function_call":
            return about | {"call_id": item.call_id, "name": item.name, "arguments": item.arguments}
        case "function_call_output":
            return about | {"call_id": item.call_id, "output": text_of(item.output)}
        case _:
            texts = [item.content] if isinstance(item.content, str) else [part.text for part in item.content or ()]
            said = item.role == "assistant"
            parts = [_part(text, []) if said else {"type": "input_text", "text": text} for text in texts]
            return about | {"role": item.role or "user", "content": parts}
