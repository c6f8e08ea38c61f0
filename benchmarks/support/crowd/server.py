"""The server that many_sessions.py, floods.py and phone.py measure: the real one, another engine, a probe of its loop.

It prints its port, and for every line of input the figures since the line before. It imports what `voxlane serve`
imports and no more: torch's objects alone would double the work of the garbage collector.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from pathlib import Path

import uvloop
from support.command_line import command_line
from support.figures import percentile
from support.process_times import processor_s
from threadpoolctl import threadpool_limits

from voxlane.server.api.service import make_service
from voxlane.server.commands.serve import HttpServer, listen
from voxlane.server.config import Config, RoomConfig, VoiceConfig
from voxlane.server.engine_client.engine_process import EngineProcess
from voxlane.server.watching.metrics import Metrics

PROBE_S = 0.005


def memory_kib() -> int:
    """Return the memory of this process in KiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4


async def serve(engine: str, per_address: int) -> None:
    """Serve with a module as the engine until the end of input."""
    lags: list[float] = []
    works: list[float] = []  # of each lag, the time in which this process worked

    async def probe() -> None:
        while True:
            due, worked = time.perf_counter() + PROBE_S, time.process_time()
            await asyncio.sleep(PROBE_S)
            lags.append(max(0.0, time.perf_counter() - due) * 1e3)
            works.append(min(lags[-1], (time.process_time() - worked) * 1e3))

    # It is measured what happens beyond the room, too.
    voice = VoiceConfig(sessions=1000, sessions_per_address=per_address)
    config = Config(voice=voice, room=RoomConfig(measured=False))
    metrics = Metrics()
    link = EngineProcess(config.engine, command=(sys.executable, "-m", engine), observers=(metrics,))
    listener = listen("127.0.0.1", 0)
    server = HttpServer(make_service(config, link, metrics, ""), listener)
    await server.start()
    try:
        await link.wait_ready()
        gc.collect()
        gc.freeze()  # as `voxlane serve` does
        print(listener.getsockname()[1], flush=True)
        task = asyncio.create_task(probe())
        loop = asyncio.get_running_loop()
        while await loop.run_in_executor(None, sys.stdin.readline):
            ordered, own = sorted(lags) or [0.0], sorted(works) or [0.0]
            report = {f"p{share}": percentile(ordered, share / 100) for share in (50, 95, 99)}
            report |= {"max": ordered[-1], "own_p99": percentile(own, 0.99), "own_max": own[-1]}
            report |= {"memory_kib": memory_kib(), "server_s": time.process_time()}
            report["engine_s"] = processor_s(link.pid) if link.pid is not None else 0.0
            print(json.dumps(report), flush=True)
            lags.clear()
            works.clear()
        task.cancel()
    finally:
        await server.close()


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--engine", default="support.crowd.engine", metavar="MODULE", help="%(default)s")
    parser.add_argument("--per-address", type=int, default=1000, help="conversations from one address (%(default)s)")
    options = parser.parse_args()
    with threadpool_limits(1, user_api="blas"):  # as `voxlane serve` does
        uvloop.run(serve(options.engine, options.per_address))
