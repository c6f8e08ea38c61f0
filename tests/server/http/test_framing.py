"""Requests whose framing or encoding is made to hurt: one answer, one line in the log, no traceback."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import h11
import pytest
from peer import eventually

from voxlane.server import limits
from voxlane.server.http.framing import StrictConnection

UPLOAD = b"/v1/audio/transcriptions"
HOST = b"Host: 127.0.0.1\r\n"
BODY = b'{"messages": [{"role": "user", "content": "hello"}]}'
SOCKET = (
    HOST + b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    b"Sec-WebSocket-Version: 13\r\n"
)


def request(target: bytes, head: bytes = b"", body: bytes | None = None, method: bytes = b"POST") -> bytes:
    """Return a request that closes its connection; with a body also its length."""
    length = b"" if body is None else b"Content-Length: %d\r\n" % len(body)
    return b"%s %s HTTP/1.1\r\n%sConnection: close\r\n%s%s\r\n%s" % (method, target, HOST, length, head, body or b"")


def form(part: bytes, value: bytes = b"x") -> bytes:
    """Return an upload whose only part has that head."""
    body = b"--b\r\n%s\r\n\r\n%s\r\n--b--\r\n" % (part, value)
    kind = b"Content-Type: multipart/form-data; boundary=b\r\n"
    return request(UPLOAD, kind, body)


async def ask(server: Any, said: bytes) -> bytes:
    """Send bytes and return all that comes back."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.listener.getsockname()[1])
    writer.write(said)
    answer = await reader.read()
    writer.close()
    return answer


# ---- where a request ends


@pytest.mark.parametrize(
    "head",
    [
        b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.0\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n",
    ],
    ids=["both", "the other order", "HTTP/1.0"],
)
async def test_a_request_with_two_lengths_is_refused_and_the_connection_ends(serving: Any, head: bytes) -> None:
    hidden = b"GET /v1/models HTTP/1.1\r\n" + HOST + b"\r\n"
    async with serving() as server:
        answer = await ask(server, head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY) + hidden)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"connection: close" in answer.lower()
    assert answer.count(b"HTTP/1.1 ") == 1  # what came after it is no request


