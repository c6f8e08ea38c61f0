"""A telephone call in virtual time: the server's real code between a line with an echo and a recogniser.

`PhoneCall`, `LinePlayer`, `LineMicrophone`, the conversation and its ear run as in the server. The line speaks Twilio's
messages: mu-law at 8 kHz in packets of 20 ms, a way there and a way back, marks, clear. The recogniser is the real one;
it answers after a fixed time, so that two runs are alike. The chat model and the voice are recordings.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import cycle
from typing import TypeVar

import numpy as np
from support.ears.corpus import RATE, Sound, resample

from voxlane.codecs.g711 import decode_mulaw, encode_mulaw
from voxlane.codecs.pcm import Floats, encode_pcm16
from voxlane.engine.api import (
    Append,
    Cancel,
    EndInput,
    Finished,
    FromEngine,
    Probability,
    Ready,
    RequestStats,
    Samples,
    Submit,
    Text,
    ToEngine,
)
from voxlane.engine.loop.core import Core
from voxlane.server.config import Config, PhoneConfig, PhoneKeys, VoiceConfig
from voxlane.server.conversation.server_events import FloorState, ServerEvent
from voxlane.server.engine_client.engine_client import EngineClient
from voxlane.server.phone.call import PhoneCall
from voxlane.server.phone.phone_service import PhoneService
from voxlane.server.protocols.phone.line_events import Message
from voxlane.server.protocols.phone.systems import recognise
from voxlane.server.sessions.registry import SessionRegistry
from voxlane.server.tenants.accounts import Tenants
from voxlane.server.watching.metrics import Metrics

LINE_RATE = 8_000
PACKET = 160  # samples
PACKET_S = PACKET / LINE_RATE
LOUD = 0.01  # of full scale: sound above it is no silence
COMFORT_DB = -62.0  # the noise of a line in dB of full scale
THINKS_S = 0.3  # until the chat model answers
DECODES_S = 0.08  # until the recogniser answers
STREAM = "MZ0123456789abcdef"

E = TypeVar("E", bound=ServerEvent)

_STATS = RequestStats(0, 0, 0, 0.0, 0.0, 0.0, 0.0, 0)


# ---- the engine


class CallEngine(EngineClient):
    """The engine of one call: a real recogniser, and recordings as the replies."""

    def __init__(self, core: Core, replies: Sequence[Sound]) -> None:
        super().__init__()
        self.state = "ready"
        model = ("stand-in", "stand-in", 1, 4096, "none", "none", 1, 1, 1, "cpu")
        self._ready = Ready(*model, "moonshine", ("en",), "recordings", RATE, ("one",))
        self._core = core
        self._replies: Iterator[Sound] = cycle(replies)
        self._saying: set[str] = set()  # requests of the voice
        self._loop = asyncio.get_running_loop()
        self._free_s = 0.0  # when the recogniser is done with what it has

    @property
    def connected(self) -> bool:
        """Whether it takes messages: always."""
        return True

    def send_soon(self, message: Append) -> None:
        """Take sound; time is simulated, so none waits for other sound."""
        self.send(message)

    def send(self, message: ToEngine) -> None:
        """Take a command; its answers come later."""
        now = self._loop.time()
        match message:
            case Submit(name, "chat", epoch=epoch):
                self._answer(now + THINKS_S, Text(name, epoch, "Well."), Finished(name, epoch, "eos", _STATS))
            case Submit(name, "probe", epoch=epoch):
                self._answer(now + 0.05, Probability(name, epoch, 0.9), Finished(name, epoch, "eos", _STATS))
            case Submit(name, "tts", epoch=epoch):
                self._saying.add(name)
                self._answer(now + 0.05, Samples(name, epoch, 0, encode_pcm16(next(self._replies)), ()))
            case EndInput(name) if name in self._saying:
                self._answer(now + 0.06, Finished(name, 0, "eos", _STATS))
            case Submit(_, "asr") | Append() | EndInput() | Cancel() if "hear" in message.request_id:
                self._hear(message, now)
            case _:
                pass  # pauses and the ends of recordings

    def _hear(self, message: ToEngine, now: float) -> None:
        answers = self._core.handle([message])
        while self._core.busy:
            answers += self._core.step()
        self._free_s = max(now, self._free_s) + (DECODES_S if answers else 0.0)
        self._answer(self._free_s, *answers)

    def _answer(self, at_s: float, *messages: FromEngine) -> None:
        for channel, message in itertools.product(self._channels.values(), messages):
            self._loop.call_at(at_s, channel.deliver, message)
            at_s += 1e-6  # messages of one moment keep their order


# ---- the line


@dataclass(frozen=True, slots=True)
class EchoPath:
    """What comes back of the sound that the caller's telephone plays."""

    db: float  # loudness against what is played
    delay_s: float
    response: Floats = field(default_factory=lambda: np.ones(1, np.float32))  # of the way, with a power of one

    @property
    def delay(self) -> int:
        """The delay in samples of the line."""
        return round(self.delay_s * LINE_RATE)


