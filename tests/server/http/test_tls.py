"""TLS: https and wss, certificates that change, handshakes that do not end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from certificates import Authority, common_name, write_pair
from house import Running, start
from peer import MANUAL, Peer, eventually

from voxlane.server import limits
from voxlane.server.api import sockets
from voxlane.server.cli import main
from voxlane.server.config import LimitsConfig, ServerConfig
from voxlane.server.errors import ConfigError
from voxlane.server.http.tls import Certificate, Handshakes
from voxlane.server.protocols.native import NATIVE


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@asynccontextmanager
async def secured(serving: Any, folder: Path, authority: Authority, **options: Any) -> AsyncIterator[Running]:
    """Serve with a certificate for `first`."""
    cert, key = write_pair(folder, authority.pair("first"))
    async with serving(server=ServerConfig(tls_cert=cert, tls_key=key), **options) as server:
        yield server


def port_of(server: Running) -> int:
    return int(server.listener.getsockname()[1])


async def certificate_shown(server: Running, authority: Authority) -> str:
    """Return the name in the certificate of a new handshake."""
    _, writer = await asyncio.open_connection("127.0.0.1", port_of(server), ssl=authority.client())
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    with contextlib.suppress(ssl.SSLError, ConnectionError):
        await writer.wait_closed()
    return common_name(shown)


async def test_requests_pages_and_conversations(serving: Any, tmp_path: Path, authority: Authority) -> None:
    async with (
        secured(serving, tmp_path, authority) as server,
        httpx.AsyncClient(base_url=server.url, verify=authority.client()) as client,
    ):
        assert server.url.startswith("https://")
        assert (await client.get("/v1/models")).status_code == 200
        page = await client.get("/", headers={"accept": "text/html"})
        assert page.status_code == 200
        assert "<html" in page.text
        body = {"messages": [{"role": "user", "content": "hello"}], "stream": True}
        async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            assert [line async for line in answer.aiter_lines() if line][-1] == "data: [DONE]"
        peer = await Peer.open(server.url, MANUAL, ssl=authority.client(), origin=server.url)
        assert peer.socket.transport.get_extra_info("ssl_object").version() == "TLSv1.3"
        assert (await peer.say("hello"))[-1][3] == "done"
        await peer.bye()


async def test_a_large_body_and_a_large_answer_pass(serving: Any, tmp_path: Path, authority: Authority) -> None:
    async with (
        secured(serving, tmp_path, authority) as server,
        httpx.AsyncClient(base_url=server.url, verify=authority.client()) as client,
    ):
        said = "x" * 900_000
        answer = await client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": said}]})
        assert answer.status_code in (200, 400)
        refused = await client.post("/v1/chat/completions", content=b"x" * 4_000_000)
        assert refused.status_code == 413


@pytest.mark.parametrize(
    ("version", "works"),
    [(ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True), (ssl.TLSVersion.TLSv1_3, True)],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_old_versions_are_refused(
    serving: Any, tmp_path: Path, authority: Authority, version: ssl.TLSVersion, works: bool
) -> None:
    context = authority.client()
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version
    async with secured(serving, tmp_path, authority) as server, httpx.AsyncClient(verify=context) as client:
        if works:
            assert (await client.get(f"{server.url}/healthz")).status_code == 200
        else:
            with pytest.raises(httpx.ConnectError):
                await client.get(f"{server.url}/healthz")


@pytest.mark.parametrize("command", ["curl", "openssl"])
async def test_other_programs_connect(serving: Any, tmp_path: Path, authority: Authority, command: str) -> None:
    roots = tmp_path / "roots.pem"
    roots.write_bytes(authority.pem)
    async with secured(serving, tmp_path, authority) as server:
        arguments = {
            "curl": ["curl", "-sS", "--cacert", str(roots), f"{server.url}/healthz"],
            "openssl": ["openssl", "s_client", "-connect", f"127.0.0.1:{port_of(server)}", "-CAfile", str(roots),
                        "-verify_return_error", "-brief"],
        }[command]  # fmt: skip
        try:
            ran = await asyncio.create_subprocess_exec(
                *arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
        except FileNotFoundError:
            pytest.skip(f"{command} is not installed")
        told, _ = await ran.communicate()
        assert ran.returncode == 0, told
        assert (b'"status":"ready"' if command == "curl" else b"Verification: OK") in told


async def test_plain_http_to_a_tls_port_harms_nothing(serving: Any, tmp_path: Path, authority: Authority) -> None:
    async with secured(serving, tmp_path, authority) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(server))
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            assert b"200 OK" not in await reader.read()
        writer.close()
        assert await certificate_shown(server, authority) == "first"


# ---- files


async def test_a_renewed_certificate_is_used_and_connections_stay(
    serving: Any,
    tmp_path: Path,
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(limits, "WATCH_SECONDS", 0.01)
    caplog.set_level(logging.INFO, "voxlane")
    async with secured(serving, tmp_path, authority) as server:
        peer = await Peer.open(server.url, MANUAL, ssl=authority.client())
        assert await certificate_shown(server, authority) == "first"
        whole = authority.pair("second")
        (tmp_path / "cert.pem").write_bytes(whole[0][:300])  # half a file
        await eventually(lambda: "tls files not read again" in caplog.text)
        assert await certificate_shown(server, authority) == "first"
        (tmp_path / "cert.pem").write_bytes(whole[0])  # whole, but its key is not there yet
        await eventually(lambda: "is not the key of the certificate" in caplog.text)
        assert await certificate_shown(server, authority) == "first"
        (tmp_path / "key.pem").write_bytes(whole[1])
        await eventually(lambda: "tls files read again" in caplog.text)
        assert await certificate_shown(server, authority) == "second"
        assert (await peer.say("still here"))[-1][3] == "done"
        await peer.bye()


def test_a_file_that_cannot_be_read_is_told_once(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    cert, key = map(Path, write_pair(tmp_path, authority.pair("first")))
    certificate = Certificate(cert, key)
    assert not certificate.refresh()
    key.unlink()
    for _ in range(3):
        assert not certificate.refresh()
    assert caplog.text.count("tls files not read again") == 1


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        ("no cert", "server.tls_cert: .*No such file"),
        ("no key", "server.tls_key: .*No such file"),
        ("other key", "server.tls_key: .* is not the key of the certificate in"),
        ("empty key", "server.tls_key: .* is not a private key in PEM"),
        ("cert is key", "server.tls_cert: .* is not a certificate in PEM"),
        ("sealed", "server.tls_key: .* has a password"),
        ("broken", "server.tls_cert: .* cannot be used"),
    ],
)
def test_what_is_wrong_with_the_files_is_told(tmp_path: Path, authority: Authority, spoil: str, told: str) -> None:
    cert, key = map(Path, write_pair(tmp_path, authority.pair("first", b"secret" if spoil == "sealed" else b"")))
    match spoil:
        case "no cert":
            cert.unlink()
        case "no key":
            key.unlink()
        case "other key":
            key.write_bytes(authority.pair("other")[1])
        case "empty key":
            key.write_bytes(b"")
        case "cert is key":
            cert.write_bytes(key.read_bytes())
        case "broken":
            cert.write_bytes(cert.read_bytes()[:200])
    with pytest.raises(ConfigError, match=told):
        Certificate(cert, key)


def test_a_key_that_every_user_can_read_is_warned_about(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    cert, key = map(Path, write_pair(tmp_path, authority.pair("first")))
    Certificate(cert, key)
    assert "readable" not in caplog.text
    key.chmod(0o644)
    Certificate(cert, key)
    assert "tls key readable by every user" in caplog.text


# ---- handshakes


async def test_a_handshake_that_does_not_end_is_ended(
    serving: Any, tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HANDSHAKE_SECONDS", 0.05)
    async with secured(serving, tmp_path, authority) as server:
        for said in (b"", b"\x16\x03\x01"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(server))
            writer.write(said)
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()
        await eventually(lambda: not server.http.tls.beginning)


async def test_a_head_has_its_time_after_the_handshake(
    serving: Any, tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HEAD_SECONDS", 0.05)
    async with secured(serving, tmp_path, authority) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(server), ssl=authority.client())
        assert await reader.read() == b""
        writer.close()


async def test_silent_handshakes_of_an_address_keep_only_its_own_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HANDSHAKES_PER_ADDRESS", 2)
    handshakes = Handshakes()
    await handshakes.begin("a")
    await handshakes.begin("a")
    third, fourth = (asyncio.ensure_future(handshakes.begin("a")) for _ in range(2))
    await asyncio.sleep(0)
    await handshakes.begin("b")  # another address does not wait
    third.cancel()
    handshakes.end("a")
    await fourth  # the place of the first, since the third has given up
    assert third.cancelled()
    for address in ("a", "a", "b"):
        handshakes.end(address)
    assert not handshakes._running
    assert not handshakes._waiting


async def test_half_open_handshakes_keep_no_client_of_their_address_waiting(
    serving: Any, tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HANDSHAKE_SECONDS", 3600.0)
    monkeypatch.setattr(limits, "HANDSHAKES_PER_ADDRESS", 2)
    async with secured(serving, tmp_path, authority) as server, asyncio.timeout(60):
        silent = [await asyncio.open_connection("127.0.0.1", port_of(server)) for _ in range(5)]
        for _, writer in silent:
            writer.write(b"\x16\x03\x01")  # the beginning of a ClientHello
        await eventually(lambda: len(server.http.tls.beginning) == 5)
        async with httpx.AsyncClient(verify=authority.client()) as client:
            assert (await client.get(f"{server.url}/livez")).status_code == 200
        for _, writer in silent:
            writer.close()


async def test_a_place_that_comes_with_the_end_of_patience_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HANDSHAKES_PER_ADDRESS", 1)
    handshakes = Handshakes()
    await handshakes.begin("a")
    second, third = (asyncio.ensure_future(handshakes.begin("a")) for _ in range(2))
    await asyncio.sleep(0)
    handshakes.end("a")
    second.cancel()  # in the same moment
    await third
    handshakes.end("a")
    assert not handshakes._running


async def test_handshakes_under_way_end_with_the_server(serving: Any, tmp_path: Path, authority: Authority) -> None:
    async with secured(serving, tmp_path, authority) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(server))
        await eventually(lambda: server.http.tls.beginning)
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""
    writer.close()


async def test_limits_of_connections_hold(serving: Any, tmp_path: Path, authority: Authority) -> None:
    allowed = LimitsConfig(connections_per_address=2)
    async with secured(serving, tmp_path, authority, limits=allowed) as server:
        clients = [
            await asyncio.open_connection("127.0.0.1", port_of(server), ssl=authority.client()) for _ in range(3)
        ]
        statuses = []
        for reader, writer in clients:
            writer.write(b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            statuses.append((await reader.readline()).split()[1])
        assert statuses[0] == b"503"  # all three are open: each is one too many
        for _, writer in clients:
            writer.close()


async def test_an_unread_body_is_not_waited_for(
    serving: Any, tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LINGER_SECONDS", 0.05)
    async with secured(serving, tmp_path, authority) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(server), ssl=authority.client())
        writer.write(b"POST /v1/nowhere HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 404")
        assert b"connection: close" in head.lower()
        with contextlib.suppress(ConnectionResetError):
            await reader.read()
        await eventually(lambda: not server.http._connections.ending)
        writer.close()


# ---- floods

PING = bytes([0x89, 0x80, 0, 0, 0, 0])
LONG_PING = bytes([0x89, 0x80 | 125, 0, 0, 0, 0]) + bytes(125)
UPGRADE = (
    b"GET /v1/voice HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: voxlane.v1\r\n\r\n"
)


async def flood(server: Running, authority: Authority, *, reads: bool) -> None:
    """Send pings without end, and read the answers or not; the server ends it, and keeps little."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, server.listener.getsockname())
    reader, writer = await asyncio.open_connection(sock=sock, ssl=authority.client(), server_hostname="127.0.0.1")
    writer.write(UPGRADE)
    await reader.readuntil(b"\r\n\r\n")
    port = sock.getsockname()[1]
    connection = next(one for one in server.http._server.server_state.connections if one.client[1] == port)
    if not reads:
        writer.transport.pause_reading()
        connection.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    most = 0
    writer.write((PING if reads else LONG_PING) * 20_000)
    while not connection.disconnected:
        if reads:
            with contextlib.suppress(ConnectionError):
                await reader.read(4096)
        most = max(most, connection.transport.get_write_buffer_size() if not connection.transport.is_closing() else 0)
        await asyncio.sleep(0.001)
    assert most < 256 * 1024  # of 2.5 MB of answers
    writer.transport.abort()


