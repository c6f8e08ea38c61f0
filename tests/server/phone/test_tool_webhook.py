"""The customer's server for tools, over real connections: no cookie of one call reaches another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from voxlane.server.phone.call_tools import CustomerTool
from voxlane.server.phone.tool_webhook import FAILED, ToolWebhook
from voxlane.server.protocols.phone.line_events import CallFacts

TOOL, FACTS = CustomerTool("order_status", '{"number": "4711"}'), CallFacts("twilio", "CA1")
COOKIES = "Set-Cookie: session=anna; Path=/\r\nSet-Cookie: kept=for-years; Max-Age=99999999; Path=/\r\n"


@dataclass
class CustomerServer:
    """Answers every request with cookies, and remembers the heads of the requests."""

    status: str = "200 OK"
    heads: list[str] = field(default_factory=list)
    together: asyncio.Barrier | None = None  # requests wait here for each other
    connections: set[asyncio.Task[None] | None] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.add(asyncio.current_task())
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode().lower():
                length = head.partition("content-length: ")[2].partition("\r\n")[0]
                await reader.readexactly(int(length))
                self.heads.append(head)
                if self.together is not None:
                    await self.together.wait()
                answer = f"HTTP/1.1 {self.status}\r\n{COOKIES}Location: /elsewhere\r\nContent-Length: 2\r\n\r\nok"
                writer.write(answer.encode())
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    @property
    def cookies(self) -> list[str]:
        return [head for head in self.heads if "\r\ncookie:" in head]


@asynccontextmanager
async def customer(status: str = "200 OK") -> AsyncIterator[tuple[CustomerServer, ToolWebhook]]:
    one = CustomerServer(status)
    async with await asyncio.start_server(one.serve, "127.0.0.1", 0) as listener:
        webhook = ToolWebhook(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/", "key")
        try:
            yield one, webhook
        finally:
            await webhook.aclose()
            await asyncio.gather(*filter(None, one.connections))


@pytest.mark.parametrize("status", ["200 OK", "302 Found", "307 Temporary Redirect", "403 Forbidden", "500 Oh"])
async def test_no_cookie_is_kept_or_sent(status: str) -> None:
    async with customer(status) as (server, webhook):
        for _ in range(3):
            assert await webhook.ask(TOOL, FACTS) == ("ok" if status == "200 OK" else FAILED)
            assert webhook._client is not None
            assert not list(webhook._client.cookies.jar)
        assert len(server.heads) == 3
        assert not server.cookies


async def test_calls_at_the_same_time_share_no_cookies() -> None:
    async with customer() as (server, webhook):
        for count in (3, 3):
            server.together = asyncio.Barrier(count)
            assert await asyncio.gather(*(webhook.ask(TOOL, FACTS) for _ in range(count))) == ["ok"] * count
        assert len(server.heads) == 6
        assert not server.cookies
