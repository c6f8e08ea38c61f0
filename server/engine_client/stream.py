"""One request's messages in both directions: its output from the engine, its input and control to the engine."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

from voxlane.engine.api import (
    Append,
    Cancel,
    EndInput,
    Finished,
    Pause,
    Pieces,
    Probability,
    Resume,
    Samples,
    Started,
    Text,
    ToEngine,
    ToolCall,
    VoiceMade,
    Words,
)
from voxlane.server.errors import VoxlaneError

Output = Started | Text | Words | Samples | Pieces | ToolCall | Probability | VoiceMade | Finished


class ReceivedMessages:
    """The received messages of one request that were not read yet. Bounded by the output that the request asked for."""

    __slots__ = ("_items", "_waiter", "ended")

    def __init__(self) -> None:
        self._items: deque[Output | VoxlaneError] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self.ended = False

    def put(self, item: Output | VoxlaneError) -> None:
        """Add a message; nothing may follow an end."""
        self.ended = isinstance(item, (Finished, VoxlaneError))
        self._items.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> Output | VoxlaneError:
        """Return the oldest message; wait for one if there is none."""
        while not self._items:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._items.popleft()


class RequestStream:
    """One request's output: Started, …, Finished. Leaving it early cancels the request in the engine.

    Input for a request that has ended is dropped: its sender learns of the end by reading.
    """

    def __init__(self, request_id: str, inbox: ReceivedMessages, send: Callable[[ToEngine], None]) -> None:
        self.request_id = request_id
        self._inbox = inbox
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._done = False
        self._closed = False

    def append(self, *, audio: bytes = b"", text: str = "") -> None:
        """Send the request more audio or text. The caller limits how far this gets ahead of the engine."""
        self._tell(Append(self.request_id, audio, text))

    def end_input(self) -> None:
        """End the request's input."""
        self._tell(EndInput(self.request_id))

    def pause(self) -> None:
        """Take the request out of the engine's next step; what is already on its way still arrives."""
        self._tell(Pause((self.request_id,)))

    def resume(self) -> None:
        """Resume a paused request."""
        self._tell(Resume(self.request_id))

    def _tell(self, message: ToEngine) -> None:
        if not self._closed and not self._inbox.ended:
            self._send(message)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Output:
        if self._done or self._closed:
            raise StopAsyncIteration
        item = await self._inbox.get()
        self._done = isinstance(item, (Finished, VoxlaneError))
        if isinstance(item, VoxlaneError):
            raise item
        return item

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the stream; cancel the request unless it has ended."""
        if not self._closed:
            self._closed = True
            self._send(Cancel(self.request_id))

    def __del__(self) -> None:
        # A stream dropped without `async with` must not keep the engine busy; the collector may run in any thread.
        if not self._closed and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._send, Cancel(self.request_id))
