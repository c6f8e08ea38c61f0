"""A microphone in real time: silence at 24 kHz, and clips that are said into it.

Standard library only, so that a client's own environment can run it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable

RATE = 24_000
FRAME_S = 0.04
FRAME_BYTES = int(RATE * FRAME_S) * 2


class Microphone:
    """Sends a frame of 16-bit samples every 40 ms."""

    def __init__(self) -> None:
        self._queued = b""
        self._over = threading.Event()

    def say(self, pcm: bytes) -> None:
        """Queue a clip behind those that are being said."""
        self._queued += pcm

    async def run(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        """Send until cancelled."""
        due = time.monotonic()
        while True:
            await send(self._frame())
            due += FRAME_S
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    def run_blocking(self, send: Callable[[bytes], None]) -> None:
        """Send until another thread calls `close`."""
        due = time.monotonic()
        while not self._over.wait(max(0.0, due - time.monotonic())):
            send(self._frame())
            due += FRAME_S

    def close(self) -> None:
        """End `run_blocking`."""
        self._over.set()

    def _frame(self) -> bytes:
        frame, self._queued = self._queued[:FRAME_BYTES], self._queued[FRAME_BYTES:]
        return frame.ljust(FRAME_BYTES, b"\0")
