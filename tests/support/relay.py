"""A relay on its own port between a client and a real server, with its event loop in a thread.

Subclasses look at the bytes or change them.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable
from typing import Self
from urllib.parse import urlsplit

CHUNK_BYTES = 65536


class Relay:
    """Listens at `url` as long as the context lasts."""

    def __init__(self, url: str, name: str, tls: ssl.SSLContext | None = None) -> None:
        self.url = ""
        self._tls = tls  # for clients that insist on it; the server gets what they say in plain
        self._upstream = urlsplit(url)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name)
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        self.url = f"{'https' if self._tls else 'http'}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        raise NotImplementedError

    async def _end(self) -> None:
        """End all open connections."""
        raise NotImplementedError

    async def _open_upstream(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self._upstream.hostname, self._upstream.port)

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            await self._relay(reader, writer)
        finally:
            writer.close()

    async def _close(self) -> None:
        self._server.close()
        await self._end()
        await asyncio.sleep(0)
        # A browser may have connected in the last moment: asyncio's own task still makes a connection of that.
        while left := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.sleep(0)  # each of them has begun
            for task in left & self._tasks:
                task.cancel()
            await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(0)  # transports close in the next turn of the loop


async def pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hear: Callable[[bytes], object] = bytes
) -> None:
    """Relay bytes until there are no more; `hear` gets them first."""
    try:
        while data := await reader.read(CHUNK_BYTES):
            hear(data)
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:  # one side is gone; the other side ends by itself
        writer.close()
