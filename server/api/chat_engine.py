"""The engine's side of a text answer, whichever endpoint asks for it: a request in, its checked output out.

Chat completions and responses share it, so that priorities, limits, seeds and failures are the same in both.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager

from msgspec import structs

from voxlane.engine.api import Finished, SamplingParams, Started, Submit, Text, ToolCall
from voxlane.server.api.chat_reply import FINISH_REASONS, ChatOutput
from voxlane.server.api.chat_request import ChatRequest
from voxlane.server.api.service import Service
from voxlane.server.api.thoughts import ThoughtSplitter
from voxlane.server.engine_client.stream import Output, RequestStream
from voxlane.server.errors import InternalError, ModelFailed
from voxlane.server.tenants.accounts import Account

_SEED_MASK = (1 << 63) - 1

Outputs = AsyncGenerator[tuple[int, ChatOutput], None]
"""The outputs of all choices in order of arrival, each with the number of its choice.

The first one is the engine's word that it has begun: an error before it can still be an HTTP status.
"""


def check_allowed(service: Service, ask: ChatRequest, account: Account) -> None:
    """Raise the error of a request whose priority or model is not allowed or not there."""
    service.check_priority(ask.priority, account)
    service.check_model(ask.model, service.model_names, (), "chats")


@asynccontextmanager
async def submitted(
    service: Service, ask: ChatRequest, account: Account, request_id: str
) -> AsyncGenerator[Outputs, None]:
    """Submit a request's choices to the engine; leaving the context early cancels them."""
    async with AsyncExitStack() as stack:
        streams = [
            await stack.enter_async_context(service.engine.submit(_submit(service, ask, account, request_id, index)))
            for index in range(ask.choices)
        ]
        merged = await stack.enter_async_context(aclosing(_merged(streams)))
        yield await stack.enter_async_context(aclosing(_checked(merged, parallel_calls=ask.parallel_calls)))


def _submit(service: Service, ask: ChatRequest, account: Account, request_id: str, index: int) -> Submit:
    seed = ask.sampling.seed
    sampling: SamplingParams = structs.replace(
        ask.sampling,
        # The choices of one seed must differ from each other, and be the same when the request is repeated.
        seed=None if seed is None else (seed + index) & _SEED_MASK,
        max_tokens=service.ready.context_tokens if ask.max_tokens is None else ask.max_tokens,
    )
    return Submit(
        request_id=f"{request_id}-{index}",
        task="chat",
        messages=ask.messages,
        sampling=sampling,
        priority=ask.priority,
        deadline_s=ask.deadline_s,
        tenant=account.cache_salt(ask.cache_salt),
        tools=ask.tools,
        tool_choice=ask.tool_choice,
    )


async def _checked(outputs: AsyncGenerator[tuple[int, Output], None], *, parallel_calls: bool) -> Outputs:
    """Yield starts, text, thoughts, calls and ends; raise for a request that failed.

    A client that handles one call at a time gets the first of a choice only.
    """
    called: set[int] = set()
    splitters: defaultdict[int, ThoughtSplitter] = defaultdict(ThoughtSplitter)
    last: dict[int, Text] = {}
    async for index, output in outputs:
        if isinstance(output, Text):
            last[index] = output
            for part in splitters[index].push(output):
                yield index, part
            continue
        if isinstance(output, ToolCall | Finished):
            for part in splitters[index].finish(last.get(index)):
                yield index, part
        if isinstance(output, ToolCall):
            if index in called and not parallel_calls:
                continue
            called.add(index)
            yield index, output
        elif isinstance(output, Finished):
            yield index, _answered(output)
        elif isinstance(output, Started):
            yield index, output


def _answered(end: Finished) -> Finished:
    """Return the end of a request that was answered; raise for one that failed."""
    if end.reason == "failed":
        raise ModelFailed
    if end.reason not in FINISH_REASONS:
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
