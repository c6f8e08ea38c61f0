"""POST /v1/chat/completions: one HTTP request in, one engine request per choice, one answer or a stream of events.

Parameters are read by chat_request.py, answers are written by chat_reply.py.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing

from msgspec import structs
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from voxlane.engine.api import Finished, SamplingParams, Submit, Text, ToolCall
from voxlane.server.api import chat_reply, chat_request
from voxlane.server.api.chat_reply import ChatChoice, Envelope
from voxlane.server.api.chat_request import ChatRequest
from voxlane.server.api.disconnect import unless_disconnected
from voxlane.server.api.outgoing import EVENT_STREAM, Outgoing
from voxlane.server.engine_client.stream import Output, RequestStream
from voxlane.server.errors import InternalError, ModelFailed, VoxlaneError
from voxlane.server.http.body import read_object
from voxlane.server.http.middleware import account_of
from voxlane.server.http.reply import error_body, json_response, to_json
from voxlane.server.service import Service, service_of
from voxlane.server.tenants.accounts import Account

_SEED_MASK = (1 << 63) - 1


async def completions(request: Request) -> ChatResponse:
    """Answer POST /v1/chat/completions."""
    service = service_of(request)
    service.request_limit.check()  # if the request would be refused, do not read its body
    ask = chat_request.parse(await read_object(request, service.config.limits))
    account = account_of(request.scope)
    service.check_priority(ask.priority, account)
    service.check_model(ask.model, service.model_names, (), "chats")
    return ChatResponse(service, ask, account)


class ChatResponse:
    """The ASGI response to one chat request."""

    def __init__(self, service: Service, ask: ChatRequest, account: Account) -> None:
        assert service.engine.ready is not None
        self._service = service
        self._ask = ask
        self._salt = account.cache_salt(ask.cache_salt)
        self._with_logprobs = ask.sampling.logprobs >= 0
        self._calls = [0] * ask.choices
        self._envelope = Envelope(
            completion_id=f"chatcmpl-{secrets.token_hex(12)}",
            created=int(time.time()),
            model=ask.model or service.model_names[0],
            fingerprint=service.fingerprint,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the request; if the client leaves, cancel it in the engine."""
        # Admitted only with its whole body: a client that sends half a body must not take a place.
        with self._service.request_limit.admit():
            await unless_disconnected(receive, self._run(scope, receive, send))

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with AsyncExitStack() as stack:
            streams = [await stack.enter_async_context(self._submit(index)) for index in range(self._ask.choices)]
            outputs = await stack.enter_async_context(aclosing(_merged(streams)))
            outgoing = Outgoing(send, self._service.config.limits.write_s, EVENT_STREAM)
            if self._ask.stream:
                await self._send_events(outputs, outgoing)
            else:
                answer = json_response(await self._collect(outputs))
                await answer(scope, receive, outgoing.write)

    def _submit(self, index: int) -> RequestStream:
        ask, ready = self._ask, self._service.engine.ready
        assert ready is not None
        seed = ask.sampling.seed
        sampling: SamplingParams = structs.replace(
            ask.sampling,
            # The choices of one seed must differ from each other, and be the same when the request is repeated.
            seed=None if seed is None else (seed + index) & _SEED_MASK,
            max_tokens=ready.context_tokens if ask.max_tokens is None else ask.max_tokens,
        )
        return self._service.engine.submit(
            Submit(
                request_id=f"{self._envelope.completion_id}-{index}",
                task="chat",
                messages=ask.messages,
                sampling=sampling,
                priority=ask.priority,
                deadline_s=ask.deadline_s,
                tenant=self._salt,
                tools=ask.tools,
                tool_choice=ask.tool_choice,
            )
        )

    async def _collect(self, outputs: AsyncIterator[tuple[int, Output]]) -> dict[str, object]:
        choices = [ChatChoice() for _ in range(self._ask.choices)]
        async for index, output in outputs:
            if isinstance(output, Text):
                choices[index].add(output)
            elif isinstance(output, ToolCall) and self._count_call(index):
                choices[index].calls.append(output)
            elif isinstance(output, Finished):
                choices[index].end = _checked(output)
        return self._envelope.completion(choices, with_logprobs=self._with_logprobs)

    async def _send_events(self, outputs: AsyncIterator[tuple[int, Output]], outgoing: Outgoing) -> None:
        # The first output decides between an HTTP status and a stream: a refusal is still a plain error.
        first = await anext(outputs)
        try:
            await outgoing.event(self._chunk([chat_reply.opening(index) for index in range(self._ask.choices)]))
            ends: list[Finished] = []
            await self._output_event(outgoing, *first, ends)
            async for index, output in outputs:
                await self._output_event(outgoing, index, output, ends)
            if self._ask.include_usage:
                final: dict[str, object] = {"usage": chat_reply.usage(end.stats for end in ends)}
                await outgoing.event(to_json(self._envelope.chunk([], usage_field=final)))
            await outgoing.event(b"[DONE]")
        except VoxlaneError as error:
            await outgoing.event(to_json(error_body(error)))
        await outgoing.end()

    async def _output_event(self, outgoing: Outgoing, index: int, output: Output, ends: list[Finished]) -> None:
        if isinstance(output, Text):
            await outgoing.event(self._chunk([chat_reply.piece(index, output, with_logprobs=self._with_logprobs)]))
        elif isinstance(output, ToolCall) and self._count_call(index):
            await outgoing.event(self._chunk([chat_reply.call(index, output, self._calls[index] - 1)]))
        elif isinstance(output, Finished):
            ends.append(_checked(output))
            await outgoing.event(self._chunk([chat_reply.closing(index, output, calls=self._calls[index])]))

    def _count_call(self, index: int) -> bool:
        """Return whether one more call may be sent: a client that handles one at a time gets the first only."""
        if self._calls[index] and not self._ask.parallel_calls:
            return False
        self._calls[index] += 1
        return True

    def _chunk(self, choices: list[dict[str, object]]) -> bytes:
        usage_field: dict[str, object] | None = {"usage": None} if self._ask.include_usage else None
        return to_json(self._envelope.chunk(choices, usage_field=usage_field))


def _checked(end: Finished) -> Finished:
    """Return the end of a request that was answered; raise for one that failed."""
    if end.reason == "failed":
        raise ModelFailed
    if end.reason not in chat_reply.FINISH_REASONS:
        raise InternalError(detail=f"engine finished with {end.reason}")
    return end


async def _merged(streams: Sequence[RequestStream]) -> AsyncGenerator[tuple[int, Output], None]:
    """Yield the outputs of all streams in order of arrival."""
    if len(streams) == 1:
        async for output in streams[0]:
            yield 0, output
        return
    pending = {asyncio.ensure_future(anext(stream, None)): index for index, stream in enumerate(streams)}
    try:
        while pending:
            done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                index = pending.pop(task)
                if (more := task.result()) is not None:
                    pending[asyncio.ensure_future(anext(streams[index], None))] = index
                    yield index, more
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
