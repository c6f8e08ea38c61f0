"""Feed text to one `tts` request clause by clause, and pass its samples on at the pace of their consumer.

A consumer that reads slowly pauses the request, so that an hour of speech never lies in memory.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable

from voxlane.engine.api import Finished, RequestStats, Samples
from voxlane.server.audio.feeding import checked, feed_beside
from voxlane.server.conversation.replies.clauses import Clause, ClauseCutter
from voxlane.server.engine_client.stream import RequestStream
from voxlane.server.errors import InvalidRequest
from voxlane.server.limits import SPEECH_CHARACTERS

PAUSE_BYTES = 4 * 1024 * 1024
"""The request is paused when this much waits for the consumer: about a minute and a half of speech."""

RESUME_BYTES = PAUSE_BYTES // 2
"""The request is resumed when this much still waits: many clauses, so that the consumer notices nothing."""

DELTA_CHARACTERS = 512
"""Characters cut into clauses at once: a millisecond or two of work."""


LONGEST_SECONDS = (30.0, 2.0)
"""A text is spoken in less than this, and this for each character, at the usual speed: a digit or a sign is a word."""


def longest_s(text: str, speed: float) -> float:
    """Return a time that no voice needs for a text."""
    base, each = LONGEST_SECONDS
    return (base + each * len(text)) / min(speed, 1.0)


def is_one_clause(text: str) -> bool:
    """Return whether a text is spoken in one piece."""
    if len(text) > DELTA_CHARACTERS:
        return False
    cutter = ClauseCutter()
    clauses = [*cutter.push(text), *cutter.finish()]
    return sum(not clause.silent for clause in clauses) <= 1


async def speak(
    stream: RequestStream, text: AsyncIterator[str], take: Callable[[Samples], Awaitable[None]]
) -> RequestStats:
    """Feed the text as it comes, pass the samples in order to `take`, and return the request's statistics."""
    backlog = _Backlog(stream)

    async def feed() -> None:
        cutter = ClauseCutter()
        length = 0
        async for delta in text:
            length += len(delta)
            # All of a text may wait in the engine at once; the engine refuses longer texts.
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
    """Return a clause's text for the engine; a silent one becomes blanks, because word times count every character."""
    return _VISIBLE.sub(" ", clause.text) if clause.silent else clause.text


_VISIBLE = re.compile(r"\S")


class _Backlog:
    """Samples that wait for their consumer; pauses the request while there are too many."""

    def __init__(self, stream: RequestStream) -> None:
        self._stream = stream
        self._waiting: deque[Samples | Finished] = deque()
        self._bytes = 0
        self._paused = False
        self._arrived = asyncio.Event()

    async def fill(self) -> None:
        """Take the engine's output."""
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
        """Pass the output to `take`, up to its end."""
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
    """Yield a complete text in parts; other tasks run in between, because cutting 100,000 characters takes a while."""
    for start in range(0, len(text), DELTA_CHARACTERS):
        yield text[start : start + DELTA_CHARACTERS]
        await asyncio.sleep(0)
