"""nginx, HAProxy and Caddy in front of a server, with the very files of docs/deploying: only ports and paths differ."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from cells import free_port
from certificates import Authority, write_pair
from peer import MANUAL, Peer, eventually
from websockets.exceptions import InvalidStatus

from voxlane.server.config import PhoneKeys, ServerConfig, VoiceConfig

DEPLOYING = Path(__file__).parents[3] / "docs" / "deploying"
COMMANDS = {
    "nginx": ("nginx.conf", ["nginx", "-p", "{folder}", "-e", "stderr", "-g", "daemon off;", "-c", "{file}"]),
    "haproxy": ("haproxy.cfg", ["haproxy", "-db", "-f", "{file}"]),
    "caddy": ("Caddyfile", ["caddy", "run", "--adapter", "caddyfile", "--config", "{file}"]),
}
HELD_S = 65.0
"""How long a silent conversation is held: longer than the minute after which proxies like to close."""

ANNA, BEN = "127.0.0.2", "127.0.0.3"  # clients; the proxy is 127.0.0.1

pytestmark = pytest.mark.soak


def adapted(name: str, folder: Path, port: int, server_port: int) -> Path:
    """Write the documented file with the test's ports and paths; each must be there to be replaced."""
    text = (DEPLOYING / COMMANDS[name][0]).read_text()
    changes = {
        "127.0.0.1:8000": f"127.0.0.1:{server_port}",
        "/etc/voxlane/": f"{folder}/",
        **{
            "nginx": {"listen 443": f"listen 127.0.0.1:{port}", "/run/nginx.pid": f"{folder}/nginx.pid"},
            "haproxy": {"bind :443": f"bind 127.0.0.1:{port}"},
            "caddy": {
                "voice.example.org {": f"https://127.0.0.1:{port} {{",
                "admin off": "admin off\n\tauto_https disable_redirects",
            },
        }[name],
    }  # fmt: skip
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    file = folder / COMMANDS[name][0]
    file.write_text(text)
    return file


@asynccontextmanager
async def proxy(name: str, folder: Path, authority: Authority, server_port: int) -> AsyncIterator[str]:
    """Run a proxy in front of a server; give its address."""
    pair = authority.pair("proxy")
    write_pair(folder, pair)
    (folder / "both.pem").write_bytes(b"".join(pair))
    port = free_port()
    file = adapted(name, folder, port, server_port)
    command = [part.format(folder=folder, file=file) for part in COMMANDS[name][1]]
    with (folder / "proxy.log").open("wb") as log:
        environment = {"HOME": str(folder), "PATH": "/usr/sbin:/usr/bin"}
        running = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log, env=environment)
    try:
        while True:
            assert running.returncode is None, (folder / "proxy.log").read_text()
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
                continue
            writer.close()
            break
        yield f"https://127.0.0.1:{port}"
    finally:
        running.terminate()
        await asyncio.wait_for(running.wait(), 20)


@pytest.mark.parametrize("name", list(COMMANDS))
async def test_a_server_behind_a_proxy(
    serving: Any, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if shutil.which(COMMANDS[name][1][0], path="/usr/sbin:/usr/bin") is None:
        pytest.skip(f"{name} is not installed")
    caplog.set_level(logging.INFO, "voxlane")
    authority = Authority()
    options: dict[str, Any] = {
        "server": ServerConfig(trusted_proxies=("127.0.0.1",)),
        "voice": VoiceConfig(sessions_per_address=2),
        "api_key": "sesame",
        "phone_keys": PhoneKeys(phone="open"),
    }
    async with (
        serving(**options) as server,
        proxy(name, tmp_path, authority, server.listener.getsockname()[1]) as url,
        httpx.AsyncClient(
            base_url=url,
            headers={"authorization": "Bearer sesame", "x-forwarded-for": "9.9.9.9"},  # a claim of the client's own
            transport=httpx.AsyncHTTPTransport(verify=authority.client(), local_address=ANNA),
            timeout=30,
        ) as client,
    ):
        await _ready(client)
        assert (await client.get("/v1/models")).status_code == 200
        assert f"client={ANNA} method=GET route=/v1/models status=200" in caplog.text
        assert (await client.get("/metrics")).status_code == 403
        await _streams(client)
        document = await client.post("/v1/phone/twiml?token=open", data={"CallSid": "CA1"})
        assert f"wss://{url.removeprefix('https://')}/v1/phone" in document.text  # X-Forwarded-Proto and Host

        hello = {**MANUAL, "key": "sesame"}

        async def ring(address: str) -> Peer:
            return await Peer.open(url, hello, ssl=authority.client(), local_addr=(address, 0), origin=url)

        peers = [await ring(ANNA), await ring(ANNA)]
        with pytest.raises(InvalidStatus) as refused:
            await ring(ANNA)
        assert refused.value.response.status_code == 503
        assert refused.value.response.headers["retry-after"] == "1"
        peers.append(await ring(BEN))
        for address, count in ((ANNA, 2), (BEN, 1)):
            assert server.service.sessions.limits.sockets[address] == count
        await asyncio.sleep(HELD_S)  # nothing is said; there is no event to wait for
        for peer in peers:
            assert (await peer.say("still here"))[-1][3] == "done"
        lost = peers.pop()
        lost.drop()  # the proxy passes the end on
        await eventually(lambda: server.service.sessions.conversations.parked)
        for peer in peers:
            await peer.bye()
        assert "9.9.9.9" not in caplog.text


async def _ready(client: httpx.AsyncClient) -> None:
    """Wait until the proxy has found the server: HAProxy asks /readyz first."""
    for _ in range(200):
        if (await client.get("/readyz")).status_code == 200:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the proxy does not find the server")


async def _streams(client: httpx.AsyncClient) -> None:
    """Check that events pass while they are made: this answer never ends by itself."""
    body = {"messages": [{"role": "user", "content": "wait"}], "stream": True}
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.status_code == 200
        assert (await anext(answer.aiter_lines())).startswith("data: ")
