"""What all connections of conversations do alike, WebSockets as well as telephone lines: they meter what comes, run a
reader and a writer until the first end, and tell a client's error from a bug of ours.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from voxlane.codecs.errors import InvalidAudio
from voxlane.server.errors import InternalError, InvalidRequest, TooFast, TooLarge, VoxlaneError
from voxlane.server.http.buckets import Bucket
from voxlane.server.log import line
from voxlane.server.protocols.dialect import BadMessage, RateLimits

logger = logging.getLogger(__name__)

Work = Coroutine[Any, Any, VoxlaneError | None]


class ConversationDriver:
    """One connection that writes a conversation's messages; a `ConversationWriter`."""

    kind = "voice"  # begins the names of its tasks
    leaves_by_itself = False
    gone: type[Exception]  # raised by reading and writing if the far end is gone

    def __init__(self, rate_limits: RateLimits, address: str, caught: Callable[[], None]) -> None:
        """Tell `caught` of errors that nothing foresaw."""
        self._rate_limits = rate_limits
        self._address = address
        self._caught = caught
        self._loop = asyncio.get_running_loop()
        self._began_s = self._read_s = self._loop.time()
        self._bytes = Bucket(rate_limits.bytes_per_s, rate_limits.bytes_burst, self._began_s)
        self._audio_began_s: float | None = None
        self._message_waits = asyncio.Event()
        self._ended: asyncio.Future[VoxlaneError | None] = self._loop.create_future()

    def notify(self) -> None:
        """Wake the writer: a message waits."""
        self._message_waits.set()

    def end(self, error: VoxlaneError) -> None:
        """Close the connection with an error."""
        if not self._ended.done():
            self._ended.set_result(error)

    async def _serve(self, read: Work, write: Work) -> VoxlaneError | None:
        """Read and write until one of them, or the conversation, ends; return the error that ended it."""
        reader = asyncio.create_task(read, name=f"{self.kind} read")
        writer = asyncio.create_task(write, name=f"{self.kind} write")
        try:
            await asyncio.wait({reader, writer, self._ended}, return_when=asyncio.FIRST_COMPLETED)
            if self._ended.done():
                return self._ended.result()
            return await (reader if reader.done() else writer)
        except self.gone:
            raise
        except Exception as raised:  # noqa: BLE001
            return self._error_of(raised)
        finally:
            for task in (reader, writer):
                task.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)

    def _error_of(self, raised: Exception) -> VoxlaneError:
        """Return what ends a connection after this exception. A bug ends no other connection."""
        match raised:
            case BadMessage() | InvalidAudio():
                return InvalidRequest(str(raised))
            case VoxlaneError():
                return raised
            case _:
                logger.error(line("bug", client=self._address, error=type(raised).__name__), exc_info=raised)
                self._caught()
                return InternalError()

    def _count(self, size: int) -> None:
        """Check a message's size against the limits."""
        self._read_s = now = self._loop.time()
        if size > self._rate_limits.frame_bytes:
            raise TooLarge(f"A message has at most {self._rate_limits.frame_bytes} bytes.")
        if not self._bytes.spend(size, now):
            raise TooFast(f"At most {self._rate_limits.bytes_per_s} bytes a second.")

    def _check_audio_rate(self, seconds: float) -> None:
        """Raise TooFast if more audio has come than time has passed, with room for jitter."""
        now = self._loop.time()
        if self._audio_began_s is None:
            self._audio_began_s = now
        if seconds > (now - self._audio_began_s) * self._rate_limits.audio_rate + self._rate_limits.audio_burst_s:
            raise TooFast("Audio comes faster than it can be spoken.")
