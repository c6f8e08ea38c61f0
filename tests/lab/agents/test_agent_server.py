"""The planted agents behind a real WebSocket: each dialect has its path, each call an agent of its own."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import numpy as np
import pytest
import websockets
from planted_call import VOICE, voice_track
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from voxlane_lab.agents.server import PATHS, agent_server
from voxlane_lab.dialects.choice import DIALECTS, guess_dialect, make_dialect
from voxlane_lab.dialects.dialect import DialectOptions, LabDialect
from voxlane_lab.errors import LabError
from voxlane_lab.values import USER_TICK, Pcm

LONGEST_S = 30.0
"""No call of these tests takes so long, however busy the machine is."""


async def opened(url: str, dialect: str) -> tuple[ClientConnection, LabDialect]:
    client = make_dialect(dialect, DialectOptions(url))
    handshake = client.handshake()
    connection = await connect(
        handshake.url,
        additional_headers=dict(handshake.headers),
        subprotocols=[websockets.Subprotocol(one) for one in handshake.subprotocols] or None,
        compression=None,
    )
    for message in client.open(0.0):
        await connection.send(message)
    return connection, client


async def until_ready(connection: ClientConnection, client: LabDialect) -> None:
    while not client.ready:
        for message in client.receive(await connection.recv(), 0.0):
            await connection.send(message)


async def say(connection: ClientConnection, client: LabDialect, track: Pcm) -> None:
    """Send a microphone's sound at once: the agent's ears count samples, not seconds."""
    for first in range(0, len(track), USER_TICK):
        for message in client.say(track[first : first + USER_TICK], 0.0):
            await connection.send(message)


async def until_sound(connection: ClientConnection, client: LabDialect, seconds: float) -> Pcm:
    """Read until so much sound has come; return it."""
    while (got := sum(one.samples for one in client.arrivals)) < seconds * client.speaker.rate:
        assert client.failure == ""
        for message in client.receive(await connection.recv(), got / client.speaker.rate):
            await connection.send(message)
    return np.concatenate([piece for parts in client.speaker.received.values() for piece in parts])


@pytest.mark.parametrize("dialect", sorted(DIALECTS))
async def test_each_dialect_has_a_path(dialect: str) -> None:
    async with asyncio.timeout(LONGEST_S), agent_server("none", VOICE) as server:
        connection, client = await opened(server.url(dialect), dialect)
        async with connection:
            await until_ready(connection, client)
            await say(connection, client, voice_track((0.1, 1.0), seconds=2.2))
            sound = await until_sound(connection, client, 0.3)
            story = np.interp(
                np.arange(len(sound)) / client.speaker.rate,
                np.arange(len(VOICE.stories[0].pcm)) / 24_000,
                VOICE.stories[0].pcm,
            )
            likeness = np.dot(sound, story) / (np.linalg.norm(sound.astype(float)) * np.linalg.norm(story))
            assert likeness > 0.9
            for message in client.close(1.0):
                await connection.send(message)


async def test_interruption_over_a_socket() -> None:
    async with asyncio.timeout(LONGEST_S), agent_server("none", VOICE) as server:
        connection, client = await opened(server.url("pcm"), "pcm")
        async with connection:
            await say(connection, client, voice_track((0.1, 1.0), seconds=2.2))
            await until_sound(connection, client, 0.2)
            await say(connection, client, voice_track((0.0, 1.0), seconds=1.0))
            while not any(one.name == "clear" and one.side == "got" for one in client.occurrences):
                client.receive(await connection.recv(), 1.0)


async def test_each_call_has_an_agent_of_its_own() -> None:
    async with asyncio.timeout(LONGEST_S), agent_server("none", VOICE, greets=True) as server:
        first, one = await opened(server.url("pcm"), "pcm")
        second, other = await opened(server.url("pcm"), "pcm")
        async with first, second:
            sounds = [await until_sound(first, one, 0.1), await until_sound(second, other, 0.1)]
        assert np.array_equal(sounds[0][:1600], sounds[1][:1600])


async def test_bye_ends_the_call() -> None:
    async with asyncio.timeout(LONGEST_S), agent_server("none", VOICE) as server:
        connection, client = await opened(server.url("native"), "native")
        await until_ready(connection, client)
        for message in client.close(0.0):
            await connection.send(message)
        await connection.wait_closed()
        assert connection.close_code == 1000


@pytest.mark.parametrize(
    ("dialect", "garbage"), [("native", "hi"), ("realtime", "hi"), ("twilio", "[]"), ("pcm", b"\0")]
)
async def test_garbage_closes_the_call_and_not_the_server(dialect: str, garbage: str | bytes) -> None:
    async with asyncio.timeout(LONGEST_S), agent_server("none", VOICE) as server:
        async with connect(server.url(dialect)) as connection:
            await connection.send(garbage)
            with suppress(ConnectionClosed):
                while True:
                    await connection.recv()
            assert connection.close_code == 1007
            assert connection.close_reason
        again, client = await opened(server.url(dialect), dialect)
        async with again:
            await until_ready(again, client)


async def test_other_paths_are_not_found() -> None:
    async with agent_server("none", VOICE, dialects=["twilio"]) as server:
        for path in ("/", "/v1/voice", "/nothing"):
            with pytest.raises(InvalidStatus) as refused:
                await connect(f"ws://127.0.0.1:{server.port}{path}")
            assert refused.value.response.status_code == 404
        async with connect(f"ws://127.0.0.1:{server.port}/twilio?token=1"):
            pass


async def test_wrong_fault_is_refused_at_once() -> None:
    with pytest.raises(LabError, match="there is no such fault"):
        async with agent_server("bad manners", VOICE):
            pass


def test_paths_are_guessed() -> None:
    assert {path: guess_dialect(f"ws://host{path}") or "pcm" for path in PATHS} == PATHS
