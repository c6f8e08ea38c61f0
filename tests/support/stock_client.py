"""The stock `openai` client of a server on this machine."""

from __future__ import annotations

from typing import Any

from openai import AsyncOpenAI, DefaultAsyncHttpxClient, DefaultHttpxClient, OpenAI


def stock_client(server: Any, key: str = "none", path: str = "/v1") -> AsyncOpenAI:
    """Return a client that tries once. It reads no certificates: that takes longer than most requests."""
    plain = DefaultAsyncHttpxClient(verify=False)
    return AsyncOpenAI(base_url=f"{server.url}{path}", api_key=key, max_retries=0, http_client=plain)


def blocking_client(server: Any) -> OpenAI:
    """Return the client for threads."""
    plain = DefaultHttpxClient(verify=False)
    return OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, http_client=plain)
