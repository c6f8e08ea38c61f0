"""Chat on a remote server: any server with OpenAI's streamed chat completions.

A conversation's chat requests go there, everything else to the engine. Answers become the engine's messages, so the
conversation sees no difference. The response of a paused request is not read, which pauses the remote server, too.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from voxlane.engine.api import (
    Cancel,
    ChatMessage,
    Finished,
    FinishReason,
    FromEngine,
    Pause,
    RequestStats,
    Resume,
    Submit,
    Text,
    ToEngine,
    ToolCall,
)
from voxlane.server import limits
from voxlane.server.config import ChatConfig
from voxlane.server.conversation.effects import RequestsLost
from voxlane.server.engine_client.channel import Channel, Receive
from voxlane.server.log import line

if TYPE_CHECKING:
    import httpx

logger = logging.getLogger(__name__)

_NO_STATS = RequestStats(0, 0, 0, 0.0, 0.0, 0.0, 0.0, 0)
_REASONS: dict[str, FinishReason] = {"length": "length"}


class RemoteFailed(Exception):
    """The remote server's answer is not usable; the text is for our log."""


class RemoteChat:
    """One remote chat server."""

    def __init__(self, config: ChatConfig, key: str) -> None:
        self.model = config.model
        self._url = config.url.rstrip("/") + "/chat/completions"
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._client: httpx.AsyncClient | None = None

    def open(self, receive: Receive) -> RemoteChannel:
        """Return a conversation's channel to this server; the caller sets its channel to the engine."""
        return RemoteChannel(self, receive)

    async def aclose(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()

    async def stream(self, submit: Submit) -> AsyncIterator[dict[str, Any]]:
        """Yield the chunks of an answer; raise RemoteFailed if there is none."""
        import httpx  # needed only with a remote server

        if self._client is None:
            self._client = httpx.AsyncClient(
                headers=self._headers,
                timeout=httpx.Timeout(limits.REMOTE_READ_SECONDS, connect=limits.REMOTE_CONNECT_SECONDS),
            )
        try:
            async with self._client.stream("POST", self._url, json=self._body(submit)) as answer:
                if answer.status_code != 200:
                    raise RemoteFailed(f"status {answer.status_code}")
                async for data in answer.aiter_lines():
                    if len(data) > limits.REMOTE_LINE_CHARACTERS:
                        raise RemoteFailed("a line is too long")
                    if data.startswith("data:") and (payload := data[5:].strip()) != "[DONE]":
                        yield _chunk(payload)
        except httpx.HTTPError as error:
            raise RemoteFailed(type(error).__name__) from error

    def _body(self, submit: Submit) -> dict[str, Any]:
        sampling = submit.sampling
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [_message(message) for message in submit.messages],
            "stream": True,
            "max_tokens": sampling.max_tokens,
        }
        if "temperature" not in sampling.unset:  # else the remote server's default
            body["temperature"] = sampling.temperature
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        if submit.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {
                        "name": tool.name,
                        "description": tool.description,
                        "parameters": json.loads(tool.parameters or '{"type": "object", "properties": {}}'),
                    },
                }
                for tool in submit.tools
            ]
            named = submit.tool_choice not in ("auto", "none", "required")
            function = {"type": "function", "function": {"name": submit.tool_choice}}
            body["tool_choice"] = function if named else submit.tool_choice
        return body


@dataclass(slots=True)
class _Request:
    task: asyncio.Task[None]
    goes_on: asyncio.Event


@dataclass(slots=True)
class _Call:
    call_id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(slots=True)
class RemoteChannel:
    """One conversation's chat requests to the remote server, and its engine channel for all other requests."""

    _remote: RemoteChat
    _receive: Receive
    engine: Channel | None = None
    _requests: dict[str, _Request] = field(default_factory=dict)

    def receive(self, message: FromEngine | RequestsLost) -> None:
        """Pass on an engine message; if the engine is lost, cancel the chat requests, too."""
        if isinstance(message, RequestsLost):
            self._cancel_all()
        self._receive(message)

    def tell(self, message: ToEngine) -> FromEngine | None:
        """Send a command to the remote server or to the engine."""
        assert self.engine is not None
        match message:
            case Submit(task="chat"):
                goes_on = asyncio.Event()
                goes_on.set()
                task = asyncio.create_task(self._run(message, goes_on), name="remote chat")
                self._requests[message.request_id] = _Request(task, goes_on)
                return None
            case Cancel(request_id) if request_id in self._requests:
                self._requests.pop(request_id).task.cancel()
                return None
            case Pause(request_ids):
                for request_id in self._requests.keys() & set(request_ids):
                    self._requests[request_id].goes_on.clear()
                others = tuple(request_id for request_id in request_ids if request_id not in self._requests)
                return self.engine.tell(Pause(others)) if others else None
            case Resume(request_id) if request_id in self._requests:
                self._requests[request_id].goes_on.set()
                return None
        return self.engine.tell(message)

    def close(self) -> None:
        """Cancel all requests, at the remote server and in the engine."""
        self._cancel_all()
        if self.engine is not None:
            self.engine.close()

    def _cancel_all(self) -> None:
        requests = list(self._requests.values())
        self._requests.clear()
        for request in requests:
            request.task.cancel()

    async def _run(self, submit: Submit, goes_on: asyncio.Event) -> None:
        reason: FinishReason = "eos"
        calls: dict[int, _Call] = {}
        try:
            async for chunk in self._remote.stream(submit):
                await goes_on.wait()
                reason = self._read_chunk(submit, chunk, calls) or reason
            await goes_on.wait()
            for call in calls.values() if submit.tool_choice != "none" else ():  # some servers call tools all the same
                self._receive(ToolCall(submit.request_id, submit.epoch, call.call_id, call.name, call.arguments))
        except (RemoteFailed, ValueError, KeyError, TypeError, AttributeError) as error:
            # A malformed answer of the remote server fails that reply only. The text of a Python error may hold words
            # of the conversation, so only its type is logged.
            what = str(error) if isinstance(error, RemoteFailed) else type(error).__name__
            logger.warning(line("remote chat failed", session=submit.session, error=what))
            reason = "failed"
        self._requests.pop(submit.request_id, None)
        self._receive(Finished(submit.request_id, submit.epoch, reason, _NO_STATS))

    def _read_chunk(self, submit: Submit, chunk: dict[str, Any], calls: dict[int, _Call]) -> FinishReason | None:
        """Process one chunk; return how the answer ended, None if it goes on."""
        choices = chunk.get("choices")
        if not choices:
            return None
        choice = choices[0]
        delta = choice.get("delta") or {}
        if delta.get("content"):
            self._receive(Text(submit.request_id, submit.epoch, str(delta["content"])))
        for part in delta.get("tool_calls") or ():
            call = calls.setdefault(int(part.get("index", 0)), _Call())
            function = part.get("function") or {}
            call.call_id = part.get("id") or call.call_id
            call.name += function.get("name") or ""
            call.arguments += function.get("arguments") or ""
            if len(call.arguments) > limits.REMOTE_LINE_CHARACTERS:
                raise RemoteFailed("a tool call is too long")
        ended = choice.get("finish_reason")
        return _REASONS.get(ended, "eos") if ended else None


def _chunk(payload: str) -> dict[str, Any]:
    try:
        chunk = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise RemoteFailed("not JSON") from error
    if not isinstance(chunk, dict) or "error" in chunk:
        raise RemoteFailed("an error in the stream")
    return chunk


def _message(message: ChatMessage) -> dict[str, Any]:
    shape: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        shape["tool_calls"] = [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.call_id:
        shape["tool_call_id"] = message.call_id
    return shape
