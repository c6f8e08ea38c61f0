"""A planted agent as a server: all four dialects on one port, and the path tells which.

    /v1/voice  native        /v1/realtime  OpenAI Realtime        /v1/phone, /twilio  Twilio        /pcm  plain PCM

Each connection is a call with an agent of its own. Its ticks have absolute deadlines, so that its sound keeps the pace.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from voxlane_lab.agents.planted import PlantedAgent, planted
from voxlane_lab.agents.voice import AgentVoice, at_rate
from voxlane_lab.dialects.wire import NotUnderstood
from voxlane_lab.values import TICK_S, USER_RATE, Message

PATHS = {
    "/v1/voice": "native",
    "/v1/realtime": "realtime",
    "/twilio": "twilio",
    "/v1/phone": "twilio",
    "/v1/phone/twilio": "twilio",
    "/pcm": "pcm",
}
"""Path -> dialect; the first path of a dialect is the one that is shown."""

SUBPROTOCOLS = ("voxlane.v1", "realtime")
LARGEST = 1 << 21  # bytes of a message
PHONE_RATE = 8_000
DONE, BAD_MESSAGE = 1000, 1007  # close codes


@dataclass(frozen=True, slots=True)
class AgentServer:
    """A server that runs."""

    host: str
    port: int

    def url(self, dialect: str) -> str:
        """Return the address for a dialect."""
        path = next(path for path, name in PATHS.items() if name == dialect)
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"ws://{host}:{self.port}{path}"


@asynccontextmanager
async def agent_server(
    fault: str,
    voice: AgentVoice,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    counts: bool = False,
    greets: bool = False,
    dialects: Iterable[str] = tuple(PATHS.values()),
) -> AsyncIterator[AgentServer]:
    """Serve calls with an agent that has a fault; port 0: any that is free. Only these dialects have a path."""
    offered = frozenset(dialects)
    planted(fault, next(iter(offered)), voice)  # a wrong name is an error now, not in the first call
    await asyncio.to_thread(_convert, voice)

    async def converse(connection: ServerConnection) -> None:
        dialect = PATHS[_path(connection.request)]
        await _converse(connection, planted(fault, dialect, voice, counts=counts, greets=greets))

    def refuse(connection: ServerConnection, request: Request) -> Response | None:
        if PATHS.get(_path(request)) in offered:
            return None
        paths = ", ".join(path for path, name in PATHS.items() if name in offered)
        return connection.respond(HTTPStatus.NOT_FOUND, f"The paths here are {paths}\n")

    async with serve(
        converse,
        host,
        port,
        process_request=refuse,
        select_subprotocol=_subprotocol,
        compression=None,
        max_size=LARGEST,
        close_timeout=1,
    ) as server:
        yield AgentServer(host, next(iter(server.sockets)).getsockname()[1])


def _convert(voice: AgentVoice) -> None:
    """Convert all clips to the rates of the dialects, so that no tick has to wait for that."""
    for clip in voice.clips:
        for rate in (PHONE_RATE, USER_RATE):
            at_rate(clip, rate)


def _path(request: Request | None) -> str:
    return "" if request is None else request.path.partition("?")[0].rstrip("/")


def _subprotocol(_: ServerConnection, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    return next((one for one in offered if one in SUBPROTOCOLS), None)


async def _converse(connection: ServerConnection, agent: PlantedAgent) -> None:
    """Hold one call to its end."""
    ticking = asyncio.create_task(_tick(connection, agent))
    try:
        async for message in connection:
            await _send(connection, agent.receive(message))
            if agent.ended:
                await connection.close(DONE)
    except NotUnderstood as error:
        await connection.close(BAD_MESSAGE, str(error)[:120])
    except ConnectionClosed:
        pass
    finally:
        ticking.cancel()
        with suppress(asyncio.CancelledError):
            await ticking


async def _tick(connection: ServerConnection, agent: PlantedAgent) -> None:
    loop = asyncio.get_running_loop()
    due_s = loop.time()
    with suppress(ConnectionClosed):
        while True:
            await _send(connection, agent.tick())
            due_s += TICK_S
            await asyncio.sleep(max(0.0, due_s - loop.time()))


async def _send(connection: ServerConnection, messages: list[Message]) -> None:
    for message in messages:
        await connection.send(message)