def small_room(seed: int, seconds: float = 0.03) -> Floats:
    """Return the response of a hand-held telephone's surroundings."""
    chance = np.random.default_rng(seed)
    time_s = np.arange(round(seconds * LINE_RATE)) / LINE_RATE
    response = chance.normal(0, 0.5, len(time_s)) * np.exp(-6.9 * time_s / seconds)
    response[0] = 1.0
    scaled: Floats = (response / np.sqrt((response**2).sum())).astype(np.float32)
    return scaled


class EchoLine:
    """The far end of a call: plays what it is sent, returns its echo, and is the caller's voice."""

    def __init__(self, path: EchoPath, way_s: float, seed: int) -> None:
        self._path = path
        self._way_s = way_s
        self._loop = asyncio.get_running_loop()
        self._chance = np.random.default_rng(seed)
        self._incoming: asyncio.Queue[Message | None] = asyncio.Queue()
        self._arriving: deque[tuple[float, dict[str, object]]] = deque()
        self._buffer: deque[bytes | str] = deque()  # packets, and the names of marks between them
        self._left = bytearray()  # the rest of a packet
        self._echo: Floats = np.zeros(path.delay + PACKET + len(path.response), np.float32)  # what will come back
        self._speech: deque[Floats] = deque()
        self._packets = 0
        self._posted_s = 0.0  # when the last message arrives at the server
        self.peaks: list[tuple[float, float]] = []  # moment and peak of each packet that was played

    # ---- for the server

    async def receive(self) -> Message | None:
        """Return the next message of the line."""
        return await self._incoming.get()

    async def send(self, message: Message) -> None:
        """Take a message for the line."""
        self._arriving.append((self._loop.time() + self._way_s, json.loads(message)))

    async def close(self, code: int) -> None:
        """Take the end of the call."""

    # ---- the caller

    @property
    def speaking(self) -> bool:
        """Whether the caller has more to say."""
        return bool(self._speech)

    def say(self, sound: Floats) -> tuple[float, float]:
        """Speak from the next packet on; return when the first sample is spoken, and the last."""
        padded = np.concatenate([sound, np.zeros(-len(sound) % PACKET, np.float32)])
        self._speech.extend(padded.reshape(-1, PACKET))
        begin = self._loop.time()
        return begin, begin + len(sound) / LINE_RATE

    def hang_up(self) -> None:
        """End the call."""
        self._incoming.put_nowait(None)

    async def run(self) -> None:
        """Play and speak 20 ms at a time."""
        self._post({"event": "connected", "protocol": "Call", "version": "1.0.0"})
        media = {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1}
        start = {"streamSid": STREAM, "callSid": "CA1", "tracks": ["inbound"], "mediaFormat": media}
        self._post({"event": "start", "streamSid": STREAM, "start": start})
        while True:
            now = self._loop.time()
            self._speak(self._play(now))
            await asyncio.sleep(PACKET_S)

    def _play(self, now: float) -> Floats:
        """Return what is played in the next 20 ms."""
        while self._arriving and self._arriving[0][0] <= now:
            self._take(self._arriving.popleft()[1])
        while len(self._left) < PACKET and self._buffer:
            item = self._buffer.popleft()
            if isinstance(item, str):
                self._return_mark(item)
            else:
                self._left += item
        played = np.zeros(PACKET, np.float32)
        now_played = decode_mulaw(bytes(self._left[:PACKET]))
        played[: len(now_played)] = now_played
        del self._left[:PACKET]
        while not self._left and self._buffer and isinstance(self._buffer[0], str):
            self._return_mark(str(self._buffer.popleft()))
        self.peaks.append((now, float(np.abs(played).max())))
        return played

    def _take(self, message: dict[str, object]) -> None:
        match message:
            case {"event": "media", "media": {"payload": str(payload)}}:
                self._buffer.append(base64.b64decode(payload))
            case {"event": "mark", "mark": {"name": str(name)}}:
                self._buffer.append(name)
            case {"event": "clear"}:
                names = [item for item in self._buffer if isinstance(item, str)]
                self._buffer.clear()
                self._left.clear()
                for name in names:
                    self._return_mark(name)

    def _return_mark(self, name: str) -> None:
        self._post({"event": "mark", "streamSid": STREAM, "mark": {"name": name}})

    def _speak(self, played: Floats) -> None:
        path = self._path
        gain = np.float32(10 ** (path.db / 20))
        self._echo[path.delay : path.delay + PACKET + len(path.response) - 1] += gain * np.convolve(
            played, path.response
        ).astype(np.float32)
        heard = self._echo[:PACKET].copy()
        self._echo[:-PACKET] = self._echo[PACKET:]
        self._echo[-PACKET:] = 0
        heard += self._chance.normal(0, 10 ** (COMFORT_DB / 20), PACKET).astype(np.float32)
        if self._speech:
            heard += self._speech.popleft()
        self._packets += 1
        payload = base64.b64encode(encode_mulaw(heard)).decode()
        place = {"track": "inbound", "chunk": str(self._packets), "timestamp": str(20 * self._packets)}
        self._post({"event": "media", "streamSid": STREAM, "media": {**place, "payload": payload}})

    def _post(self, message: dict[str, object]) -> None:
        # A packet is sent when its last sample was spoken. Messages of one moment keep their order.
        self._posted_s = max(self._posted_s + 1e-6, self._loop.time() + PACKET_S + self._way_s)
        self._loop.call_at(self._posted_s, self._incoming.put_nowait, json.dumps(message))