async def test_a_body_in_one_byte_chunks_is_refused_early(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SMALL_CHUNKS_PER_SECOND", 0.0)
    parsed = 0
    whole = StrictConnection.next_event

    def counting(self: StrictConnection) -> Any:
        nonlocal parsed
        parsed += 1
        return whole(self)

    monkeypatch.setattr(StrictConnection, "next_event", counting)
    chunked = b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
    async with serving() as server:
        answer = await ask(server, chunked + b"1\r\n \r\n" * 100_000)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert parsed < limits.SMALL_CHUNKS + 100
        await eventually(lambda: not server.service.request_limit.inside)
        assert (await server.chat("hello")).status_code == 200


async def test_a_body_in_chunks_of_a_usual_size_is_read(serving: Any) -> None:
    chunked = (
        b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    padded = BODY + b" " * (1024 * 2000)  # twice as many chunks as small ones are allowed
    chunks = b"".join(b"400\r\n%s\r\n" % padded[at : at + 1024] for at in range(0, 1024 * 1000, 1024))
    async with serving() as server:
        answer = await ask(server, chunked + chunks + b"0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")


def test_small_chunks_are_allowed_again_with_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("voxlane.server.http.framing.time.monotonic", lambda: clock[0])
    parser = StrictConnection(limits.HEAD_BYTES)
    parser.receive_data(b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n")
    assert isinstance(parser.next_event(), h11.Request)
    for _ in range(10 * limits.SMALL_CHUNKS):  # sound as it is spoken: one piece every 20 ms
        clock[0] += 0.02
        parser.receive_data(b"2\r\nab\r\n")
        assert isinstance(parser.next_event(), h11.Data)
        assert parser.next_event() is h11.NEED_DATA
    clock[0] += 60
    parser.receive_data(b"2\r\nab\r\n" * (limits.SMALL_CHUNKS + 1))
    for _ in range(limits.SMALL_CHUNKS):
        assert isinstance(parser.next_event(), h11.Data)
    with pytest.raises(h11.RemoteProtocolError, match="small chunks"):
        parser.next_event()


@pytest.mark.parametrize("head", [b"Transfer-Encoding: chunked", b"Content-Length: 100000"], ids=["chunked", "plain"])
def test_what_the_network_cuts_small_does_not_count(head: bytes) -> None:
    parser = StrictConnection(limits.HEAD_BYTES)
    body = b"2710\r\n%s\r\n" % bytes(10_000) * 10 if b"chunked" in head else bytes(100_000)
    parser.receive_data(b"POST / HTTP/1.1\r\n" + HOST + head + b"\r\n\r\n")
    parser.next_event()
    pieces = 0
    for at in range(0, len(body), 100):
        parser.receive_data(body[at : at + 100])
        while (event := parser.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
            pieces += isinstance(event, h11.Data)
    assert pieces > limits.SMALL_CHUNKS


# ---- what is not UTF-8

FIELDS = b"Content-Type: application/x-www-form-urlencoded\r\n"
CALLS = ("twiml", "texml", "plivo", "vonage", "twiml/next")
NOT_UTF8: dict[str, tuple[bytes, int]] = {
    "path": (request(b"/v1/\xff\xfe", method=b"GET"), 400),
    "quoted path": (request(b"/v1/models/%ff%fe", method=b"GET"), 404),
    "quoted file": (request(b"/client/%ff%fe", method=b"GET"), 404),
    "voice": (request(b"/v1/audio/voices/%ff%00", method=b"DELETE"), 404),
    "query": (request(b"/v1/models?x=\xff", method=b"GET"), 400),
    "quoted query": (request(b"/v1/models?x=%ff", method=b"GET"), 200),
    "key": (request(b"/v1/models", b"Authorization: Bearer \xff\r\n", method=b"GET"), 200),
    "origin": (request(b"/v1/models", b"Origin: \xff\r\n", method=b"GET"), 403),
    "header name": (request(b"/v1/models", b"X-\xff: a\r\n", method=b"GET"), 400),
    "boundary": (request(UPLOAD, b"Content-Type: multipart/form-data; boundary=\xff\r\n", b"x"), 400),
    "chat": (request(b"/v1/chat/completions", b"", b'{"messages": "\xff"}'), 400),
    "half a pair": (request(b"/v1/chat/completions", b"", b'{"messages": "\\ud800"}'), 400),
    "speech": (request(b"/v1/audio/speech", b"", b'{"input": "\xff"}'), 400),
    "secret": (request(b"/v1/realtime/client_secrets", b"", b'{"session": "\xff"}'), 400),
    "field name": (form(b'Content-Disposition: form-data; name="\xff"'), 400),
    "field": (form(b'Content-Disposition: form-data; name="model"', b"\xff"), 400),
    "file name": (form(b'Content-Disposition: form-data; name="file"; filename="\xff"'), 400),
    "part header": (form(b'\xff: form-data; name="file"'), 400),
    "encoded name": (form(b"Content-Disposition: form-data; name*=utf-8''%ff"), 400),
    **{f"call {name}": (request(f"/v1/phone/{name}?a=%ff".encode(), FIELDS, b"a=%ff\xff"), 400) for name in CALLS},
    "socket path": (b"GET /v1/voice\xff HTTP/1.1\r\n" + SOCKET + b"\r\n", 400),
    "socket origin": (b"GET /v1/voice HTTP/1.1\r\n" + SOCKET + b"Origin: \xff\r\n\r\n", 400),
    "socket protocol": (b"GET /v1/voice HTTP/1.1\r\n" + SOCKET + b"Sec-WebSocket-Protocol: v.\xff\r\n\r\n", 400),
    "socket key": (b"GET /v1/voice HTTP/1.1\r\n" + SOCKET.replace(b"AAAA==", b"\xff\xff\xff\xff==") + b"\r\n", 400),
    "socket header": (b"GET /v1/voice HTTP/1.1\r\n" + SOCKET + b"X-A: \xff\r\n\r\n", 400),
    "socket of ASCII": (b"GET /v1/voice HTTP/1.1\r\n" + SOCKET + b"Sec-WebSocket-Protocol: @,,\r\n\r\n", 400),
}  # fmt: skip


@pytest.mark.parametrize(("said", "status"), NOT_UTF8.values(), ids=NOT_UTF8)
async def test_what_is_not_utf8_is_answered_in_one_line(
    serving: Any, caplog: pytest.LogCaptureFixture, said: bytes, status: int
) -> None:
    async with serving() as server:
        with caplog.at_level(logging.WARNING):
            answer = await ask(server, said)
            assert (await server.client.get("/v1/models")).status_code == 200
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert not any(record.exc_info or "Traceback" in record.getMessage() for record in caplog.records)
    assert all("\n" not in record.getMessage() for record in caplog.records)
    body = answer.partition(b"\r\n\r\n")[2]
    if body.startswith(b"{") and status >= 400:
        assert "\n" not in json.loads(body)["error"]["message"]
