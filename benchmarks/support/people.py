"""People who talk and listen by the clock: what every load of people shares, and how silences are counted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

FRAME_S = 0.02

One = TypeVar("One")


@dataclass(slots=True, kw_only=True)
class Listener:
    """One who plays sound as soon as it comes; times are seconds on the caller's clock."""

    heard_until_s: float = 0.0  # when all that has come will have been played
    speech_s: float = 0.0  # how much has come

    def play(self, now: float, speech_s: float) -> float:
        """Play sound after the earlier; return how much was left when it came. Below 0, there was a silence."""
        left_s = self.heard_until_s - now if self.speech_s else 0.0
        self.heard_until_s = max(now, self.heard_until_s) + speech_s
        self.speech_s += speech_s
        return left_s


async def in_turns(people: Sequence[One], act: Callable[[One, int], None], spread: int, stop: asyncio.Event) -> float:
    """Let everybody act every 20 ms, evenly spread; return how late one was at most.

    `act` gets a person and a frame's number; each person begins `spread` frames after the one before.
    """
    loop = asyncio.get_running_loop()
    began, done, late = loop.time(), 0, 0.0
    while not stop.is_set():
        due = int((loop.time() - began) / FRAME_S * len(people))
        late = max(late, (due - done) * FRAME_S / len(people))
        while done < due:
            turn, number = divmod(done, len(people))
            act(people[number], turn + number * spread)
            done += 1
        await asyncio.sleep(0.001)
    return late


async def live(tick: Callable[[float], None], seconds: float, every_s: float) -> float:
    """Call `tick` with the time every so often for some seconds; return how late it was called at most."""
    due, late = time.monotonic(), 0.0
    end = due + seconds
    while (now := time.monotonic()) < end:
        late = max(late, now - due)
        tick(now)
        due = now + every_s
        await asyncio.sleep(max(0.0002, due - time.monotonic()))
    return late
