"""Telephone systems for tests: the far end of a call, over a real connection, that plays sound by the clock.

`Caller` is what all systems share; Twilio's is here, the others are in phone_systems.py. They are written from the
documents and sources of the systems, and know nothing of our codecs and our player.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, ClassVar, Protocol, Self

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

STREAM, CALL = "MZ0123456789abcdef", "CA0123456789abcdef"
TICK_S = 0.02
PULSE_S = 0.005

Message = str | bytes


class Wire(Protocol):
    """The connection of a call."""

    @property
    def close_code(self) -> int | None: ...

    async def send(self, message: Message) -> None: ...

    async def receive(self) -> Message | None: ...

    async def close(self, code: int = 1000) -> None: ...

    def drop(self) -> None: ...


class WebSocketWire:
    """A WebSocket."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    @property
    def close_code(self) -> int | None:
        return self._socket.close_code

    @property
    def subprotocol(self) -> str | None:
        return self._socket.subprotocol

    async def send(self, message: Message) -> None:
        with suppress(ConnectionClosed):
            await self._socket.send(message)

    async def receive(self) -> Message | None:
        try:
            return await self._socket.recv()
        except ConnectionClosed:
            return None

    async def close(self, code: int = 1000) -> None:
        await self._socket.close(code)

    def drop(self) -> None:
        """Break the connection without a close."""
        self._socket.transport.abort()


class NoWire:
    """No connection: the messages of a system are only made."""

    close_code: int | None = None

    async def send(self, message: Message) -> None:
        return

    async def receive(self) -> Message | None:
        return None

    async def close(self, code: int = 1000) -> None:
        return

    def drop(self) -> None:
        return


class Playout:
    """Sound that waits to be played, with marks among it; a tick each 20 ms hands out a frame.

    The ticks are those of an ideal clock: `run` makes up for all that are due, however late it is called.
    """

    def __init__(self, frame_bytes: int, now: float) -> None:
        self.frame_bytes = frame_bytes
        self.played = bytearray()  # all that was handed out, without the silence between
        self.sounding = False  # the last tick had sound
        self._queue = bytearray()
        self._marks: deque[tuple[int, str]] = deque()  # bytes before it in all, and its name
        self._in = self._out = 0  # bytes that came, and that left
        self._began_s = now
        self._ticks = 0

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, data: bytes) -> None:
        self._queue += data
        self._in += len(data)

    def mark(self, name: str) -> None:
        self._marks.append((self._in, name))

    def clear(self) -> list[str]:
        """Discard all that waits; return the names of the marks among it."""
        self._queue.clear()
        self._out = self._in
        names = [name for _, name in self._marks]
        self._marks.clear()
        return names

    def due(self, now: float) -> bool:
        """Return whether a tick is due, and count it."""
        if self._began_s + self._ticks * TICK_S > now:
            return False
        self._ticks += 1
        return True

    @property
    def next_s(self) -> float:
        return self._began_s + self._ticks * TICK_S

    def tick(self) -> list[str]:
        """Hand out a frame; return the marks whose sound is over."""
        reached = self.reached()
        frame = bytes(self._queue[: self.frame_bytes])
        del self._queue[: len(frame)]
        self._out += len(frame)
        self.played += frame
        self.sounding = bool(frame)
        return reached

    def reached(self) -> list[str]:
        names = []
        while self._marks and self._marks[0][0] <= self._out:
            names.append(self._marks.popleft()[1])
        return names