def hasten(monkeypatch: pytest.MonkeyPatch, frames_burst: int) -> None:
    changed = replace(NATIVE.rate_limits, frames_per_s=0.0, frames_burst=frames_burst)
    monkeypatch.setattr(sockets, "NATIVE", replace(NATIVE, rate_limits=changed))
    monkeypatch.setattr(limits, "SOCKET_WRITE_SECONDS", 0.2)
    monkeypatch.setattr(limits, "VOICE_CLOSE_SECONDS", 0.1)


@pytest.mark.parametrize(("reads", "burst", "code"), [(True, 600, "4429"), (False, 1 << 20, "4408")])
async def test_floods_end_as_without_tls(
    serving: Any,
    tmp_path: Path,
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
    reads: bool,
    burst: int,
    code: str,
) -> None:
    hasten(monkeypatch, burst)
    async with secured(serving, tmp_path, authority) as server:
        await flood(server, authority, reads=reads)
        closed = server.service.metrics.sockets_closed.labels(code)
        await eventually(lambda: closed._value.get() == 1)


# ---- the event loop of production


def test_all_of_it_runs_on_uvloop(tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """uvloop has a TLS of its own: the whole path is taken once on it."""
    uvloop = pytest.importorskip("uvloop")

    async def visit() -> None:
        cert, key = write_pair(tmp_path, authority.pair("first"))
        async with (
            start(server=ServerConfig(tls_cert=cert, tls_key=key)) as server,
            httpx.AsyncClient(base_url=server.url, verify=authority.client()) as client,
        ):
            peer = await Peer.open(server.url, MANUAL, ssl=authority.client())
            assert (await client.get("/v1/models")).status_code == 200
            refused = await client.post("/v1/chat/completions", content=b"x" * 4_000_000)
            assert refused.status_code == 413
            write_pair(tmp_path, authority.pair("second"))
            assert server.http.certificate is not None
            assert server.http.certificate.refresh()
            assert await certificate_shown(server, authority) == "second"
            assert (await peer.say("still here"))[-1][3] == "done"
            await peer.bye()
            hasten(monkeypatch, 1 << 20)
            await flood(server, authority, reads=False)
            monkeypatch.setattr(limits, "HANDSHAKE_SECONDS", 0.05)
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(server))
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()
            await eventually(lambda: not server.http.tls.beginning)
            monkeypatch.setattr(limits, "HEAD_SECONDS", 0.05)
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(server), ssl=authority.client())
            assert await reader.read() == b""
            writer.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(visit())


def test_the_command_says_what_is_wrong_and_does_not_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["serve", "--port", "0", "--tls-cert", "no.pem"]
    assert main(options) == 2
    told = "voxlane: server.tls_cert and server.tls_key must be given together"
    assert capsys.readouterr().err.startswith(told)
    command = [sys.executable, "-m", "voxlane.server.cli", *options, "--tls-key", "no.key"]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False)
    assert ran.returncode == 2
    assert ran.stderr.startswith("voxlane: server.tls_cert: no.pem: No such file")
