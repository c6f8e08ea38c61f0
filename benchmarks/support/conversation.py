"""A real server, and people who speak to it in real time, for the benchmarks of whole conversations."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from voxlane.codecs.pcm import quantise
from voxlane.codecs.resample import resample
from voxlane.codecs.wav import decode_wav
from voxlane.server.client import Event, VoiceClient
from voxlane.server.client.player import Player

RATE = 16_000
FRAME = RATE // 50
FORMAT = {"codec": "pcm16", "rate": RATE}


class ServerEnded(RuntimeError):
    """The server ended before it was ready; its log says why."""


@contextlib.contextmanager
def server(*arguments: str) -> Iterator[str]:
    """Run `voxlane serve` and yield its address."""
    with server_process(*arguments) as (url, _):
        yield url


@contextlib.contextmanager
def server_process(*arguments: str, log: IO[str] | int = subprocess.DEVNULL) -> Iterator[tuple[str, int]]:
    """Run `voxlane serve` and yield its address and process id."""
    command = [sys.executable, "-m", "voxlane.server.cli", "serve", "--port", "0", *arguments]
    if "--config" not in arguments:  # what happens beyond the measured room is measured, too
        command += ["--config", str(Path(__file__).with_name("no_room.toml"))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    try:
        address = process.stdout.readline().split()
        if not address:
            raise ServerEnded
        wait_healthy(address[-1], lambda: process.poll() is None)
        yield address[-1], process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def wait_healthy(url: str, running: Callable[[], bool] = lambda: True) -> None:
    """Wait until the engine is ready; raise ServerEnded if the server has ended."""
    while running():
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/healthz") as answer:
            if answer.status == 200:
                return
        time.sleep(0.2)
    raise ServerEnded


def spoken(url: str, text: str) -> NDArray[np.int16]:
    """Return a text in the server's own voice, at the microphone's rate, without the silence around it."""
    body = json.dumps({"model": "tts-1", "voice": "alloy", "input": text, "response_format": "wav"}).encode()
    request = urllib.request.Request(f"{url}/v1/audio/speech", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        samples, rate = decode_wav(answer.read())
    sound = np.asarray(resample(samples, rate, RATE))
    loud = np.flatnonzero(np.abs(sound) > 0.02)
    return quantise(sound[loud[0] : loud[-1] + 1])


@dataclass
class Person:
    """A person with a microphone and a loudspeaker that both run all the time."""

    client: VoiceClient
    player: Player
    events: list[tuple[float, Event]] = field(default_factory=list)
    output: list[tuple[float, float]] = field(default_factory=list)  # (when, how loud) of what was played
    input: list[tuple[float, float]] = field(default_factory=list)  # (when, how loud) of what was said
    _speech: list[NDArray[np.int16]] = field(default_factory=list)
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)
    began_s: float = 0.0  # when the first sample of the last speech was sent
    stopped_s: float = 0.0  # when its last frame was sent
    listens_at: float = 1.0  # how fast replies are played; 2: twice as fast as they were spoken

    @property
    def speaking(self) -> bool:
        """Whether some of the speech has not been sent yet."""
        return bool(self._speech)

    def speak(self, sound: NDArray[np.int16]) -> None:
        """Speak from the next frame on."""
        self.began_s = self.stopped_s = 0.0
        self._speech = [sound[start : start + FRAME] for start in range(0, len(sound), FRAME)]

    async def wait(self, name: str, since: int, most_s: float) -> tuple[float, Event] | None:
        """Return the first event of this name after the first `since` events; None if it does not come in time."""

        def found() -> tuple[float, Event] | None:
            return next(((at, event) for at, event in self.events[since:] if event.name == name), None)

        async with self._news:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait_for(lambda: found() is not None), most_s)
        return found()

    async def news(self, known: int, most_s: float) -> None:
        """Wait until there are more than `known` events, at most `most_s`."""
        async with self._news:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait_for(lambda: len(self.events) > known), most_s)

    async def live(self) -> None:
        """Run the microphone and the loudspeaker in real time."""
        next_s = time.perf_counter()
        while True:
            frame = np.zeros(FRAME, np.int16)
            if self._speech:
                piece = self._speech.pop(0)
                frame[: len(piece)] = piece
                self.began_s = self.began_s or time.perf_counter()
                self.stopped_s = time.perf_counter()
            await self.client.send_audio(frame.tobytes())
            self.input.append((time.perf_counter(), float(np.abs(frame).max())))
            heard = np.frombuffer(self.player.pull(round(self.player.rate / 50 * self.listens_at)), np.int16)
            self.output.append((time.perf_counter(), float(np.abs(heard).max())))
            await self.client.send_acks()
            next_s += 0.02
            await asyncio.sleep(max(0.0, next_s - time.perf_counter()))

    async def listen(self) -> None:
        """Keep the server's events."""
        async for event in self.client:
            async with self._news:
                self.events.append((time.perf_counter(), event))
                self._news.notify_all()


@contextlib.asynccontextmanager
async def person(url: str, **config: object) -> AsyncIterator[Person]:
    """Connect a person."""
    player = Player(24_000)
    client = VoiceClient(
        url.replace("http", "ws") + "/v1/voice",
        input_format=FORMAT,
        output_format={"codec": "pcm16", "rate": 24_000},
        config=config,
        player=player,
    )
    async with client, asyncio.TaskGroup() as tasks:
        somebody = Person(client, player)
        running = [tasks.create_task(somebody.live()), tasks.create_task(somebody.listen())]
        yield somebody
        for task in running:
            task.cancel()
