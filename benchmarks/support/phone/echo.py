"""The assistant's own voice fed back into the line: how often it ends its own reply, and what it misses.

Each call is the server's real code in virtual time (simulated_call.py). A caller is greeted, asks, and is answered,
five replies a call; all of what the line plays comes back through mu-law, half of it through a small room. In half of
the calls the caller only asks; in the others every reply is interrupted at a random moment. "before" is
echo_guard = "off".

The recogniser is Moonshine: an echo that it understands may end a reply, as in a real call. The chat model and the
voice are recordings. They do not matter here: what the assistant says is the echo's content, and Kokoro says it.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from support.common import THREADS, engine, machine, table
from support.ears import corpus
from support.ears.corpus import RATE, Sound
from support.figures import percentile
from support.phone.simulated_call import (
    LOUD,
    PACKET_S,
    EchoPath,
    SimulatedCall,
    on_line,
    simulated_call,
    small_room,
)
from support.phone.virtual_time import run_virtually

from voxlane.codecs.pcm import Floats
from voxlane.engine.loop.core import Core
from voxlane.server.conversation.server_events import Duck, Hold, Interrupted, ReplyStarted, SpeechStarted, UserTurn

LEVELS_DB = (-6, -10, -15, -20, -30, -40)
DELAYS_S = (0.0, 0.1, 0.3, 0.6)
REPLIES = 5  # in a call
REPLY_S = 6.5
CALLS = 5  # with each delay: 100 replies at each level
WAY_S = (0.02, 0.04, 0.06)  # from the server to the telephone, and back
CALLER_DB = (-30.0, -20.0)  # dB of full scale; the assistant is played at -23
AFTER_S = 1.5  # an interruption that has not ended the reply so long after its last sound is missed
BAR_DB, SELF_BAR, MISSED_BAR = -15, 0, 2  # per 100

CALLER = (
    "Stop.", "Wait a moment.", "No, I meant the other one.", "Can you say that again?",
    "Actually, I want to know about trains.", "Hold on a second.", "What time is it?",
    "Sorry, which platform was that?",
    "Please tell me something else.", "That is not what I asked for.", "How long does it take?",
    "Okay, but how much is it?",
)  # fmt: skip
ASSISTANT, *CALLERS = corpus.VOICES[:6]


@dataclass(frozen=True, slots=True)
class Case:
    """One call."""

    db: float
    delay_s: float
    number: int
    guarded: bool
    interrupts: bool


@dataclass(slots=True)
class Tally:
    """What happened to the replies of calls."""

    replies: int = 0
    ended: int = 0  # replies that ended without a word of the caller
    answered: int = 0  # turns without a word of the caller
    lowered: int = 0  # replies that were lowered or held for a while without a word of the caller
    interruptions: int = 0
    missed: int = 0
    lower_ms: list[float] = field(default_factory=list)  # from the first sound of an interruption to lower or hold
    silent_ms: list[float] = field(default_factory=list)  # to silence at the telephone
    notes: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Add the replies of other calls."""
        for name in ("replies", "ended", "answered", "lowered", "interruptions", "missed"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("lower_ms", "silent_ms", "notes"):
            getattr(self, name).extend(getattr(other, name))


@cache
def caller(number: int, voice: int) -> tuple[Floats, float]:
    """Return what a caller says, and the second at which its first strong sound begins; about -23 dB of full scale."""
    sound = on_line(corpus.say(CALLER[number % len(CALLER)], CALLERS[voice % len(CALLERS)]).sound)
    power = (sound[: len(sound) // 80 * 80].reshape(-1, 80) ** 2).mean(axis=1)
    return sound, int(np.argmax(power > power.max() / 100)) / 100


class Conversation:
    """A caller, five replies, and what happened to each."""

    def __init__(self, call: SimulatedCall, case: Case, chance: random.Random) -> None:
        self._call = call
        self._case = case
        self._chance = chance
        self._said = case.number * 7 + round(case.delay_s * 100)
        self.tally = Tally()

    async def run(self) -> None:
        """Talk."""
        place, expected = 0, True  # the greeting comes by itself
        for _ in range(REPLIES):
            place = place if expected else await self._ask()
            expected = False
            if not await self._begun(place):
                self.tally.notes.append("no reply")
                continue
            # A question that was taken for two turns interrupts its own answer before it is heard.
            await self._call.until(lambda: self._call.line.peaks[-1][1] > LOUD and not self._call.line.speaking, 8.0)
            self.tally.replies += 1
            place = len(self._call.diary.events)
            if self._case.interrupts:
                place, expected = await self._interrupt(place)
            else:
                await self._call.until_quiet(1.2, 25.0)
                self._count_alone(place)

    async def _begun(self, place: int) -> bool:
        """Wait for a reply; return whether one began."""
        return await self._call.until(lambda: bool(self._call.diary.since(place, ReplyStarted)), 8.0)

    async def _ask(self) -> int:
        """Ask when it is quiet; return the number of events before."""
        await self._call.until_quiet(0.5, 20.0)
        place = len(self._call.diary.events)
        self._say()
        await self._call.until(lambda: not self._call.line.speaking, 10.0)
        return place

    def _say(self) -> tuple[float, float]:
        """Say the next thing; return when its first strong sound begins, and when it ends."""
        sound, first_s = caller(self._said % len(CALLER), self._case.number)
        self._said += 1
        gain = 10 ** ((self._chance.uniform(*CALLER_DB) + 23) / 20)
        begin, end = self._call.line.say(sound * np.float32(gain))
        return begin + first_s, end

    def _count_alone(self, place: int) -> bool:
        """Count what the echo alone has done since a place in the diary; return whether it ended the reply."""
        diary, tally = self._call.diary, self.tally
        ended = bool(diary.since(place, Interrupted))
        began = {event.turn for _, event in diary.since(place, SpeechStarted)}
        heard = [event.text for _, event in diary.since(place, UserTurn) if event.turn in began]
        tally.ended += ended
        tally.answered += bool(heard)
        tally.lowered += bool(diary.since(place, Duck, Hold))
        if ended or heard:
            tally.notes.append(f"reply {tally.replies} ended itself: {heard}")
        return ended

    async def _interrupt(self, place: int) -> tuple[int, bool]:
        """Interrupt a reply; return the number of events before that, and whether it worked."""
        call, loop = self._call, asyncio.get_running_loop()
        began_s = loop.time()
        await asyncio.sleep(self._chance.uniform(0.5, 4.0))
        if self._count_alone(place):
            return place, False
        place = len(call.diary.events)
        first_s, end_s = self._say()
        self.tally.interruptions += 1
        await call.until(lambda: call.diary.since(place, Interrupted), end_s - loop.time() + AFTER_S)
        over = call.diary.since(place, Interrupted)
        if not over:
            self.tally.missed += 1
            said = CALLER[(self._said - 1) % len(CALLER)]
            self.tally.notes.append(f"missed {said!r} {first_s - began_s:.1f} s after the reply began")
            return place, False
        await asyncio.sleep(0.2)
        self._time(place, first_s, over[0][0])
        return place, True

    def _time(self, place: int, first_s: float, over_s: float) -> None:
        """Note how soon a reply was lowered and silent."""
        lowered = [at_s for at_s, _ in self._call.diary.since(place, Duck, Hold)]
        self.tally.lower_ms.append((min([*lowered, over_s]) - first_s) * 1e3)
        loud = [at_s for at_s, peak in self._call.line.peaks if first_s <= at_s < over_s + 0.2 and peak > LOUD]
        self.tally.silent_ms.append((max(loud, default=first_s - PACKET_S) + PACKET_S - first_s) * 1e3)


@cache
def story(number: int) -> Sound:
    """Return what the assistant says, up to the last word that ends within REPLY_S."""
    spoken = corpus.say(corpus.STORIES[number], ASSISTANT)
    ends = [end_s for _, _, end_s in spoken.words if end_s <= REPLY_S]
    return spoken.sound[: round((ends[-1] + 0.1) * RATE)]


async def _converse(core: Core, case: Case) -> Tally:
    chance = random.Random(f"{case.delay_s} {case.number} {case.interrupts}")
    stories = [story(number) for number in range(len(corpus.STORIES))]
    first = chance.randrange(len(stories))
    response = small_room(case.number) if case.number % 2 else np.ones(1, np.float32)
    path = EchoPath(case.db, case.delay_s, response)
    async with simulated_call(
        core,
        stories[first:] + stories[:first],
        path,
        guarded=case.guarded,
        way_s=chance.choice(WAY_S),
        seed=case.number,
    ) as call:
        conversation = Conversation(call, case, chance)
        await conversation.run()
    return conversation.tally


@cache
def _recogniser() -> Core:
    return engine(model="", asr_model="moonshine-tiny-en", threads=1).core


def converse(case: Case) -> tuple[Case, Tally]:
    """Return what happened in a call."""
    return case, run_virtually(_converse(_recogniser(), case))


def cases(levels: tuple[int, ...], calls: int) -> Iterator[Case]:
    """Yield the calls of all levels, delays and kinds, before and after."""
    for db in levels:
        for number in range(calls):
            for delay_s in DELAYS_S:
                for guarded in (False, True):
                    for interrupts in (False, True):
                        yield Case(db, delay_s, number, guarded, interrupts)


def _prepare(calls: int) -> None:
    """Make all clips before the processes that need them begin."""
    for number in range(len(corpus.STORIES)):
        story(number)
    for voice in range(min(calls, len(CALLERS))):
        for number in range(len(CALLER)):
            caller(number, voice)


def _row(db: int, when: str, found: dict[tuple[float, bool, bool], Tally]) -> list[str]:
    alone, over = (found[db, when == "after", interrupts] for interrupts in (False, True))
    replies = alone.replies

    def per(count: int, of: int) -> str:
        return f"{100 * count / max(1, of):.0f}" if count else "0"

    times = [
        f"{percentile(values or [float('nan')], share):.0f}"
        for values in (over.lower_ms, over.silent_ms)
        for share in (0.5, 0.95)
    ]
    return [
        str(db),
        when,
        str(replies),
        *(per(count, replies) for count in (alone.lowered, alone.ended, alone.answered)),
        str(over.interruptions),
        per(over.missed, over.interruptions),
        *times,
    ]


def report(calls: int = CALLS, levels: tuple[int, ...] = LEVELS_DB) -> None:
    """Print the table and whether the bars are met."""
    _prepare(calls)
    found: dict[tuple[float, bool, bool], Tally] = {}
    todo = list(cases(levels, calls))
    with multiprocessing.get_context("spawn").Pool(THREADS) as pool:
        for done, (case, tally) in enumerate(pool.imap_unordered(converse, todo), 1):
            found.setdefault((case.db, case.guarded, case.interrupts), Tally()).add(tally)
            print(f"\r  {done} of {len(todo)} calls", end="", file=sys.stderr, flush=True)
            if case.guarded or "VERBOSE" in os.environ:
                for note in tally.notes:
                    print(f"\n  {case}: {note}", file=sys.stderr)
    print(file=sys.stderr)
    header = [
        "echo dB", "guard", "replies", "lowered", "ended itself", "answered itself", "interruptions", "missed",
        "lower p50", "p95", "silent p50", "p95",
    ]  # fmt: skip
    rows = [_row(db, when, found) for db in levels for when in ("before", "after")]
    delays = ", ".join(f"{delay_s * 1e3:.0f}" for delay_s in DELAYS_S)
    table(f"echo through mu-law, {delays} ms late, {machine()}: per 100; ms from the first sound", header, rows)
    _print_bars(found, levels)


def _print_bars(found: dict[tuple[float, bool, bool], Tally], levels: tuple[int, ...]) -> None:
    low = [db for db in levels if db <= BAR_DB]
    alone, over = Tally(), Tally()
    for db in low:
        alone.add(found[db, True, False])
        over.add(found[db, True, True])
    ended = alone.ended + alone.answered + over.ended + over.answered
    missed = 100 * over.missed / max(1, over.interruptions)
    bars = {
        f"no self-interruption at {BAR_DB} dB and below ({ended} of {alone.replies + over.replies})": ended <= SELF_BAR,
        f"missed ≤ {MISSED_BAR} of 100 there ({missed:.1f})": missed <= MISSED_BAR,
    }
    print("  bars: " + "; ".join(f"{bar}: {'met' if met else 'missed'}" for bar, met in bars.items()))
