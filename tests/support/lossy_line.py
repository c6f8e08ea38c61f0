"""The line between a page and its server, in a test's hands: it can break, and carries files that are not the server's.

Bytes pass unchanged. It knows no more of HTTP than how a request begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from relay import CHUNK_BYTES, Relay, pump


class LossyLine(Relay):
    """Carries everything but the scripts, by path, that it answers itself."""

    def __init__(self, url: str, scripts: Mapping[str, str] | None = None) -> None:
        super().__init__(url, "lossy line")
        self._answers = {f"GET {path} ".encode(): _answer(text) for path, text in (scripts or {}).items()}
        self._writers: set[asyncio.StreamWriter] = set()
        self._lost = False

    def lose(self) -> None:
        """Break all connections, and let none live until it is mended."""
        self._loop.call_soon_threadsafe(self._break)

    def mend(self) -> None:
        """Carry what comes from now on."""
        self._loop.call_soon_threadsafe(self._mend)

    def _break(self) -> None:
        self._lost = True
        for writer in self._writers:
            writer.transport.abort()

    def _mend(self) -> None:
        self._lost = False

    async def _end(self) -> None:
        self._break()
        await asyncio.gather(*self._tasks)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self._lost:
                raise ConnectionAbortedError
            up_reader, up_writer = await self._open_upstream()
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, up_writer}
        self._writers |= ends
        try:
            await asyncio.gather(self._ask(reader, writer, up_writer), pump(up_reader, writer))
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
