"""Hold a call: with a real server over a WebSocket, or with a planted agent on the virtual clock.

The tester watches itself: every tick says how late it came. A tick is never skipped, so the card keeps the real time.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import Protocol
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.frames import CloseCode

from voxlane_lab.call import LabCall
from voxlane_lab.dialects.dialect import LabHandshake
from voxlane_lab.values import TICK_S, Message

CONNECT_S = 10.0
STARTS_S = 5.0  # a server that refuses connections for so long does not run
AGAIN_S = 0.2
SEND_S = 5.0  # a server that takes nothing for so long does not read
LONGEST_S = 900.0  # of a call
LARGEST = 2**24  # bytes of a message
GOODBYE_S = 2.0  # a server that does not close the connection within this time is left
BREATH = 100  # messages after which the ticks have their turn: a server that floods must not stop the clock


class Agent(Protocol):
    """A server in this process."""

    def receive(self, message: Message) -> list[Message]:
        """Process a message; return the answers."""
        ...

    def tick(self) -> list[Message]:
        """Return what is sent after 20 ms more."""
        ...


def shown_url(url: str) -> str:
    """Return an address without its secrets: no user, no query."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{host}{port}{parts.path}" if host else f"{parts.scheme}:{parts.path}"


def hold_virtually(call: LabCall, agent: Agent) -> None:
    """Hold a call with an agent of this process, as fast as it can be computed."""
    for message in call.open():
        _deliver(call, agent.receive(message))
    while not call.over and call.now_s < LONGEST_S:
        for message in call.begin_tick():
            _deliver(call, agent.receive(message))
        _deliver(call, agent.tick())
        call.end_tick()


def _deliver(call: LabCall, messages: list[Message]) -> None:
    for message in messages:
        call.arrive(message)


async def hold(call: LabCall, handshake: LabHandshake, tell: Callable[[LabCall], None]) -> None:
    """Hold a call with a server in real time; `tell` is called about once a second."""
    try:
        async with asyncio.timeout(CONNECT_S):
            connection = await _connected(handshake)
    except (OSError, InvalidHandshake, InvalidURI, TimeoutError) as error:
        call.closed(_refusal(handshake.url, error))
        return
    async with connection:
        start = asyncio.get_running_loop().time()
        reading = asyncio.create_task(_read(call, connection, start))
        try:
            await _ticks(call, connection, start, tell)
            for message in call.close():
                await connection.send(message)
        except ConnectionClosed:
            call.closed(_goodbye(connection))
        except TimeoutError:
            call.closed(f"the server did not read for {SEND_S:.0f} s")
        finally:
            reading.cancel()


async def _connected(handshake: LabHandshake) -> ClientConnection:
    """Return a connection; a server that is not there yet is waited for, because it may have just been started."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    while True:
        try:
            return await connect(
                handshake.url,
                additional_headers=dict(handshake.headers),
                subprotocols=list(handshake.subprotocols) or None,  # type: ignore[arg-type]
                compression=None,
                max_size=LARGEST,
                close_timeout=GOODBYE_S,
                open_timeout=None,
            )
        except OSError as error:
            # A name with several addresses that all refuse gives an error without a number.
            if error.errno not in (errno.ECONNREFUSED, None) or loop.time() - start >= STARTS_S:
                raise
        await asyncio.sleep(AGAIN_S)


async def _ticks(call: LabCall, connection: ClientConnection, start: float, tell: Callable[[LabCall], None]) -> None:
    loop = asyncio.get_running_loop()
    for message in call.open():
        await connection.send(message)
    number = 0
    while not call.over and call.now_s < LONGEST_S:
        due = start + number * TICK_S
        await asyncio.sleep(max(0.0, due - loop.time()))
        late_ms = (loop.time() - due) * 1e3
        async with asyncio.timeout(SEND_S):
            for message in call.begin_tick(late_ms):
                await connection.send(message)
        call.end_tick()
        number += 1
        if number % 50 == 0:
            tell(call)


async def _read(call: LabCall, connection: ClientConnection, start: float) -> None:
    loop = asyncio.get_running_loop()
    try:
        number = 0
        async for message in connection:
            call.arrive(message, loop.time() - start)
            if call.over:
                return
            number += 1
            if number % BREATH == 0:
                await asyncio.sleep(0)
    except ConnectionClosed:
        pass
    call.closed(_goodbye(connection))


def _goodbye(connection: ClientConnection) -> str:
    sent = connection.protocol.close_sent
    if sent is not None and sent.code == CloseCode.MESSAGE_TOO_BIG:
        return f"the server sent a message of more than {LARGEST >> 20} MiB"
    code = connection.close_code
    return f"the server closed the connection (code {code})" if code else "the connection was lost"


def _refusal(url: str, error: Exception) -> str:
    where = shown_url(url)
    match error:
        case InvalidStatus():
            status = error.response.status_code
            hint = {401: ": is the key right?", 403: ": is the key right?", 404: ": is the path right?"}.get(status, "")
            return f"{where} answered HTTP {status} instead of opening a WebSocket{hint}"
        case InvalidHandshake():
            return f"{where} is no WebSocket server, or speaks another subprotocol"
        case InvalidURI():
            return f"{where} is no WebSocket address: ws://HOST:PORT/PATH"
        case TimeoutError():
            return f"{where} did not answer within {CONNECT_S:.0f} s"
    return f"{where} cannot be reached: does the server run?"
