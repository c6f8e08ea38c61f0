"""Six turns with a real server: two people's worth of interruptions, one meant and one not, and a cough.

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
CONFIG = {"temperature": 0.0, "seed": 7, "max_tokens": 40}


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

    async def until(self, name: str, since: int) -> Event:
        """Wait for an event; a server that does not send it makes the test run into its limit."""

        def found() -> Event | None:
            return next((event for event in self.events[since:] if event.name == name), None)

        async with self.news:
            await asyncio.wait_for(self.news.wait_for(lambda: found() is not None), 60)
        event = found()
        assert event is not None
        return event

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
async def calling(url: str) -> AsyncIterator[Caller]:
    player = Player(OUT_RATE)
    client = VoiceClient(
        url.replace("http", "ws") + "/v1/voice",
        input_format={"codec": "pcm16", "rate": RATE},
        output_format={"codec": "pcm16", "rate": OUT_RATE},
        config=CONFIG,
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


async def answered(caller: Caller, text: str) -> int:
    """Type a turn and hear its answer to the end; return its epoch."""
    since = len(caller.events)
    await caller.client.say(text)
    done = await caller.until("reply_done", since)
    return int(done["epoch"])


async def disturbed(caller: Caller, text: str, sound: np.ndarray) -> int:
    """Type a turn, make a sound into its answer, and hear the answer to its end; return its epoch."""
    since = len(caller.events)
    await caller.client.say(text)
    await caller.until("audio", since)
    await asyncio.sleep(0.4)
    caller.speak(sound)
    await caller.until("release", since)
    done = await caller.until("reply_done", since)
    names = [event.name for event in caller.events[since:]]
    assert names.count("hold") == names.count("release") >= 1
    assert "interrupted" not in names
    return int(done["epoch"])


PROMPT = "Tell me about the sea."


async def test_six_turns_with_interruptions(server):
    clips = {text: say(server, text) for text in ("Why is the sky blue?", "Okay.", "Stop, that is enough.")}
    async with calling(server.url) as caller:
        left_alone = [caller.sound(await answered(caller, PROMPT))]
        since = len(caller.events)
        caller.speak(clips["Why is the sky blue?"])
        turn = await caller.until("user_turn", since)
        assert "sky" in turn["text"].lower()
        await caller.until("audio", since)
        await asyncio.sleep(0.8)
        caller.speak(clips["Stop, that is enough."])
        cut = await caller.until("interrupted", since)
        reply = "".join(
            event["text"] for event in caller.events if event.name == "reply_text" and event["epoch"] == cut["epoch"]
        )
        assert reply.startswith(cut["heard"])
        assert len(cut["heard"]) < len(reply)
        after = [event for event in caller.events if event.sequence > cut.sequence and event.name == "audio"]
        assert all(event["epoch"] > cut["epoch"] for event in after)
    async with calling(server.url) as caller:
        epoch = await disturbed(caller, PROMPT, cough())
        assert caller.sound(epoch) == left_alone[0]
        assert b"".join(caller.played) == left_alone[0]
    async with calling(server.url) as caller:
        epoch = await disturbed(caller, PROMPT, clips["Okay."])
        assert caller.sound(epoch) == left_alone[0]
        assert b"".join(caller.played) == left_alone[0]
        turns = [event for event in caller.events if event.name == "turn_done"]
        assert len({event["turn"] for event in turns}) == len(turns)
