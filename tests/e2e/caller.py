"""A caller of a real server: a microphone and a loudspeaker on the clock, and everything that was heard and told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, field

import numpy as np

from voxlane.codecs.resample import resample
from voxlane.codecs.wav import decode_wav
from voxlane.server.client import Event, VoiceClient
from voxlane.server.client.player import Player

RATE, OUT_RATE = 16_000, 24_000
FRAME = RATE // 50
LATE_S = 0.5
"""A caller that stood still sends no more than this at once: sound that comes faster than real time is refused."""
WAIT_S = 120.0
CONFIG = {"temperature": 0.0, "seed": 7, "max_tokens": 20}


def say(server, text: str) -> np.ndarray:
    """Return a text as the server's voice says it, for the microphone."""
    answer = server.client.audio.speech.create(model="tts-1", voice="alloy", input=text, response_format="wav")
    samples, rate = decode_wav(answer.content)
    sound = np.asarray(resample(samples, rate, RATE))
    loud = np.flatnonzero(np.abs(sound) > 0.02)
    return (np.clip(sound[loud[0] : loud[-1] + 1], -1, 1) * 32767).astype(np.int16)


@dataclass
class Caller:
    """A microphone and a loudspeaker on the clock, and everything that was heard and told."""

    client: VoiceClient
    player: Player
    events: list[Event] = field(default_factory=list)
    speech: list[np.ndarray] = field(default_factory=list)
    played: list[bytes] = field(default_factory=list)  # without the silence where nothing was there to play
    listening: bool = True  # whether the loudspeaker plays on; a test that waits for the server may let it stand still
    news: asyncio.Condition = field(default_factory=asyncio.Condition)

    def speak(self, sound: np.ndarray) -> None:
        self.speech = [sound[start : start + FRAME] for start in range(0, len(sound), FRAME)]

    async def until(self, name: str, since: int, **fields: int) -> Event:
        """Wait for an event; a server that does not send it makes the test run into its limit."""
        return await self.until_one_of((name,), since, **fields)

    async def until_one_of(self, names: Collection[str], since: int, **fields: int) -> Event:
        """Wait for the first event of some names."""

        def found() -> Event | None:
            named = (event for event in self.events[since:] if event.name in names)
            return next((event for event in named if all(event[key] == value for key, value in fields.items())), None)

        async with self.news:
            await asyncio.wait_for(self.news.wait_for(lambda: found() is not None), WAIT_S)
        event = found()
        assert event is not None
        return event

    async def hear(self, seconds: float, since: int) -> None:
        """Listen to the beginning of the reply that comes after an event."""
        reply = await self.until("audio", since)

        def heard() -> bool:
            return self.player.epoch == reply["epoch"] and self.player.position >= seconds * OUT_RATE

        async with self.news:
            await asyncio.wait_for(self.news.wait_for(heard), WAIT_S)

    async def finish_playing(self) -> None:
        """Wait for the last frames at the loudspeaker."""
        async with self.news:
            await asyncio.wait_for(self.news.wait_for(lambda: not self.player.queued), WAIT_S)

    async def live(self) -> None:
        loop = asyncio.get_running_loop()
        at = loop.time()
        while True:
            frame = np.zeros(FRAME, np.int16)
            if self.speech:
                piece = self.speech.pop(0)
                frame[: len(piece)] = piece
            await self.client.send_audio(frame.tobytes())
            before = self.player.position, self.player.epoch
            pcm = self.player.pull(OUT_RATE // 50) if self.listening else b""
            moved = self.player.position - (before[0] if before[1] == self.player.epoch else 0)
            if moved:
                self.played.append(pcm[: 2 * moved])
                async with self.news:
                    self.news.notify_all()
            await self.client.send_acks()
            at = max(at + 0.02, loop.time() - LATE_S)
            await asyncio.sleep(max(0.0, at - loop.time()))

    async def listen(self) -> None:
        async for event in self.client:
            async with self.news:
                self.events.append(event)
                self.news.notify_all()

    def sound(self, epoch: int) -> bytes:
        """Return all that was sent of a reply; offsets must leave no gap."""
        pieces = [event for event in self.events if event.name == "audio" and event["epoch"] == epoch]
        sent = b""
        for piece in pieces:
            assert piece["offset"] * 2 == len(sent)
            sent += piece["data"]
        return sent


@contextlib.asynccontextmanager
async def calling(url: str, **config: object) -> AsyncIterator[Caller]:
    player = Player(OUT_RATE)
    client = VoiceClient(
        url.replace("http", "ws") + "/v1/voice",
        input_format={"codec": "pcm16", "rate": RATE},
        output_format={"codec": "pcm16", "rate": OUT_RATE},
        config=CONFIG | config,
        player=player,
    )
    async with client:
        caller = Caller(client, player)
        tasks = [asyncio.create_task(caller.live()), asyncio.create_task(caller.listen())]
        try:
            yield caller
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
