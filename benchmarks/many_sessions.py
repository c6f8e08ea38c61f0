"""Two hundred idle and fifty live conversations on one server process: what its event loop suffers.

The engine is a script at the other end of the real socket, so that the server alone is measured. Fifty people stream
recorded speech as microphones do; their turns are heard, answered and spoken by the script. The clients run in a
process of their own.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

import uvloop
from common import machine, table
from speech_common import pcm, recording

from voxlane.server.client import VoiceClient
from voxlane.server.config import Config, VoiceConfig
from voxlane.server.engine_link import EngineLink
from voxlane.server.metrics import Metrics
from voxlane.server.serve import HttpServer, listen
from voxlane.server.service import make_service

IDLE, LIVE = 200, 50
SECONDS = 60.0
FRAME_BYTES = 640  # 20 ms at 16 kHz
PROBE_S = 0.005
ENGINE = (sys.executable, str(Path(__file__).with_name("fake_engine.py")))


def memory_kib() -> int:
    """Return what this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4


async def serve() -> None:
    """Be the server: print the address, and at the end of input what the loop's lag was."""
    lags: list[float] = []

    async def probe() -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + PROBE_S
            await asyncio.sleep(PROBE_S)
            lags.append(max(0.0, loop.time() - due) * 1e3)

    config = Config(voice=VoiceConfig(sessions=1000, sessions_per_address=1000))
    metrics = Metrics()
    link = EngineLink(config.engine, command=ENGINE, observers=(metrics,))
    listener = listen("127.0.0.1", 0)
    server = HttpServer(make_service(config, link, metrics, ""), listener)
    await server.start()
    try:
        await link.wait_ready()
        print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
        task = asyncio.create_task(probe())
        loop = asyncio.get_running_loop()
        while command := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
            ordered = sorted(lags) or [0.0]
            shares = {f"p{share}": ordered[int(share / 100 * (len(ordered) - 1))] for share in (50, 95, 99)}
            print(
                json.dumps({"command": command, "memory_kib": memory_kib(), "max": ordered[-1], **shares}), flush=True
            )
            lags.clear()
        task.cancel()
    finally:
        await server.close()


class Server:
    """The server's process."""

    def __init__(self) -> None:
        command = [sys.executable, __file__, "serve"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip().replace("http", "ws") + "/v1/voice"

    def report(self, name: str) -> dict[str, float]:
        """Return the lag since the last report, in milliseconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{name}\n")
        self._process.stdin.flush()
        found: dict[str, float] = json.loads(self._process.stdout.readline())
        return found

    def stop(self) -> None:
        """End it."""
        self._process.communicate(timeout=60)


async def idle(url: str, stop: asyncio.Event) -> None:
    """Be connected and silent."""
    async with VoiceClient(url) as client:
        reader = asyncio.create_task(_drain(client))
        await stop.wait()
        reader.cancel()


async def live(url: str, speech: bytes, offset: int, stop: asyncio.Event, turns: list[int]) -> None:
    """Stream speech as a microphone does."""
    async with VoiceClient(url, input_format={"codec": "pcm16", "rate": 16_000}) as client:
        reader = asyncio.create_task(_drain(client, turns))
        at, place = time.perf_counter(), offset * FRAME_BYTES
        while not stop.is_set():
            place = (place + FRAME_BYTES) % (len(speech) - FRAME_BYTES)
            await client.send_audio(speech[place : place + FRAME_BYTES])
            at += 0.02
            await asyncio.sleep(max(0.0, at - time.perf_counter()))
        reader.cancel()


async def _drain(client: VoiceClient, turns: list[int] | None = None) -> None:
    async for event in client:
        if turns is not None and event.name == "user_turn":
            turns.append(1)


async def measure(server: Server) -> list[list[str]]:
    """Bring the people in and return the table's rows."""
    stop, turns = asyncio.Event(), list[int]()
    speech = pcm(recording("two_cities.wav"))
    before = server.report("nobody")
    async with asyncio.TaskGroup() as tasks:
        for number in range(IDLE):
            tasks.create_task(idle(server.url, stop))
            if number % 20 == 19:
                await asyncio.sleep(0.2)
        await asyncio.sleep(5.0)
        quiet = server.report("idle")
        for number in range(LIVE):
            tasks.create_task(live(server.url, speech, number * 37, stop, turns))
            await asyncio.sleep(0.05)
        server.report("coming")
        await asyncio.sleep(SECONDS)
        busy = server.report("live")
        stop.set()
    each = (quiet["memory_kib"] - before["memory_kib"]) / IDLE
    rows = [
        [name, *(f"{found[key]:.1f}" for key in ("p50", "p95", "p99", "max"))]
        for name, found in ((f"{IDLE} idle", quiet), (f"{IDLE} idle, {LIVE} speaking", busy))
    ]
    print(f"\n{each:.0f} KiB for each idle session; {sum(turns)} turns in {SECONDS:.0f} s")
    return rows


def main() -> None:
    """Measure and print the table."""
    server = Server()
    try:
        rows = uvloop.run(measure(server))
    finally:
        server.stop()
    table(f"event-loop lag, {machine()}: milliseconds", ["sessions", "p50", "p95", "p99", "max"], rows)


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        uvloop.run(serve())
    else:
        main()
