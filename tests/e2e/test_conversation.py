"""Six turns of one conversation with a real server: a cough, a murmur, and an interruption that is meant.

A reply that was held and released is compared with the same reply left alone: same seed, so the same samples.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import numpy as np
import pytest

from voxlane.codecs.resample import resample
from voxlane.codecs.wav import decode_wav
from voxlane.server.client import Event, VoiceClient
from voxlane.server.player import Player

pytestmark = pytest.mark.weights

RATE, OUT_RATE = 16_000, 24_000
FRAME = RATE // 50
CONFIG = {"temperature": 0.0, "seed": 7, "max_tokens": 20}


def say(server, text: str) -> np.ndarray:
    """Return a text as the server's voice says it, for the microphone."""
    answer = server.client.audio.speech.create(model="tts-1", voice="alloy", input=text, response_format="wav")
    samples, rate = decode_wav(answer.content)
    sound = np.asarray(resample(samples, rate, RATE))
    loud = np.flatnonzero(np.abs(sound) > 0.02)
    return (np.clip(sound[loud[0] : loud[-1] + 1], -1, 1) * 32767).astype(np.int16)


def cough() -> np.ndarray:
    chance = np.random.default_rng(1)
    time = np.arange(RATE // 4) / RATE
    burst = np.convolve(chance.normal(0, 0.3, len(time)) * np.exp(-time / 0.06), np.ones(6) / 3, "same")
    return (np.clip(burst, -1, 1) * 32767).astype(np.int16)


@dataclass
class Caller:
    """A microphone and a loudspeaker on the clock, and everything that was heard and told."""

    client: VoiceClient
    player: Player
    events: list[Event] = field(default_factory=list)
    speech: list[np.ndarray] = field(default_factory=list)
    played: list[bytes] = field(default_factory=list)  # without the silence where nothing was there to play
    news: asyncio.Condition = field(default_factory=asyncio.Condition)

    def speak(self, sound: np.ndarray) -> None:
        self.speech = [sound[start : start + FRAME] for start in range(0, len(sound), FRAME)]

    async def until(self, name: str, since: int, **fields: int) -> Event:
        """Wait for an event; a server that does not send it makes the test run into its limit."""

        def found() -> Event | None:
            named = (event for event in self.events[since:] if event.name == name)
            return next((event for event in named if all(event[key] == value for key, value in fields.items())), None)

        async with self.news:
            await asyncio.wait_for(self.news.wait_for(lambda: found() is not None), 60)
        event = found()
        assert event is not None
        return event

    async def hear(self, seconds: float, since: int) -> None:
        """Listen to the beginning of the reply that comes after an event."""
        reply = await self.until("audio", since)

        def heard() -> bool:
            return self.player.epoch == reply["epoch"] and self.player.position >= seconds * OUT_RATE

        async with self.news:
            await asyncio.wait_for(self.news.wait_for(heard), 60)

    async def finish_playing(self) -> None:
        """Wait for the last frames at the loudspeaker."""
        async with self.news:
            await asyncio.wait_for(self.news.wait_for(lambda: not self.player.queued), 60)

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
            pcm = self.player.pull(OUT_RATE // 50)
            moved = self.player.position - (before[0] if before[1] == self.player.epoch else 0)
            if moved:
                self.played.append(pcm[: 2 * moved])
                async with self.news:
                    self.news.notify_all()
            await self.client.send_acks()
            at += 0.02
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


async def reply_to(caller: Caller, turn: str | np.ndarray, disturbance: np.ndarray | None = None) -> bytes:
    """Take a turn, make a sound into its answer, and hear the answer to its end; return what came of it."""
    since, heard = len(caller.events), len(caller.played)
    if isinstance(turn, str):
        await caller.client.say(turn)
    else:
        caller.speak(turn)
    if disturbance is not None:
        await caller.hear(0.4, since)
        caller.speak(disturbance)
        await caller.until("release", since)
    reply = await caller.until("reply", since)
    done = await caller.until("turn_done", since, turn=reply["turn"])
    await caller.finish_playing()
    names = [event.name for event in caller.events[since:]]
    assert names.count("hold") == names.count("release") == (disturbance is not None)
    assert (done["how"], "interrupted" in names) == ("done", False)
    sent = caller.sound(reply["epoch"])
    assert b"".join(caller.played[heard:]) == sent  # nothing lost, nothing repeated at the loudspeaker
    return sent


async def interrupt(caller: Caller, turn: np.ndarray, other: np.ndarray) -> Event:
    """Take a turn and cut into its answer with another one; return how the answer ended."""
    since = len(caller.events)
    caller.speak(turn)
    await caller.hear(0.8, since)
    caller.speak(other)
    cut = await caller.until("interrupted", since)
    told = [event for event in caller.events if event.name == "reply_text" and event["epoch"] == cut["epoch"]]
    reply = "".join(event["text"] for event in told)
    assert reply.startswith(cut["heard"])
    assert 0 < len(cut["heard"]) < len(reply)
    return cut


async def test_six_turns_with_interruptions(server):
    first, second = "Tell me about the sea.", "And what about the mountains?"
    sky, name, seven = (
        say(server, text)
        for text in ("Why is the sky blue?", "Wait, what is your name?", "What do you get when you add three and four?")
    )
    murmur = say(server, "Mhm.")
    async with calling(server.url) as caller:  # left alone, for comparison
        alone = [await reply_to(caller, first), await reply_to(caller, second)]
    async with calling(server.url) as caller:
        assert await reply_to(caller, first, cough()) == alone[0]
        assert await reply_to(caller, second, murmur) == alone[1]
        await reply_to(caller, "Thank you.")
        cut = await interrupt(caller, sky, name)
        await caller.until("reply_done", caller.events.index(cut))
        await reply_to(caller, seven)
        after = [event for event in caller.events if event.sequence > cut.sequence and event.name == "audio"]
        assert all(event["epoch"] > cut["epoch"] for event in after)
        turns = [event["turn"] for event in caller.events if event.name == "turn_done"]
        replies = {event["turn"] for event in caller.events if event.name == "reply"}
        assert len(turns) == len(set(turns))
        assert len(replies) == 6
        assert replies <= set(turns)
        said = [event["text"].lower() for event in caller.events if event.name == "user_turn"]
        assert ["sky" in said[3], "name" in said[4], "three" in said[5] or "3" in said[5]] == [True] * 3
