"""Other chat servers on this machine: whether one answers at its usual port, and the configuration that would use it.

It asks each port of the loopback address once, for a list of models. It changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

import httpx

USUAL_PORTS: Mapping[int, str] = {11434: "Ollama", 8080: "llama.cpp", 8000: "vLLM", 1234: "LM Studio"}
"""The default ports of chat servers, and the name of each server."""

TIMEOUT_S = 1.0
"""A server on this machine answers in milliseconds; one that is busy loading need not hold up our banner."""

MAX_ANSWER_BYTES = 256 * 1024

_FORBIDDEN = frozenset('"\\')
"""Characters that would need an escape in TOML: no model's name has them."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A chat server that answers here."""

    kind: str
    url: str  # as chat.url takes it
    model: str  # the first that it lists


async def find_neighbours(own_port: int, ports: Mapping[int, str] = USUAL_PORTS) -> list[Neighbour]:
    """Return the chat servers that answer at their usual ports, our own excepted."""
    async with httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False) as client:
        asked = [_ask(client, kind, port) for port, kind in ports.items() if port != own_port]
        found = await asyncio.gather(*asked)
    return [neighbour for neighbour in found if neighbour is not None]


def advice(neighbour: Neighbour) -> str:
    """Return the lines that tell a person how to let a neighbour do the thinking."""
    return (
        f"  {neighbour.kind} answers at {neighbour.url}; in a file for --config these lines let it think:\n"
        f'    [chat]\n    url = "{neighbour.url}"\n    model = "{neighbour.model}"'
    )


async def _ask(client: httpx.AsyncClient, kind: str, port: int) -> Neighbour | None:
    url = f"http://127.0.0.1:{port}/v1"
    with contextlib.suppress(httpx.HTTPError, TimeoutError, ValueError, KeyError, TypeError, IndexError):
        async with asyncio.timeout(TIMEOUT_S), client.stream("GET", f"{url}/models") as answer:
            if answer.status_code != httpx.codes.OK:
                return None
            body = bytearray()
            async for chunk in answer.aiter_bytes():
                body += chunk
                if len(body) > MAX_ANSWER_BYTES:
                    return None
        listed = httpx.Response(200, content=bytes(body)).json()
        model = listed["data"][0]["id"]
        if isinstance(model, str) and model.isprintable() and not _FORBIDDEN & set(model) and len(model) <= 200:
            owner = listed["data"][0].get("owned_by")
            return None if owner == "voxlane" else Neighbour(kind, url, model)
    return None
