"""The line between a page and its server, in a test's hands: it can break, and carries files that are not the server's.

Bytes pass unchanged. It knows no more of HTTP than how a request begins.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Self
from urllib.parse import urlsplit

CHUNK_BYTES = 65536


class LossyLine:
    """Listens on a port of its own as long as the context lasts."""

    def __init__(self, url: str, scripts: Mapping[str, str] | None = None) -> None:
        self._upstream = urlsplit(url)
        self._answers = {f"GET {path} ".encode(): _answer(text) for path, text in (scripts or {}).items()}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lossy line")
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._lost = False
        self.url = ""

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def lose(self, seconds: float) -> None:
        """Break all connections, and let none live for so long."""
        self._loop.call_soon_threadsafe(self._break)
        self._loop.call_soon_threadsafe(self._loop.call_later, seconds, self._mend)

    def _break(self) -> None:
        self._lost = True
        for writer in self._writers:
            writer.transport.abort()

    def _mend(self) -> None:
        self._lost = False

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._relay, "127.0.0.1", 0)

    async def _close(self) -> None:
        self._server.close()
        self._break()
        await asyncio.gather(*self._tasks)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            if self._lost:
                raise ConnectionAbortedError
            up_reader, up_writer = await asyncio.open_connection(self._upstream.hostname, self._upstream.port)
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, up_writer}
        self._writers |= ends
        try:
            await asyncio.gather(self._ask(reader, writer, up_writer), _pump(up_reader, writer))
        finally:
            self._writers -= ends
            for each in ends:
                each.close()

    async def _ask(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, up_writer: asyncio.StreamWriter
    ) -> None:
        """Pass the page's bytes on, but for requests that are answered here: browsers do not send two at once."""
        try:
            while data := await reader.read(CHUNK_BYTES):
                answer = next((text for begin, text in self._answers.items() if data.startswith(begin)), None)
                if answer is None:
                    up_writer.write(data)
                    await up_writer.drain()
                else:
                    writer.write(answer)
            if up_writer.can_write_eof():
                up_writer.write_eof()
        except OSError:  # one side left: the other is told by its own end
            up_writer.close()


def _answer(script: str) -> bytes:
    body = script.encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: text/javascript\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:
        writer.close()
