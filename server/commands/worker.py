"""One server process of a cell: the server of commands/serve.py, with an engine that its supervisor runs.

Started by supervisor.py as `python -m voxlane.server.commands.worker CONTROL`, with the number of a descriptor: the
socket to the supervisor. It ends when that socket does.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import socket
import sys
from collections.abc import Coroutine
from pathlib import Path

import uvloop
from threadpoolctl import threadpool_limits

from voxlane.server import log
from voxlane.server.api.service import Service, make_service
from voxlane.server.cell.counts import SharedCounts
from voxlane.server.cell.member import CellMember
from voxlane.server.cell.messages import Begin, EngineNews, LetGo, VoiceChange
from voxlane.server.cell.parent import die_with_parent
from voxlane.server.cell.seat import CellSeat
from voxlane.server.commands.serve import HttpServer, allow_descriptors, drain, listen, stop_requests
from voxlane.server.commands.terminal import write_text
from voxlane.server.engine_client.engine_pool import EnginePool
from voxlane.server.errors import ConfigError
from voxlane.server.watching.metrics import Metrics, RequestMetrics, SharedMetrics

logger = logging.getLogger(__name__)

USAGE_ERROR, ORPHANED = 2, 3
COUNTS_FILE, METRICS_FOLDER = "counts", "metrics"

BEAT_SECONDS = 0.5
"""How often a process shows that its event loop turns."""


class Worker:
    """What this process does with its supervisor's messages."""

    def __init__(self, service: Service, engines: EnginePool) -> None:
        self._service = service
        self._engines = engines

    def engine_news(self, news: EngineNews) -> None:
        """Pass on an engine's new state."""
        self._engines.news(news)

    def engine_link(self, engine: int, link: socket.socket) -> None:
        """Serve over a new link."""
        self._engines.connect(engine, link)

    def told(self, what: VoiceChange | LetGo) -> Coroutine[None, None, None] | None:
        """Follow what another process does."""
        if isinstance(what, LetGo):
            return self._service.sessions.moving.let_go(what.session)
        if not what.profile:
            self._service.sessions.forget_voice(what.name)
        self._engines.take_voice(what)
        return None

    def cell_ends(self) -> None:
        """Note that no other process can go on with our conversations."""
        self._service.sessions.moving.cell_ends()


async def work(sock: socket.socket) -> None:
    """Serve until SIGTERM, as the supervisor's first message says."""
    member = CellMember(sock, _leave_at_once)
    begin = await member.begin()
    config, own = begin.config, begin.secrets
    log.set_up(config.server.log_level, as_json=config.log.format == "json", process=begin.number)
    listener = listen(config.server.host, begin.port, shared=True)
    allow_descriptors(config.limits.connections)
    with threadpool_limits(1, user_api="blas"), contextlib.closing(_counts(begin)) as counts:
        seat = CellSeat(counts, own.cell, Path(begin.folder), member.let_go)
        metrics = Metrics(SharedMetrics(Path(begin.folder) / METRICS_FOLDER, f"server{begin.number}"), has_engine=False)
        observers = (RequestMetrics(metrics),)
        engines = EnginePool(begin.engines, begin.label, counts, observers, member.ask_link, member.ask_all)
        keys = (own.api_key, own.chat_key, own.phone_keys, own.webhook_secret, own.store_password)
        service = make_service(config, engines, metrics, *keys, seat)
        http = HttpServer(service, listener)
        with stop_requests(service) as stop:
            await service.sessions.moving.start()
            member.serve(Worker(service, engines))
            await http.start()
            metrics.processes.set(1)
            beating = asyncio.create_task(_beat(counts, http), name="beat")
            counts.put("serving", 1)
            member.listening()
            gc.collect()
            gc.freeze()  # as in serve.py
            try:
                await stop.wait()
            finally:
                counts.put("serving", 0)
                metrics.processes.set(0)
                await drain(service, http)
                beating.cancel()
                await asyncio.gather(beating, return_exceptions=True)
    member.close()


async def _beat(counts: SharedCounts, http: HttpServer) -> None:
    """Show the supervisor that the event loop turns, and the other processes how many connections there are."""
    while True:
        counts.add("beats", 1)
        http.count_all()
        await asyncio.sleep(BEAT_SECONDS)


def _counts(begin: Begin) -> SharedCounts:
    return SharedCounts(Path(begin.folder) / COUNTS_FILE, begin.processes, begin.number, begin.secrets.cell)


def _leave_at_once() -> None:
    """End this process: its supervisor is gone, and the engines with it."""
    logger.critical(log.line("supervisor lost"))
    logging.shutdown()
    os._exit(ORPHANED)


def main() -> int:
    """Run a server process on the inherited socket that the argument names."""
    die_with_parent()
    sock = socket.socket(fileno=int(sys.argv[1]))
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(work(sock))
    except ConfigError as error:
        write_text(sys.stderr, f"voxlane: {error.hint}\n")
        return USAGE_ERROR
    return 0


if __name__ == "__main__":
    sys.exit(main())
