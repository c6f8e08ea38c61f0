"""A server in this process around the scripted engine, or the real one, and a client that talks to it over TCP."""

from __future__ import annotations

import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from engine_thread import IN_THREAD, NEEDS_A_PROCESS, EngineThread

from voxlane.engine.api import EngineConfig
from voxlane.server.api.service import Service, make_service
from voxlane.server.cell.seat import CellSeat
from voxlane.server.commands.serve import HttpServer, listen
from voxlane.server.config import (
    ChatConfig,
    Config,
    KeysConfig,
    LimitsConfig,
    PhoneConfig,
    PhoneKeys,
    RoomConfig,
    ServerConfig,
    StoreConfig,
    VoiceConfig,
)
from voxlane.server.engine_client.child import EngineChild
from voxlane.server.engine_client.engine_process import EngineProcess, RestartBudget
from voxlane.server.watching.metrics import Metrics

SCRIPTED_ENGINE = Path(__file__).parent / "scripted_engine.py"
ENGINE_COMMAND = (sys.executable, str(SCRIPTED_ENGINE))


@dataclass(slots=True)
class Running:
    """A server, and a client of its HTTP side."""

    service: Service
    http: HttpServer
    client: httpx.AsyncClient
    listener: socket.socket

    @property
    def url(self) -> str:
        """Return the server's address."""
        return str(self.client.base_url).rstrip("/")

    async def chat(self, said: str, **parameters: object) -> httpx.Response:
        """Post a chat request with one message."""
        body = {"messages": [{"role": "user", "content": said}], **parameters}
        return await self.client.post("/v1/chat/completions", json=body)

    def kill_engine(self) -> int:
        """Kill the engine, thread or process; return the number that it had."""
        engine = self.service.engine
        assert isinstance(engine, EngineProcess)
        assert engine._child is not None
        number = engine.pid
        assert number is not None
        engine._child.kill()
        return number


@asynccontextmanager
async def start(
    *,
    model: str = "scripted",
    asr_model: str = "moonshine-tiny-en",
    tts_model: str = "hibari",
    adapter: str = "",
    api_key: str = "",
    limits: LimitsConfig | None = None,
    server: ServerConfig | None = None,
    voice: VoiceConfig | None = None,
    chat: ChatConfig | None = None,
    phone: PhoneConfig | None = None,
    phone_keys: PhoneKeys | None = None,
    keys: KeysConfig | None = None,
    parts: Mapping[str, Any] | None = None,
    webhook_secret: str = "",
    store: StoreConfig | None = None,
    restarts: RestartBudget | None = None,
    hang_s: float = 2.0,
    start_failures: int = 5,
    command: tuple[str, ...] = IN_THREAD,
    seat: CellSeat | None = None,
    wait: bool = True,
) -> AsyncIterator[Running]:
    """Serve as long as the context lasts; `parts` are further sections of the configuration by their names.

    The scripted engine runs in a thread of this process, unless `command` is that of a child or the model needs one.
    """
    if command == IN_THREAD and model in NEEDS_A_PROCESS:
        command = ENGINE_COMMAND
    start_child = EngineThread.start if command == IN_THREAD else EngineChild.start
    watch = {"hang_s": hang_s, "start_failures": start_failures}
    engine = EngineConfig(model, asr_model, tts_model, adapter=adapter, **watch)  # type: ignore[arg-type]
    known = (limits or LimitsConfig(), voice or VoiceConfig(), chat or ChatConfig())
    more: dict[str, Any] = {
        "phone": phone or PhoneConfig(),
        "keys": keys or KeysConfig(),
        "store": store or StoreConfig(),
        "room": RoomConfig(measured=False),  # other tests keep this machine busy
        **(parts or {}),
    }
    config = Config(server or ServerConfig(), engine, *known, **more)
    metrics = Metrics()
    link = EngineProcess(
        config.engine, command=command, observers=(metrics,), restarts=restarts, start_child=start_child
    )
    keys_of = {"phone_keys": phone_keys, "webhook_secret": webhook_secret}
    service = make_service(config, link, metrics, api_key, **keys_of, seat=seat)  # type: ignore[arg-type]
    listener = listen("127.0.0.1", 0)
    http = HttpServer(service, listener)
    await http.start()
    try:
        url = f"{'https' if config.server.tls_cert else 'http'}://127.0.0.1:{listener.getsockname()[1]}"
        # verify: plain HTTP needs no certificates, and to read them takes longer than all else here
        async with httpx.AsyncClient(base_url=url, timeout=60, verify=False) as client:
            if wait:
                await link.wait_ready()
            yield Running(service, http, client, listener)
    finally:
        await http.close()