class Caller:
    """One call.

    `clears` says how much had been played at each clear, in bytes. `wrong` names what the far end would refuse.
    """

    system: ClassVar[str]
    codec: ClassVar[str] = "mulaw"
    rate: ClassVar[int] = 8_000
    silence: ClassVar[bytes] = b"\xff"
    spoken_ms: ClassVar[int] = 20  # sound in one message from here
    subprotocols: ClassVar[tuple[str, ...]] = ()

    def __init__(self, wire: Wire, parameters: dict[str, str] | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.wire = wire
        self.parameters = parameters or {}
        self.line = Playout(self.frame_bytes(), loop.time())
        self.clears: list[int] = []
        self.marks: list[str] = []
        self.wrong: list[str] = []
        self.speaking: deque[bytes] = deque()  # frames to say next
        self.lag_s = 0.0  # how late this machine has let anything here run, at most
        self.open = True  # the caller has not hung up
        self.close_code: int | None = None
        self.said = bytearray()  # all sound that was sent, in its true order
        self._microphone = bytearray()
        self._outbox: asyncio.Queue[Message] = asyncio.Queue()
        self._loop = loop
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    def width(cls) -> int:
        return 2 if cls.codec == "pcm16" else 1

    @classmethod
    def frame_bytes(cls) -> int:
        return round(cls.rate * TICK_S) * cls.width()

    @classmethod
    @asynccontextmanager
    async def calling(cls, url: str, parameters: dict[str, str] | None = None, **options: Any) -> AsyncIterator[Self]:
        """Ring a server, begin a call, and hang up at the end if nobody has."""
        caller = cls(await cls._connected(url, **options), parameters)
        try:
            caller.begin()
            yield caller
        finally:
            await caller.close()

    @classmethod
    async def _connected(cls, url: str, **options: Any) -> Wire:
        address = url.replace("http", "ws", 1).rstrip("/") + "/v1/phone"
        offered = [Subprotocol(name) for name in cls.subprotocols] or None
        return WebSocketWire(await connect(address, compression=None, subprotocols=offered, **options))

    # ---- what each system does its own way

    def start(self) -> list[Message]:
        """Return the first messages of a call."""
        raise NotImplementedError

    def take(self, message: Message) -> None:
        """Take a message of the server."""
        raise NotImplementedError

    def speak(self, sound: bytes) -> None:
        """Send the caller's sound."""
        raise NotImplementedError

    def press_one(self, key: str) -> None:
        """Send a key."""
        raise NotImplementedError

    def return_mark(self, name: str) -> None:
        """Say that a mark was reached."""
        raise NotImplementedError

    def flood(self, name: str) -> None:
        """Send what nobody has asked for."""
        self.return_mark(name)

    async def hang_up(self) -> None:
        """End the call on this side, as the system does."""
        await self.leave()

    @property
    def streams(self) -> bool:
        """Whether the caller's sound is sent."""
        return True

    # ---- what they share

    @property
    def played(self) -> bytearray:
        return self.line.played

    def begin(self) -> None:
        for message in self.start():
            self.post(message)
        self._tasks = [asyncio.create_task(one) for one in (self._receive(), self._run(), self._send(), self._pulse())]

    def post(self, message: Message) -> None:
        self._outbox.put_nowait(message)

    async def press(self, keys: str) -> None:
        for key in keys:
            self.press_one(key)

    def clear(self) -> list[str]:
        """Discard what was not played; return the names of the marks among it."""
        self.clears.append(len(self.played))
        return self.line.clear()

    def run(self) -> None:
        """Let all ticks pass that are due."""
        now = self._loop.time()
        while self.line.due(now):
            self.tick()

    def tick(self) -> None:
        for name in self.line.tick():
            self.marked(name)
        if self.open and self.streams:
            silent = self.silence * (self.frame_bytes() // len(self.silence))
            self._microphone += self.speaking.popleft() if self.speaking else silent
            if len(self._microphone) >= self.frame_bytes() * self.spoken_ms // 20:
                self.said += self._microphone
                self.speak(bytes(self._microphone))
                self._microphone.clear()

    def waiting(self) -> list[Message]:
        """Return the messages that were not sent, and forget them."""
        return [self._outbox.get_nowait() for _ in range(self._outbox.qsize())]

    def marked(self, name: str) -> None:
        self.marks.append(name)
        self.return_mark(name)

    def mark(self, name: str) -> None:
        """Take a mark; one with no sound before it comes back at once."""
        self.line.mark(name)
        if not len(self.line) and not self.line.sounding:
            for reached in self.line.reached():
                self.marked(reached)

    async def _receive(self) -> None:
        while (message := await self.wire.receive()) is not None:
            self.run()
            self.take(message)
        self.open = False
        self.close_code = self.wire.close_code

    async def _run(self) -> None:
        while True:
            self.run()
            await asyncio.sleep(max(0.0, self.line.next_s - self._loop.time()))

    async def _send(self) -> None:
        while True:
            await self.wire.send(await self._outbox.get())
            self._outbox.task_done()

    async def _pulse(self) -> None:
        while True:
            due_s = self._loop.time() + PULSE_S
            await asyncio.sleep(PULSE_S)
            self.lag_s = max(self.lag_s, self._loop.time() - due_s)

    async def leave(self, code: int = 1000) -> None:
        """Send what waits, and close the connection."""
        self.open = False
        await self._outbox.join()
        await self.wire.close(code)

    async def gone(self) -> int | None:
        """Wait for the end of the connection; return its close code."""
        await self._tasks[0]
        return self.close_code

    async def close(self) -> None:
        self.open = False
        for task in self._tasks:
            task.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.wire.close()
        for one in ended:
            if isinstance(one, Exception):
                raise one


class TwilioCaller(Caller):
    """Twilio Media Streams. A clear returns all marks at once."""

    system = "twilio"

    def __init__(self, wire: Wire, parameters: dict[str, str] | None = None) -> None:
        super().__init__(wire, parameters)
        self._sequence = 1
        self._frames = 0

    def start(self) -> list[Message]:
        return list(start(self.parameters))

    def put(self, message: dict[str, Any]) -> None:
        self._sequence += 1
        self.post(json.dumps({"sequenceNumber": str(self._sequence), "streamSid": STREAM, **message}))

    async def send(self, message: dict[str, Any]) -> None:
        self.put(message)

    def press_one(self, key: str) -> None:
        self.put({"event": "dtmf", "dtmf": {"track": "inbound_track", "digit": key}})

    def speak(self, sound: bytes) -> None:
        self._frames += 1
        payload = base64.b64encode(sound).decode()
        place = {"track": "inbound", "chunk": str(self._frames), "timestamp": str(20 * self._frames)}
        self.put({"event": "media", "media": {**place, "payload": payload}})

    def take(self, message: Message) -> None:
        body = json.loads(message)
        if body["streamSid"] != STREAM:
            self.wrong.append("a foreign stream")
        match body["event"]:
            case "media":
                self.line.add(base64.b64decode(body["media"]["payload"], validate=True))
            case "mark":
                self.mark(body["mark"]["name"])
            case "clear":
                for name in self.clear():
                    self.marked(name)
            case other:
                self.wrong.append(other)

    def return_mark(self, name: str) -> None:
        self.put({"event": "mark", "mark": {"name": name}})

    async def stop(self) -> None:
        self.open = False
        self.put({"event": "stop", "stop": {"accountSid": "AC", "callSid": CALL}})

    async def hang_up(self) -> None:
        await self.stop()
        await self.leave()


def start(parameters: dict[str, str] | None = None) -> list[str]:
    """Return the first two messages of a call on Twilio."""
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


calling = TwilioCaller.calling
"""Ring a server and begin a call on Twilio."""
