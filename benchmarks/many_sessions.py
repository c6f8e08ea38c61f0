"""Two hundred idle and fifty live conversations on one server process: the lag of its event loop.

The server is the real one; its engine is a script at the other end of the real socket that computes nothing
(support/crowd/). Fifty people stream recorded speech as microphones do and never listen: every answer is interrupted.
The clients run in this process. The three processes share the machine; the table says what share of a core each uses.
"p99 own" counts, of each lag, only the time in which the server itself worked; on an otherwise idle machine it equals
p99.

Time: --seconds, 60 by default, and some ten more.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import uvloop
from support.command_line import command_line
from support.common import machine, table
from support.crowd.clients import Caller, microphone, speak
from support.crowd.process import Report, Server
from support.people import FRAME_S
from support.speech import recording

from voxlane.codecs.pcm import encode_pcm16

IDLE, LIVE = 200, 50
FRAME_BYTES = 640  # 20 ms at 16 kHz
SPREAD = 37  # frames between two clients in the same recording


async def measure(server: Server, seconds: float) -> list[list[str]]:
    """Connect the clients and return the rows of the table."""
    stop, heard = asyncio.Event(), Counter[str]()
    frames = microphone(encode_pcm16(recording("two_cities.wav")), FRAME_BYTES)
    callers = [Caller(server.address, heard) for _ in range(IDLE + LIVE)]
    empty = server.report()
    for caller in callers[:IDLE]:
        await caller.connect()
    came = server.report()
    await asyncio.sleep(5.0)
    quiet = server.report()
    for caller in callers[IDLE:]:
        await caller.connect(input={"codec": "pcm16", "rate": 16_000})
    speaking = asyncio.create_task(speak(callers[IDLE:], frames, SPREAD, stop))
    await asyncio.sleep(2.0)
    before, turns = server.report(), heard["user_turn"]
    await asyncio.sleep(seconds)
    busy, turns = server.report(), heard["user_turn"] - turns
    stop.set()
    late = await speaking
    closed = Counter(caller.close_code for caller in callers if caller.close_code is not None)
    for caller in callers:
        caller.hang_up()
    each = (quiet["memory_kib"] - empty["memory_kib"]) / IDLE
    spent = (busy["server_s"] - before["server_s"]) / (seconds * LIVE / FRAME_S)
    print(f"\n{each:.0f} KiB for each idle session; {turns} turns in {seconds:.0f} s; closed: {dict(closed)}")
    print(f"{spent * 1e6:.0f} µs of the server for 20 ms of a microphone; clients at most {late * 1e3:.0f} ms late")
    print(", ".join(f"{count} {name}" for name, count in heard.most_common()))
    return [
        row(f"{IDLE} idle", came, quiet, 5.0),
        row(f"{IDLE} idle, {LIVE} speaking", before, busy, seconds),
    ]


def row(name: str, before: Report, after: Report, seconds: float) -> list[str]:
    """Return the lag between two reports, and the share of a core of each process."""
    shares = [(after[key] - before[key]) / seconds for key in ("server_s", "engine_s", "clients_s")]
    lags = [f"{after[key]:.1f}" for key in ("p50", "p95", "p99", "max", "own_p99")]
    return [name, *lags, *(f"{one:.0%}" for one in shares)]


def main() -> None:
    """Measure and print the table."""
    parser = command_line(__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of speech that count (%(default)g)")
    seconds = parser.parse_args().seconds
    server = Server()
    try:
        rows = uvloop.run(measure(server, seconds))
    finally:
        server.stop()
    header = ["sessions", "p50", "p95", "p99", "max", "p99 own", "server", "engine", "clients"]
    table(f"event-loop lag, {machine()}: milliseconds; share of a core", header, rows)


if __name__ == "__main__":
    main()
