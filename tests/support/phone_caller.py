"""A telephone system for tests: it speaks Twilio's protocol over a real WebSocket and plays sound by the clock.

It is written from Twilio's documents, and knows nothing of our player.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

STREAM, CALL = "MZ0123456789abcdef", "CA0123456789abcdef"
FRAME = 160  # μ-law bytes of 20 ms
SILENCE = b"\xff" * FRAME


class Caller:
    """One call. `played` is what the caller has heard, μ-law, without the silence between."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self.played = bytearray()
        self.clears: list[int] = []  # how much had been played at each clear
        self.marks: list[str] = []
        self.speaking: deque[bytes] = deque()  # frames to say next
        self.close_code: int | None = None
        self._buffer: deque[bytes | str] = deque()
        self._sequence = 1
        self._frames = 0
        self._tasks = [asyncio.create_task(self._receive()), asyncio.create_task(self._run())]

    async def send(self, message: dict[str, Any]) -> None:
        self._sequence += 1
        await self._socket.send(json.dumps({"sequenceNumber": str(self._sequence), "streamSid": STREAM, **message}))

    async def press(self, keys: str) -> None:
        for key in keys:
            await self.send({"event": "dtmf", "dtmf": {"track": "inbound_track", "digit": key}})

    async def media(self, frame: bytes) -> None:
        self._frames += 1
        payload = base64.b64encode(frame).decode()
        place = {"track": "inbound", "chunk": str(self._frames), "timestamp": str(20 * self._frames)}
        await self.send({"event": "media", "media": {**place, "payload": payload}})

    async def _receive(self) -> None:
        with suppress(ConnectionClosed):
            async for message in self._socket:
                await self._take(json.loads(message))
        self.close_code = self._socket.close_code

    async def _take(self, message: dict[str, Any]) -> None:
        assert message["streamSid"] == STREAM
        match message["event"]:
            case "media":
                data = base64.b64decode(message["media"]["payload"], validate=True)
                self._buffer.extend(data[at : at + 1] for at in range(len(data)))
            case "mark":
                self._buffer.append(message["mark"]["name"])
                await self._return_marks()
            case "clear":
                self.clears.append(len(self.played))
                names = [item for item in self._buffer if isinstance(item, str)]
                self._buffer.clear()
                for name in names:
                    await self._return_mark(name)
            case other:
                raise AssertionError(other)

    async def _run(self) -> None:
        """Play and speak 20 ms at a time, by the clock."""
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        with suppress(ConnectionClosed):
            while True:
                await self.media(self.speaking.popleft() if self.speaking else SILENCE)
                left = FRAME
                while left and self._buffer:
                    await self._return_marks()
                    if self._buffer:
                        item = self._buffer.popleft()
                        assert isinstance(item, bytes)
                        self.played += item
                        left -= 1
                await self._return_marks()
                due_s += 0.02
                await asyncio.sleep(max(0.0, due_s - loop.time()))

    async def _return_marks(self) -> None:
        while self._buffer and isinstance(self._buffer[0], str):
            await self._return_mark(str(self._buffer.popleft()))

    async def _return_mark(self, name: str) -> None:
        self.marks.append(name)
        await self.send({"event": "mark", "mark": {"name": name}})

    async def stop(self) -> None:
        await self.send({"event": "stop", "stop": {"accountSid": "AC", "callSid": CALL}})

    async def gone(self) -> int | None:
        """Wait for the server to hang up; return its close code."""
        await self._tasks[0]
        return self.close_code

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._socket.close()


def start(parameters: dict[str, str] | None = None) -> list[str]:
    """Return the first two messages of a call."""
    return [
        json.dumps({"event": "connected", "protocol": "Call", "version": "1.0.0"}),
        json.dumps(
            {
                "event": "start",
                "sequenceNumber": "1",
                "streamSid": STREAM,
                "start": {
                    "accountSid": "AC",
                    "streamSid": STREAM,
                    "callSid": CALL,
                    "tracks": ["inbound"],
                    "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
                    "customParameters": parameters or {},
                },
            }
        ),
    ]


@asynccontextmanager
async def calling(url: str, parameters: dict[str, str] | None = None, **options: Any) -> AsyncIterator[Caller]:
    """Ring a server and begin a call."""
    address = url.replace("http", "ws", 1).rstrip("/") + "/v1/phone"
    socket = await connect(address, compression=None, **options)
    for message in start(parameters):
        await socket.send(message)
    caller = Caller(socket)
    try:
        yield caller
    finally:
        await caller.close()
