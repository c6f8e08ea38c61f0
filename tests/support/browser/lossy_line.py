"""A relay between a page and its server: a test can break it, and it can serve some files itself.

All other bytes pass unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from relay import CHUNK_BYTES, Relay, pump


class LossyLine(Relay):
    """Relays everything except requests for the given scripts, by path, which it answers itself."""

    def __init__(self, url: str, scripts: Mapping[str, str] | None = None) -> None:
        super().__init__(url, "lossy line")
        self._answers = {f"GET {path} ".encode(): _answer(text) for path, text in (scripts or {}).items()}
        self._writers: set[asyncio.StreamWriter] = set()
        self._lost = False

    def lose(self) -> None:
        """Break all connections, and new ones until `mend`."""
        self._loop.call_soon_threadsafe(self._break)

    def mend(self) -> None:
        """Relay new connections again."""
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
        """Relay the page's bytes, except requests that are answered here. Browsers do not send two requests at once."""
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
        except OSError:  # one side is gone; the other side ends by itself
            up_writer.close()


def _answer(script: str) -> bytes:
    body = script.encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: text/javascript\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
