"""Text to one `tts` request, clause by clause; its samples come out as fast as they are taken and not much faster.

A listener who reads slowly pauses the engine's work, so that an hour of speech never lies in memory. It knows clauses
and samples; it does not know formats, players or HTTP.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable

from voxlane.engine.api import Finished, RequestStats, Samples
from voxlane.server.audio.feeding import checked, feed_beside
from voxlane.server.conversation.speech import Clause, ClauseCutter
from voxlane.server.engine_client.stream import RequestStream
from voxlane.server.errors import InvalidRequest
from voxlane.server.limits import SPEECH_CHARACTERS

PAUSE_BYTES = 4 * 1024 * 1024
"""Samples that wait for the listener when the engine is told to pause: about a minute and a half of speech."""

RESUME_BYTES = PAUSE_BYTES // 2
"""Samples that still wait when it may go on: many clauses' worth, so that the listener never notices."""

DELTA_CHARACTERS = 512
"""How much of a text is cut into clauses at once: a millisecond or two."""


async def speak(
    stream: RequestStream, text: AsyncIterator[str], take: Callable[[Samples], Awaitable[None]]
) -> RequestStats:
    """Say the text as it comes, give the samples in order to `take`, and return what it cost."""
    backlog = _Backlog(stream)

    async def feed() -> None:
        cutter = ClauseCutter()
        length = 0
        async for delta in text:
            length += len(delta)
            # All of a text may wait in the engine at once; beyond this it would take the request for a mistake.
            if length > SPEECH_CHARACTERS:
                raise InvalidRequest(f"The text is longer than {SPEECH_CHARACTERS} characters.", param="input")
            for clause in cutter.push(delta):
                stream.append(text=_to_say(clause))
        for clause in cutter.finish():
            stream.append(text=_to_say(clause))
        stream.end_input()

    async def listen() -> RequestStats:
        return await feed_beside(backlog.fill(), backlog.drain(take))

    return await feed_beside(feed(), listen())


def _to_say(clause: Clause) -> str:
    """Return what the engine gets: blanks for a silent clause, as word times count every character."""
    return _VISIBLE.sub(" ", clause.text) if clause.silent else clause.text


_VISIBLE = re.compile(r"\S")


class _Backlog:
    """Samples between the engine and a listener: pauses the request while too much waits."""

    def __init__(self, stream: RequestStream) -> None:
        self._stream = stream
        self._waiting: deque[Samples | Finished] = deque()
        self._bytes = 0
        self._paused = False
        self._arrived = asyncio.Event()

    async def fill(self) -> None:
        """Take what the engine makes."""
        async for output in self._stream:
            if isinstance(output, Samples):
                self._bytes += len(output.pcm)
                if self._bytes > PAUSE_BYTES and not self._paused:
                    self._paused = True
                    self._stream.pause()
            if isinstance(output, (Samples, Finished)):
                self._waiting.append(output)
                self._arrived.set()

    async def drain(self, take: Callable[[Samples], Awaitable[None]]) -> RequestStats:
        """Hand it on, up to the end."""
        while True:
            while not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
            output = self._waiting.popleft()
            if isinstance(output, Finished):
                return checked(output).stats
            await take(output)
            self._bytes -= len(output.pcm)
            if self._paused and self._bytes < RESUME_BYTES:
                self._paused = False
                self._stream.resume()


async def whole(text: str) -> AsyncIterator[str]:
    """Yield a text that is all there, and let others work in between: cutting 100,000 characters takes a while."""
    for start in range(0, len(text), DELTA_CHARACTERS):
        yield text[start : start + DELTA_CHARACTERS]
        await asyncio.sleep(0)
