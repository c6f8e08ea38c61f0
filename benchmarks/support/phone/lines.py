"""Twenty and fifty telephone lines, half Twilio's and half Asterisk's, that all talk at once.

The server is the real one; its engine is a script that computes nothing and says every reply with noise
(support/crowd/, engine.py). Callers ask, listen for nine seconds, ask again, and interrupt the second answer after
about four: all in real time, in one process beside the server. A line plays what it is sent by the clock.

"left" is the sound that a line still has when more of a reply comes; a gap is a silence in the middle of a reply.
"CPU" is the server's share of a core, of all callers and of one. Lag is that of the server's event loop.
"""

from __future__ import annotations

import asyncio

import numpy as np
import uvloop
from support.common import machine, table
from support.crowd.process import Server
from support.figures import percentile
from support.phone.crowd import Account, AsteriskCaller, Samples, TwilioCaller, microphones, talk
from support.phone.engine import REPLY_S
from support.speech import clip

COUNTS = (20, 50)
SPREAD = 37  # packets between two callers in the same recording
SETTLES_S = 3.0
RATE = 16_000


def turns() -> Samples:
    """Return what a caller's microphone hears: three questions, after the second one an answer is interrupted."""
    chance = np.random.default_rng(1)

    def quiet(seconds: float) -> Samples:
        return chance.normal(0, 1e-4, round(seconds * RATE)).astype(np.float32)

    first, second = clip("two_cities.wav", 0.0, 3.0), clip("two_cities.wav", 3.0, 3.0)
    return np.concatenate([first, quiet(9.0), second, quiet(4.5)]).astype(np.float32)


async def measure(server: Server, seconds: float, count: int) -> list[str]:
    """Let so many callers talk; return a row of the table: what the server spent on them, and what they heard."""
    stop, empty = asyncio.Event(), server.report()
    kinds = (TwilioCaller, AsteriskCaller)
    callers = [kinds[number % 2](server.address, Account(), REPLY_S, number) for number in range(count)]
    for caller in callers:
        await caller.connect()
    talking = asyncio.create_task(talk(callers, microphones(turns()), SPREAD, stop))
    await asyncio.sleep(SETTLES_S)
    before = server.report()
    for caller in callers:
        caller.account = Account()
    await asyncio.sleep(seconds)
    after = server.report()
    stop.set()
    print(f"  {count} lines: callers at most {await talking * 1e3:.0f} ms late", flush=True)
    accounts = [caller.account for caller in callers]
    failed = sum(caller.close_code is not None for caller in callers)
    for caller in callers:
        caller.hang_up()
    left = [one for account in accounts for one in account.left_ms] or [float("nan")]
    gaps = [one for account in accounts for one in account.gaps_ms]
    share = (after["server_s"] - before["server_s"]) / seconds
    return [
        str(count),
        f"{share:.0%}",
        f"{share / count:.2%}",
        *(f"{after[key]:.1f}" for key in ("p50", "p99", "max", "own_p99")),
        *(f"{percentile(left, part):.0f}" for part in (0.5, 0.01, 0.0)),
        f"{len(gaps)}, {sum(gaps):.0f} ms",
        f"{sum(one.whole for one in accounts)} of {sum(one.replies for one in accounts)}",
        f"{failed}, {sum(not one.whole for one in accounts)}",
        f"{(after['memory_kib'] - empty['memory_kib']) / count:.0f}",
    ]


def report(seconds: float = 45.0) -> None:
    """Measure and print the table."""
    rows = []
    for count in COUNTS:
        server = Server("support.phone.engine")
        try:
            rows.append(uvloop.run(measure(server, seconds, count)))
        finally:
            server.stop()
    header = [
        "lines", "CPU", "each", "lag p50", "p99", "max", "p99 own", "left ms p50", "p1", "least", "gaps",
        "whole replies", "failed, no reply", "KiB each",
    ]  # fmt: skip
    table(f"telephone lines, {machine()}: {seconds:.0f} s each, milliseconds", header, rows)
