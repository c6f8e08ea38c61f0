"""Requests of a command to a running server: an answer, or one line that says why there is none."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from voxlane.server.errors import ConfigError, ServerFailed

TIMEOUT = httpx.Timeout(10.0, read=300.0)
"""If every core is busy, making a voice from half a minute of sound takes 45 s; several requests may be ahead."""


class Remote:
    """One server."""

    def __init__(self, url: str, key: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"--url: {url} is not an address that begins with http:// or https://")
        self._url = url.rstrip("/").removesuffix("/v1")
        self._headers = {"authorization": f"Bearer {key}"} if key else {}

    async def ask(self, method: str, path: str, **what: Any) -> dict[str, Any]:
        """Return the answer to a request, or raise ServerFailed."""
        async with self.stream(method, path, **what) as answer:
            body = await answer.aread()
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise self.stranger()
        return found

    def stranger(self) -> ServerFailed:
        """Return the error for an answer that is not from a voxlane server."""
        return ServerFailed(f"{self._url} answers, but it is no voxlane server")

    @asynccontextmanager
    async def stream(self, method: str, path: str, **what: Any) -> AsyncIterator[httpx.Response]:
        """Give the answer to a request as it comes, or raise ServerFailed."""
        try:
            async with (
                httpx.AsyncClient(headers=self._headers, timeout=TIMEOUT) as client,
                client.stream(method, f"{self._url}{path}", **what) as answer,
            ):
                if not answer.is_success:
                    raise ServerFailed(_reason(answer, await answer.aread()))
                yield answer
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            why = str(error) or type(error).__name__
            raise ServerFailed(f"{self._url}: {why}; is `voxlane serve` running there?") from error


def _reason(answer: httpx.Response, body: bytes) -> str:
    """Return the server's own error message, if it has one."""
    elsewhere = answer.headers.get("location") if answer.is_redirect else None
    return own_words(body) or f"it answered with HTTP {answer.status_code}{f': see {elsewhere}' if elsewhere else ''}"


def own_words(body: bytes | bytearray) -> str | None:
    """Return the message of an error in our servers' shape, None for another shape."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
