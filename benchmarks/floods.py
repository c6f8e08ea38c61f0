"""Floods against a server with twenty conversations: the lag of its event loop, beside the limit of 50 ms.

The server is the real one; its engine computes nothing (support/crowd/). Twenty people stream recorded speech as
microphones do. Beside them, one after the other: empty continuation frames, pongs, pings whose pongs are not read,
small messages, bodies in chunks of one byte, trickled bodies, and conversations that are opened and dropped
(support/crowd/flood.py), in a third process, from another address, and as fast as the server takes them. "own max"
counts, of each lag, only the time in which the server itself worked: on a machine with two cores the flood and the
clients take from it.

Time: --seconds for each of eight rows, 10 by default, and some ten more.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter

import uvloop
from support.command_line import command_line, module_environment
from support.common import machine, table
from support.crowd.clients import Caller, microphone, speak
from support.crowd.flood import FLOODS
from support.crowd.process import Report, Server
from support.speech import recording

from voxlane.codecs.pcm import encode_pcm16
from voxlane.server import limits

LIVE = 20
FRAME_BYTES = 640  # 20 ms at 16 kHz
SPREAD = 37  # frames between two clients in the same recording
LIMIT_MS = 50.0


async def measure(server: Server, floods: list[str], seconds: float) -> list[list[str]]:
    """Return a row for the conversations alone and one for each flood beside them."""
    stop, heard = asyncio.Event(), Counter[str]()
    frames = microphone(encode_pcm16(recording("two_cities.wav")), FRAME_BYTES)
    callers = [Caller(server.address, heard) for _ in range(LIVE)]
    for caller in callers:
        await caller.connect(input={"codec": "pcm16", "rate": 16_000})
    speaking = asyncio.create_task(speak(callers, frames, SPREAD, stop))
    await asyncio.sleep(2.0)
    server.report()
    await asyncio.sleep(seconds)
    rows = [row("none", server.report(), "", 0)]
    for name in floods:
        turns = heard["user_turn"]
        sent = await flood(server, name, seconds)
        rows.append(row(name, server.report(), sent, heard["user_turn"] - turns))
        await asyncio.sleep(1.0)
        server.report()
    stop.set()
    late = await speaking
    closed = [caller.close_code for caller in callers if caller.close_code is not None]
    print(f"\n{len(closed)} of {LIVE} conversations were closed; clients at most {late * 1e3:.0f} ms late")
    for caller in callers:
        if caller.close_code is None:
            caller.hang_up()
    return rows


async def flood(server: Server, name: str, seconds: float) -> str:
    """Run a flood in a process of its own; return how much it sent."""
    command = (sys.executable, "-m", "support.crowd.flood", name, str(server.address[1]), str(seconds))
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=module_environment())
    output, _ = await process.communicate()
    connections, sent = map(int, output.split())
    return f"{connections} connections, {sent / 1e6:.1f} MB"


def row(name: str, report: Report, sent: str, turns: int) -> list[str]:
    """Return the lag of a report beside the limit."""
    lags = [f"{report[key]:.1f}" for key in ("p50", "p99", "max", "own_max")]
    held = "held" if report["max"] <= LIMIT_MS else "own share held" if report["own_max"] <= LIMIT_MS else "BROKEN"
    return [name, *lags, f"{LIMIT_MS:.0f}", held, str(turns or ""), f"{report['memory_kib'] / 1024:.0f}", sent]


def main() -> None:
    """Measure and print the table."""
    parser = command_line(__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each flood (%(default)g)")
    parser.add_argument("--only", choices=FLOODS, help="one flood")
    options = parser.parse_args()
    server = Server("support.crowd.engine", "--per-address", str(limits.VOICE_SESSIONS_PER_ADDRESS))
    try:
        rows = uvloop.run(measure(server, [options.only] if options.only else list(FLOODS), options.seconds))
    finally:
        server.stop()
    header = ["flood", "p50", "p99", "max", "own max", "limit", "", "turns", "MiB", "sent"]
    table(f"event-loop lag with {LIVE} conversations, {machine()}: milliseconds", header, rows)


if __name__ == "__main__":
    main()
