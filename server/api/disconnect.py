"""Work and sends for a client that may leave or stop reading; over ASGI's receive and send."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

from starlette.types import Message, Receive, Send

from voxlane.server.http.body import ClientGone

Result = TypeVar("Result")


async def unless_disconnected(receive: Receive, work: Coroutine[None, None, Result]) -> Result:
    """Run `work` to its end; when the client leaves first, cancel it and raise ClientGone."""
    task = asyncio.create_task(work, name="answer")
    watcher = asyncio.create_task(_disconnect(receive), name="disconnect watcher")
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        task.cancel()
        watcher.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def send_within(send: Send, message: Message, seconds: float) -> None:
    """Send, and raise ClientGone when the client does not read for `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            await send(message)
    except TimeoutError as error:
        raise ClientGone from error


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
