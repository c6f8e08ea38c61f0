"""Asks the customer's server to run a tool: one POST for each call, signed with the phone key."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
from typing import TYPE_CHECKING

from voxlane.server.log import line
from voxlane.server.phone.call_facts import as_data
from voxlane.server.phone.call_tools import CustomerTool
from voxlane.server.protocols.phone.line_events import CallFacts

if TYPE_CHECKING:
    import httpx

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 20.0
"""Time for an answer: a caller does not wait longer in silence."""

ANSWER_BYTES = 32_000
"""Longest answer, as of a native client's tool."""

FAILED = json.dumps({"error": "The tool cannot be reached."})
"""What the model is told when the customer's server fails."""


class ToolWebhook:
    """The customer's server for tools."""

    def __init__(self, url: str, key: str) -> None:
        self._url = url
        self._key = key
        self._client: httpx.AsyncClient | None = None

    async def ask(self, tool: CustomerTool, facts: CallFacts) -> str:
        """Return the output of a tool, or FAILED."""
        import httpx  # needed only with a webhook

        if self._client is None:
            self._client = httpx.AsyncClient(timeout=ANSWER_SECONDS)
        body = json.dumps({"tool": tool.name, "arguments": _parsed(tool.arguments), "call": as_data(facts)}).encode()
        headers = {"content-type": "application/json"}
        if self._key:
            headers["x-voxlane-signature"] = "sha256=" + hmac.new(self._key.encode(), body, hashlib.sha256).hexdigest()
        try:
            async with (
                asyncio.timeout(ANSWER_SECONDS),
                self._client.stream("POST", self._url, content=body, headers=headers) as answer,
            ):
                self._client.cookies.clear()  # those of one call are not for another
                answer.raise_for_status()
                return await _text(answer)
        except (httpx.HTTPError, TimeoutError, ValueError) as error:  # UnicodeDecodeError is a ValueError
            logger.warning(line("phone tool failed", error=type(error).__name__))
            return FAILED

    async def aclose(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()


async def _text(answer: httpx.Response) -> str:
    found = bytearray()
    async for piece in answer.aiter_bytes():
        found += piece
        if len(found) > ANSWER_BYTES:
            raise ValueError("too long")
    return found.decode()


def _parsed(arguments: str) -> object:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments
