"""A path of UDP packets between a browser and a WebRTC server that loses some of them, in both directions.

It takes the place of the server's addresses in an answer, as a NAT would. Everything that goes over it is lost at the
same rate: ICE, DTLS, sound and events.
"""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Any, Self

LINE_END = "\r\n"
Address = tuple[str, int]


class _Leg(asyncio.DatagramProtocol):
    """One socket: hands on what comes."""

    def __init__(self, take: Any) -> None:
        self._take = take

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self._take(data, addr[:2])

    def error_received(self, exc: Exception) -> None:
        """Do nothing: the other side has closed its port, and the call is over."""


class LossyPath:
    """Relays packets as long as the context lasts."""

    def __init__(self, host: str, share: float, seed: int = 5) -> None:
        """Listen on an address of this machine, and lose a share of the packets."""
        self.passed = {"up": 0, "down": 0}
        self.lost = {"up": 0, "down": 0}
        self._host, self._share, self._random = host, share, random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lossy path")
        self._legs: list[_Leg] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def rewritten(self, answer: str) -> str:
        """Return an answer whose one address is on this path."""
        lines = answer.split(LINE_END)
        found = [line.split(" ") for line in lines if line.startswith("a=candidate:")]
        host, port = next((one[4], int(one[5])) for one in found if one[4] == self._host and one[7] == "host")
        opened = asyncio.run_coroutine_threadsafe(self._open((host, port)), self._loop).result()
        lines = [line for line in lines if not line.startswith("a=candidate:") or line.split(" ")[5] == str(port)]
        return LINE_END.join(lines).replace(f"{host} {port} typ", f"{self._host} {opened} typ")

    async def _open(self, server: Address) -> int:
        """Listen for clients of a server's address; return the port."""
        uplinks: dict[Address, asyncio.Task[_Leg]] = {}

        def take(data: bytes, client: Address) -> None:
            if client not in uplinks:
                back = lambda answer, _: self._pass("down", near.transport.sendto, answer, client)  # noqa: E731
                uplinks[client] = self._loop.create_task(self._leg(back, remote_addr=server))
            uplinks[client].add_done_callback(lambda leg: self._pass("up", leg.result().transport.sendto, data))

        near = await self._leg(take, local_addr=(self._host, 0))
        return int(near.transport.get_extra_info("sockname")[1])

    async def _leg(self, take: Any, **where: Any) -> _Leg:
        _, leg = await self._loop.create_datagram_endpoint(lambda: _Leg(take), **where)
        self._legs.append(leg)
        return leg

    def _pass(self, way: str, send: Any, *packet: Any) -> None:
        lost = self._random.random() < self._share
        (self.lost if lost else self.passed)[way] += 1
        if not lost:
            send(*packet)

    async def _close(self) -> None:
        for leg in self._legs:
            leg.transport.close()
        await asyncio.sleep(0)
