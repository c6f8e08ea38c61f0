"""Twenty and fifty telephone lines, half Twilio's and half Asterisk's, beside as many clients of the native dialect.

The server is the real one; its engine is a script that computes nothing and says every reply with noise
(support/crowd/, engine.py). Callers ask, listen for nine seconds, ask again, and interrupt the second answer after
about four: all in real time, in one process beside the server. A line plays what it is sent by the clock.

"left" is the sound that a line still has when more of a reply comes; a gap is a silence in the middle of a reply.
"CPU" is the server's share of a core, of all callers and of one. Lag is that of the server's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import uvloop
from support.common import machine, table
from support.crowd.process import Report, Server
from support.figures import percentile
from support.phone.crowd import (
    Account,
    AsteriskCaller,
    NativeCaller,
    Samples,
    TalkingCaller,
    TwilioCaller,
    microphones,
    talk,
)
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


class Measured:
    """One kind of callers: what the server spent on them, and what they heard."""

    def __init__(self, name: str, kinds: Sequence[type[TalkingCaller]], count: int) -> None:
        self.name = name
        self.kinds = kinds
        self.count = count
        self.account = Account()
        self.failed = 0
        self.silent = 0
        self.late_s = 0.0
        self.kib = 0.0
        self.before: Report = {}
        self.after: Report = {}
        self.seconds = 0.0

    async def run(self, server: Server, seconds: float) -> None:
        """Connect the callers and let them talk."""
        sounds, stop = microphones(turns()), asyncio.Event()
        callers = []
        empty = server.report()
        for number in range(self.count):
            kind = self.kinds[number % len(self.kinds)]
            callers.append(kind(server.address, Account(), REPLY_S, number))
            await callers[-1].connect(**({"input": {"codec": "pcm16", "rate": RATE}} if kind is NativeCaller else {}))
        talking = asyncio.create_task(talk(callers, sounds, SPREAD, stop))
        await asyncio.sleep(SETTLES_S)
        self.before, self.seconds = server.report(), seconds
        for caller in callers:
            caller.account = Account()
        await asyncio.sleep(seconds)
        self.after = server.report()
        stop.set()
        self.late_s = await talking
        self.kib = (self.after["memory_kib"] - empty["memory_kib"]) / self.count
        self.failed = sum(caller.close_code is not None for caller in callers)
        self.silent = sum(not caller.account.whole for caller in callers)
        for caller in callers:
            self._add(caller.account)
            caller.hang_up()
        await asyncio.sleep(1.0)

    def _add(self, one: Account) -> None:
        total = self.account
        total.left_ms += one.left_ms
        total.gaps_ms += one.gaps_ms
        total.replies += one.replies
        total.whole += one.whole
        total.cleared += one.cleared

    @property
    def share(self) -> float:
        """The server's share of a core."""
        return (self.after["server_s"] - self.before["server_s"]) / self.seconds

    def row(self) -> list[str]:
        """Return the row of the table."""
        left = self.account.left_ms or [float("nan")]
        lags = [f"{self.after[key]:.1f}" for key in ("p50", "p99", "max", "own_p99")]
        gaps = self.account.gaps_ms
        return [
            self.name,
            f"{self.share:.0%}",
            f"{self.share / self.count:.2%}",
            *lags,
            *(f"{percentile(left, share):.0f}" for share in (0.5, 0.01, 0.0)),
            f"{len(gaps)}, {sum(gaps):.0f} ms",
            f"{self.account.whole} of {self.account.replies}",
            f"{self.failed}, {self.silent}",
            f"{self.kib:.0f}",
        ]


async def measure(server: Server, seconds: float, count: int) -> list[Measured]:
    """Return both kinds of callers, one after the other."""
    kinds: list[tuple[str, tuple[type[TalkingCaller], ...]]] = [
        (f"{count} native", (NativeCaller,)),
        (f"{count} lines", (TwilioCaller, AsteriskCaller)),
    ]
    found = []
    for name, some in kinds:
        found.append(Measured(name, some, count))
        await found[-1].run(server, seconds)
        print(f"  {name}: callers at most {found[-1].late_s * 1e3:.0f} ms late", flush=True)
    return found


def report(seconds: float = 45.0) -> None:
    """Measure and print the table."""
    rows, ratios = [], []
    for count in COUNTS:
        server = Server("support.phone.engine")
        try:
            native, lines = uvloop.run(measure(server, seconds, count))
        finally:
            server.stop()
        rows += [native.row(), lines.row()]
        ratios.append(f"{lines.share / native.share:.2f} with {count}")
    header = [
        "callers", "CPU", "each", "lag p50", "p99", "max", "p99 own", "left ms p50", "p1", "least", "gaps",
        "whole replies", "failed, no reply", "KiB each",
    ]  # fmt: skip
    table(f"telephone lines, {machine()}: {seconds:.0f} s each, milliseconds", header, rows)
    print(f"  a line costs so many times the CPU of a native client: {', '.join(ratios)}")