# ---- the call


class Diary(Metrics):
    """Keeps the events of the only conversation with their times."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[tuple[float, ServerEvent]] = []
        self.state = "listening"

    def count(self, event: ServerEvent, session: str = "") -> None:
        """Keep an event."""
        self.events.append((asyncio.get_running_loop().time(), event))
        if isinstance(event, FloorState):
            self.state = event.name

    def since(self, place: int, *kinds: type[E]) -> list[tuple[float, E]]:
        """Return the events of these kinds after the first `place` events."""
        return [(at_s, event) for at_s, event in self.events[place:] if isinstance(event, kinds)]


@dataclass(frozen=True, slots=True)
class SimulatedCall:
    """A running call."""

    line: EchoLine
    diary: Diary

    async def until(self, found: Callable[[], object], most_s: float) -> bool:
        """Wait until something is so, at most `most_s`; return whether it is."""
        loop = asyncio.get_running_loop()
        end = loop.time() + most_s
        while not found():
            if loop.time() >= end:
                return False
            await asyncio.sleep(PACKET_S)
        return True

    async def until_quiet(self, lasting_s: float, most_s: float) -> bool:
        """Wait until the assistant has listened and the line was silent for so long."""
        loop = asyncio.get_running_loop()
        quiet_s = loop.time()

        def quiet() -> bool:
            nonlocal quiet_s
            now = loop.time()
            if self.diary.state != "listening" or self.line.peaks[-1][1] > LOUD or self.line.speaking:
                quiet_s = now
            return now - quiet_s >= lasting_s

        return await self.until(quiet, most_s)


@asynccontextmanager
async def simulated_call(
    core: Core, replies: Sequence[Sound], path: EchoPath, *, guarded: bool, way_s: float = 0.03, seed: int = 1
) -> AsyncIterator[SimulatedCall]:
    """Ring a server in memory; the first of the replies greets the caller."""
    config = Config(
        voice=VoiceConfig(echo_guard="auto" if guarded else "off"), phone=PhoneConfig(greeting="Hello.", silence_s=0)
    )
    diary = Diary()
    registry = SessionRegistry(config, CallEngine(core, replies), diary, "")
    phone = PhoneService(config, PhoneKeys(), registry, diary, Tenants())
    line = EchoLine(path, way_s, seed)
    call = PhoneCall(line, lambda messages: recognise(messages, ()), phone, "127.0.0.1", lambda facts: facts)
    tasks = [asyncio.create_task(call.run()), asyncio.create_task(line.run())]
    try:
        yield SimulatedCall(line, diary)
    finally:
        line.hang_up()
        await tasks[0]
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def on_line(sound: Sound) -> Floats:
    """Return a clip at the rate of the line."""
    return resample(sound, RATE, LINE_RATE)
