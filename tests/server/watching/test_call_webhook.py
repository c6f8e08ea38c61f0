"""The webhook at the end of a call: signed as Standard Webhooks has it, repeated, bounded, to one address only."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from peer import MANUAL, Peer, eventually

from voxlane.server import config as configuration
from voxlane.server.config import Config, WebhookConfig
from voxlane.server.errors import ConfigError
from voxlane.server.watching import call_webhook
from voxlane.server.watching.call_webhook import CallWebhook, signature, webhook_key
from voxlane.server.watching.metrics import Metrics
from voxlane.server.watching.watch_service import WatchService
from voxlane.server.watching.watched_call import HANDED_OVER

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()


@dataclass
class Receiver:
    """Takes messages, and answers with the statuses that a test wants; the last one goes on."""

    statuses: list[str] = field(default_factory=lambda: ["204 No Content"])
    heads: list[dict[str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    port: int = 0
    silent: bool = False
    tasks: set[asyncio.Task[None] | None] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tasks.add(asyncio.current_task())
        try:
            while True:
                first, *rest = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
                head = {name.lower(): value.strip() for name, _, value in (one.partition(":") for one in rest)}
                self.bodies.append(await reader.readexactly(int(head.get("content-length", "0"))))
                self.heads.append(head)
                self.paths.append(first.split()[1])
                if self.silent:
                    await asyncio.Event().wait()
                status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
                writer.write(f"HTTP/1.1 {status}\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n".encode())
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def receiving(*statuses: str) -> AsyncIterator[Receiver]:
    one = Receiver(list(statuses) or ["204 No Content"])
    server = await asyncio.start_server(one.serve, "127.0.0.1", 0)
    one.port = server.sockets[0].getsockname()[1]
    try:
        yield one
    finally:
        server.close()
        for task in filter(None, one.tasks):
            task.cancel()
        await asyncio.gather(*filter(None, one.tasks), return_exceptions=True)


@asynccontextmanager
async def webhook(
    receiver: Receiver, metrics: Metrics, retries: tuple[float, ...] = (0.0, 0.0)
) -> AsyncIterator[CallWebhook]:
    one = CallWebhook(f"http://127.0.0.1:{receiver.port}/calls", SECRET, metrics, retries, clock=lambda: 1_763_416_800)
    await one.start()
    try:
        yield one
    finally:
        await one.aclose()


def counted(metrics: Metrics, result: str) -> float:
    return metrics.registry.get_sample_value("voxlane_webhooks_total", {"result": result}) or 0.0


def verify(head: dict[str, str], body: bytes) -> None:
    """Check a message as a receiver does, by the words of the specification."""
    signed = b".".join((head["webhook-id"].encode(), head["webhook-timestamp"].encode(), body))
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    wanted = base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
    assert head["webhook-signature"] == f"v1,{wanted}"


def test_the_signature_is_that_of_standard_webhooks() -> None:
    # The specification's own example.
    key = webhook_key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    body = b'{"test": 2432232314}'
    made = signature(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
    assert made == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


async def test_a_message_is_signed_and_delivered_once() -> None:
    metrics = Metrics()
    async with receiving() as receiver, webhook(receiver, metrics) as one:
        one.put("call.ended", {"session": "voice-1"}, "2026-11-17T22:00:00.000+00:00")
        await eventually(lambda: counted(metrics, "delivered") == 1)
        verify(receiver.heads[0], receiver.bodies[0])
        assert receiver.heads[0]["webhook-timestamp"] == "1763416800"
        assert json.loads(receiver.bodies[0]) == {
            "type": "call.ended",
            "timestamp": "2026-11-17T22:00:00.000+00:00",
            "data": {"session": "voice-1"},
        }
    assert len(receiver.bodies) == 1


async def test_a_refused_message_is_repeated_under_the_same_id() -> None:
    metrics = Metrics()
    async with receiving("500 No", "503 No", "200 OK") as receiver, webhook(receiver, metrics) as one:
        one.put("call.ended", {}, "")
        await eventually(lambda: counted(metrics, "delivered") == 1)
    assert len({head["webhook-id"] for head in receiver.heads}) == 1
    assert len(receiver.heads) == 3


@pytest.mark.parametrize(
    ("status", "attempts"), [("500 No", 3), ("410 Gone", 1), ("302 Found", 3), ("307 Elsewhere", 3)]
)
async def test_in_the_end_it_is_given_up(status: str, attempts: int, caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    async with receiving(status) as receiver, webhook(receiver, metrics) as one:
        one.put("call.ended", {}, "")
        await eventually(lambda: counted(metrics, "given_up") == 1)
    assert receiver.paths == ["/calls"] * attempts  # a redirect is not followed
    assert "webhook given up" in caplog.text


async def test_a_full_queue_gives_up_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_webhook, "MOST_WAITING", 3)
    metrics = Metrics()
    one = CallWebhook("http://127.0.0.1:1/", SECRET, metrics)  # not started: nothing leaves
    for _ in range(5):
        one.put("call.ended", {}, "")
    assert counted(metrics, "given_up") == 2
    await one.aclose()
    assert counted(metrics, "given_up") == 5


async def test_a_silent_receiver_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_webhook, "CLOSE_SECONDS", 0.05)
    metrics = Metrics()
    async with receiving() as receiver:
        receiver.silent = True
        async with webhook(receiver, metrics) as one:
            one.put("call.ended", {}, "")
            await eventually(lambda: receiver.heads)
    assert counted(metrics, "given_up") == 1


async def test_what_waits_for_a_retry_gets_a_last_attempt_at_the_end() -> None:
    metrics = Metrics()
    async with receiving("500 No", "200 OK") as receiver:
        async with webhook(receiver, metrics, (3600.0,)) as one:
            one.put("call.ended", {}, "")
            await eventually(lambda: receiver.heads and one._waiting)
        assert counted(metrics, "delivered") == 1


async def test_every_conversation_is_reported_when_it_ends(serving: Any) -> None:
    async with receiving() as receiver:
        parts = {"webhook": WebhookConfig(f"http://127.0.0.1:{receiver.port}/calls")}
        async with serving(parts=parts, webhook_secret=SECRET) as running:
            peer = await Peer.open(running.url, MANUAL)
            await peer.say("canary zebra")
            await peer.bye()
            await eventually(lambda: receiver.bodies)
            verify(receiver.heads[0], receiver.bodies[0])
            told = json.loads(receiver.bodies[0])["data"]
            assert told["session"] == peer.ready["session"]
            assert (told["dialect"], told["turns"], told["interruptions"], told["reason"]) == ("native", 1, 0, "done")
            assert told["duration_s"] >= 0
            assert (told["caller"], told["recording"]) == (None, None)
            assert b"canary" not in receiver.bodies[0]
            await Peer.open(running.url, MANUAL)  # it is cut by the end of the server
        await eventually(lambda: len(receiver.bodies) == 2)
    assert json.loads(receiver.bodies[1])["data"]["reason"] == "draining"


async def test_a_conversation_that_goes_on_elsewhere_has_not_ended() -> None:
    config = Config(webhook=WebhookConfig("http://127.0.0.1:1/"))
    watch = WatchService(config, Metrics(), "test", SECRET)
    assert watch._webhook is not None
    watch.open("voice-1", "native", 0.0, 0).close(HANDED_OVER)
    assert not watch._webhook._waiting
    watch.open("voice-1", "native", 0.0, 0).close("done")
    assert len(watch._webhook._waiting) == 1


@pytest.mark.parametrize(
    ("url", "good"),
    [
        ("https://example.org/calls?x=1", True),
        ("http://127.0.0.1:9000/", True),
        ("http://localhost:9000/", True),
        ("http://[::1]:9000/", True),
        ("http://example.org/", False),
        ("http://169.254.169.254/latest", False),
        ("ftp://example.org/", False),
        ("https://user:word@example.org/", False),
        ("https:///calls", False),
    ],
)
def test_the_address_is_https_or_on_this_machine(url: str, good: bool) -> None:
    if good:
        assert configuration.load(None, {"webhook.url": url}).webhook.url == url
    else:
        with pytest.raises(ConfigError, match=r"webhook\.url must"):
            configuration.load(None, {"webhook.url": url})


@pytest.mark.parametrize(
    ("secret", "says"), [("", "VOXLANE_WEBHOOK_SECRET"), ("short", "24 bytes"), ("whsec_?", "base64")]
)
def test_a_secret_is_needed_and_long_enough(secret: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        WatchService(Config(webhook=WebhookConfig("https://example.org/")), Metrics(), "test", secret)
