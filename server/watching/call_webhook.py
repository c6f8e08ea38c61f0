"""Tells the operator's server that a conversation has ended: one signed POST, as Standard Webhooks has it.

    webhook-id: msg_…             the same for every attempt, so that a receiver can drop a repetition
    webhook-timestamp: 1763416800 seconds since 1970, of the attempt
    webhook-signature: v1,…       base64 of HMAC-SHA256 over `id.timestamp.body`

Calls never wait for it. The queue is bounded; an attempt that fails is repeated later and later, then given up.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from voxlane.server import limits
from voxlane.server.errors import ConfigError
from voxlane.server.log import line
from voxlane.server.watching.metrics import Metrics

if TYPE_CHECKING:
    import httpx

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 10.0
"""Time for one attempt."""

RETRY_SECONDS = (2.0, 10.0, 60.0, 300.0, 1800.0)
"""Pauses before the second attempt and the next ones; then a message is given up."""

MOST_WAITING = 1000
"""Messages that wait. When there are more, the oldest is given up."""

AT_ONCE = 4
"""Messages that are sent at one time: a receiver that is slow delays the others less."""

CLOSE_SECONDS = limits.ENGINE_STOP_SECONDS
"""Time at shutdown for messages that wait: each gets one more attempt, beside the engine's end."""

GONE = 410
"""The receiver wants no more messages: this one is not repeated."""

SECRET_PREFIX = "whsec_"
"""Begins a secret that is base64, in Standard Webhooks' way."""

SECRET_BYTES = 24
"""The shortest key that Standard Webhooks allows."""


@dataclass(slots=True)
class _Message:
    id: str
    body: bytes
    attempts: int = 0
    due_s: float = 0.0


def webhook_key(secret: str) -> bytes:
    """Return the bytes of a secret; raise ConfigError if it is too short or no base64."""
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True) if _coded(secret) else secret.encode()
    except binascii.Error as error:
        raise ConfigError(f"VOXLANE_WEBHOOK_SECRET: what follows {SECRET_PREFIX} must be base64") from error
    if len(key) < SECRET_BYTES:
        raise ConfigError(f"VOXLANE_WEBHOOK_SECRET: a secret has at least {SECRET_BYTES} bytes")
    return key


def _coded(secret: str) -> bool:
    return secret.startswith(SECRET_PREFIX)


def signature(key: bytes, name: str, timestamp: int, body: bytes) -> str:
    """Return the value of the header webhook-signature."""
    signed = f"{name}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


class CallWebhook:
    """The queue of messages to one address, and the tasks that send them."""

    def __init__(
        self,
        url: str,
        secret: str,
        metrics: Metrics,
        retry_seconds: tuple[float, ...] = RETRY_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._url = url
        self._key = webhook_key(secret)
        self._metrics = metrics
        self._retry_seconds = retry_seconds
        self._clock = clock  # seconds since 1970: the receiver compares it with its own
        self._waiting: deque[_Message] = deque()  # not sorted: a message that failed has its time
        self._wake = asyncio.Event()
        self._workers: list[asyncio.Task[None]] = []
        self._client: httpx.AsyncClient | None = None
        self._leaving = False

    async def start(self) -> None:
        """Send from now on."""
        import httpx  # needed only with a webhook

        # Redirects are not followed, and proxies of the environment not used: the configured address, and no other.
        self._client = httpx.AsyncClient(timeout=ANSWER_SECONDS, follow_redirects=False, trust_env=False)
        self._workers = [asyncio.create_task(self._work(), name="call webhook") for _ in range(AT_ONCE)]

    def put(self, kind: str, data: Mapping[str, object], timestamp: str) -> None:
        """Queue a message."""
        body = json.dumps({"type": kind, "timestamp": timestamp, "data": data}, separators=(",", ":")).encode()
        if len(self._waiting) >= MOST_WAITING:
            self._give_up(self._waiting.popleft(), "queue_full")
        self._waiting.append(_Message(f"msg_{secrets.token_hex(12)}", body))
        self._wake.set()

    async def aclose(self) -> None:
        """Try what waits once more, then give it up."""
        self._leaving = True
        self._wake.set()
        if self._workers:
            await asyncio.wait(self._workers, timeout=CLOSE_SECONDS)
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        while self._waiting:
            self._give_up(self._waiting.popleft(), "shutdown")
        if self._client is not None:
            await self._client.aclose()

    async def _work(self) -> None:
        while True:
            message = self._next()
            if message is not None:
                await self._deliver(message)
            elif self._leaving:
                return
            else:
                await self._wait()

    def _next(self) -> _Message | None:
        """Take the first message that is due; at shutdown all are."""
        now = asyncio.get_running_loop().time()
        for message in self._waiting:
            if message.due_s <= now or self._leaving:
                self._waiting.remove(message)
                return message
        return None

    async def _wait(self) -> None:
        """Wait for another message, or until one is due."""
        due_s = min((message.due_s for message in self._waiting), default=None)
        self._wake.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout_at(due_s):
                await self._wake.wait()

    async def _deliver(self, message: _Message) -> None:
        message.attempts += 1
        try:
            reason = await self._attempt(message)
        except asyncio.CancelledError:
            self._give_up(message, "shutdown")
            raise
        if not reason:
            self._metrics.webhooks.labels("delivered").inc()
        elif self._leaving:
            self._give_up(message, "shutdown")
        elif reason == str(GONE) or message.attempts > len(self._retry_seconds):
            self._give_up(message, reason)
        else:
            delay_s = self._retry_seconds[message.attempts - 1]
            message.due_s = asyncio.get_running_loop().time() + delay_s
            logger.warning(line("webhook failed", reason=reason, attempt=message.attempts, retry_in_s=delay_s))
            self._waiting.append(message)
            self._wake.set()

    async def _attempt(self, message: _Message) -> str:
        """Send a message; return why that failed, "" if it was taken."""
        import httpx

        assert self._client is not None
        timestamp = int(self._clock())
        headers = {
            "content-type": "application/json",
            "webhook-id": message.id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": signature(self._key, message.id, timestamp, message.body),
        }
        try:
            # The answer's body is not read: its status says all.
            async with (
                asyncio.timeout(ANSWER_SECONDS),
                self._client.stream("POST", self._url, content=message.body, headers=headers) as answer,
            ):
                self._client.cookies.clear()
                return "" if answer.is_success else str(answer.status_code)
        except (httpx.HTTPError, TimeoutError) as error:
            return type(error).__name__

    def _give_up(self, message: _Message, reason: str) -> None:
        self._metrics.webhooks.labels("given_up").inc()
        logger.error(line("webhook given up", id=message.id, reason=reason, attempts=message.attempts))
