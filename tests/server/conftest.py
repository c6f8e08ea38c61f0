"""A link and a server around the scripted engine."""

from __future__ import annotations

import socket
import sys
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from voxlane.codecs.pcm import decode_pcm16
from voxlane.codecs.wav import encode_wav
from voxlane.engine.api import LISTEN_RATE, EngineConfig
from voxlane.server.config import Config, LimitsConfig, ServerConfig
from voxlane.server.engine_link import EngineLink
from voxlane.server.metrics import Metrics
from voxlane.server.serve import HttpServer, listen
from voxlane.server.service import Service, make_service

SCRIPTED_ENGINE = Path(__file__).with_name("scripted_engine.py")


@pytest.fixture(autouse=True)
def _clean(no_leaks: None) -> None:
    """Every test here is checked for leaks."""


@pytest.fixture
def recording() -> Callable[..., bytes]:
    """Make a 16 kHz WAV file in which the scripted engine hears a text."""

    def make(text: str, seconds: float = 1.0) -> bytes:
        samples = array("h", map(ord, text))
        samples.extend([0] * max(0, round(seconds * LISTEN_RATE) - len(samples)))
        return encode_wav(decode_pcm16(samples.tobytes()), LISTEN_RATE)

    return make


@pytest.fixture
def engine_command() -> tuple[str, ...]:
    """The command line of the scripted engine."""
    return (sys.executable, str(SCRIPTED_ENGINE))


@dataclass(slots=True)
class Running:
    """A server in this process, and a client that talks to it over TCP."""

    service: Service
    http: HttpServer
    client: httpx.AsyncClient
    listener: socket.socket

    async def chat(self, said: str, **parameters: object) -> httpx.Response:
        """Post one message."""
        body = {"messages": [{"role": "user", "content": said}], **parameters}
        return await self.client.post("/v1/chat/completions", json=body)


Serving = Callable[..., AbstractAsyncContextManager[Running]]


@pytest.fixture
def serving(engine_command: tuple[str, ...]) -> Serving:
    """Start a server: `async with serving(model=…, api_key=…, limits=…, server=…) as running`."""

    @asynccontextmanager
    async def start(
        *,
        model: str = "scripted",
        asr_model: str = "moonshine-tiny-en",
        tts_model: str = "hibari",
        api_key: str = "",
        limits: LimitsConfig | None = None,
        server: ServerConfig | None = None,
        wait: bool = True,
    ) -> AsyncIterator[Running]:
        config = Config(server or ServerConfig(), EngineConfig(model, asr_model, tts_model), limits or LimitsConfig())
        metrics = Metrics()
        link = EngineLink(config.engine, command=engine_command, observers=(metrics,))
        service = make_service(config, link, metrics, api_key)
        listener = listen("127.0.0.1", 0)
        http = HttpServer(service, listener)
        await http.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            async with httpx.AsyncClient(base_url=url, timeout=60) as client:
                if wait:
                    await link.wait_ready()
                yield Running(service, http, client, listener)
        finally:
            await http.close()

    return start
