"""The interrupt lane of a full engine on one GPU: how soon interrupted requests leave and critical ones are served.

    PYTHONPATH=build/gpu python3 benchmarks/gpu_interrupt.py              # see gpu_engine.py for build/gpu
    PYTHONPATH=build/gpu python3 benchmarks/gpu_interrupt.py --policies deadline --critical 100
    python benchmarks/gpu_interrupt.py --dry-run                          # on a CPU, with a tiny chat model

The engine is the server's child process. A load keeps its batch full of answers, while long prompts arrive, speech is
recognised and voices speak. Meanwhile sessions are interrupted at random times, some 50 a second: `Pause`, then a
critical request of the same session. That is a question of some 25 tokens to the chat model or, every fifth time, a
second of speech to recognise. When it is served, the interrupted answer is resumed. Each policy has an engine of its
own.

The sender takes the times from sending `Pause`, so they include the socket both ways.
    gone     until the interrupted request is in no later step. A request of the same session that must be refused is
             sent right after `Pause`; a session's commands are carried out in order, so its refusal marks the
             moment. If the token of a running step comes after that, the time is that token's: "late" counts these. A
             second late token of the same answer would count as "more".
    first    the critical question's first token
    words    the text of the critical second of speech, all of it
    idle     the same arrivals with nothing else in the engine
    alone    the same requests, each sent when the one before was served, so that none waits for another

Time: for 500 critical requests some twenty seconds without load; for each policy an engine's start and 35 seconds.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.common import table
from support.figures import in_shares, quantiles_ms
from support.sessions.engine import (
    Engine,
    Options,
    Sound,
    Told,
    chat_folder,
    parser,
    read_options,
    running,
    spoken,
    steps_of,
)
from support.sessions.load import FULL, SMALL, Answer, Load, Sizes

from voxlane.engine.api import (
    Append,
    EndInput,
    Finished,
    Pause,
    Priority,
    Refused,
    Resume,
    SamplingParams,
    SpeakParams,
    Submit,
    Text,
    Words,
)

QUESTION = "Please stop for a moment, I want to ask you something else: what did you say about the second bridge?"
CALL = "Wait, please stop for a moment."
CRITICAL_TOKENS = 4
HEARD_EVERY = 5
MEAN_GAP_S = 0.02
ALONE_GAP_S = 0.015
PATIENCE_S = 5.0
"""How long to wait for the last critical requests; one not served by then counts with the time waited."""

WARM_UP = 20
"""Critical requests that do not count, before the first that does."""

FILL_S = 6.0
"""How long the load may take to fill the batch; a policy that keeps steps short may never fill it."""

SETTLE_S = 4.0
"""How long the full batch runs before the first interruption: the engine learns step costs and how many rows fit."""

REPORT_S = 2.0
"""How long to wait for a busy engine's next report: it sends one a second."""

FIRST_BAR_S, IDLE_RATIO_BAR = 0.025, 2.0


Figures = dict[str, Any]
"""The figures of a run, as they go into a file."""


@dataclass(slots=True)
class Call:
    """One interruption and the critical request that came with it."""

    name: str
    heard: bool  # speech, not text
    sent_s: float
    victim: Answer | None
    gone_s: float | None = None
    served_s: float | None = None


@dataclass(slots=True)
class Lane:
    """Interrupts an engine and takes the times."""

    engine: Engine
    sound: Sound | None
    random: random.Random
    load: Load | None
    calls: dict[str, Call] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    async def run(self, count: int, mean_gap_s: float, most_s: float = PATIENCE_S) -> None:
        """Interrupt so many times, then wait until all critical requests are served."""
        due_s = time.monotonic()
        while len(self.calls) < count:
            now = time.monotonic()
            if self.load is not None:
                self.load.tick(now)
            if now >= due_s:
                self._call()
                due_s = max(now, due_s + self.random.expovariate(1 / mean_gap_s))
            await asyncio.sleep(0.0005)

        until = self.engine.until if self.load is None else self.load.until
        await until(lambda: all(call.served_s is not None for call in self.calls.values()), most_s)

    def _call(self) -> None:
        victims = self.load.answering if self.load is not None else []
        victim = self.random.choice(victims) if victims else None
        number = len(self.calls)
        heard = self.sound is not None and number % HEARD_EVERY == HEARD_EVERY - 1
        call = Call(f"call{number}", heard, time.monotonic(), victim)
        session = victim.name if victim is not None else call.name
        self.calls[call.name] = call
        self.engine.receivers[call.name] = self._take
        refused = Submit(f"{call.name}/mark", "tts", speak=SpeakParams(voice="nobody"), session=session)
        if victim is not None:
            victim.called = True
            self.engine.send(Pause((f"{victim.name}/answer",)))
        self.engine.send(refused, *self._critical(call, session))

    def _critical(self, call: Call, session: str) -> Sequence[Submit | Append | EndInput]:
        name = f"{call.name}/critical"
        if call.heard:
            assert self.sound is not None
            listen = Submit(name, "asr", priority=Priority.CRITICAL, session=session)
            return listen, Append(name, audio=self.sound.piece(0, 1.0)), EndInput(name)
        sampling = SamplingParams(max_tokens=CRITICAL_TOKENS, ignore_eos=True)
        # Numbered, so that the prefix cache has no part of it.
        text = f"{len(self.calls)}. {QUESTION}"
        return (Submit(name, "complete", text=text, sampling=sampling, priority=Priority.CRITICAL, session=session),)

    def _take(self, message: Told, now: float) -> None:
        call = self.calls[message.request_id.partition("/")[0]]
        match message:
            case Refused(name) if name.endswith("/mark"):
                call.gone_s = now - call.sent_s
                if call.victim is not None:
                    call.victim.paused = not call.victim.done
            case Text() | Words() if call.served_s is None:
                call.served_s = now - call.sent_s
            case Finished(reason=reason):
                if call.victim is not None:
                    call.victim.paused = False
                    self.engine.send(Resume(f"{call.victim.name}/answer"))
                if reason not in ("length", "eos") or call.served_s is None:
                    self.failures.append(f"{message.request_id}: {reason}")
            case Refused(detail=detail):
                self.failures.append(detail)
            case _:
                pass

    def times(self, *, heard: bool) -> list[float]:
        """Return how long each kind of critical request waited to be served."""
        now = time.monotonic()
        return [
            now - call.sent_s if call.served_s is None else call.served_s
            for call in self.calls.values()
            if call.heard is heard
        ]

    def gone(self) -> list[float]:
        """Return how long each interrupted request took to leave the batch."""
        return [
            max(call.gone_s, call.victim.late_s - call.sent_s if call.victim is not None else 0.0)
            for call in self.calls.values()
            if call.gone_s is not None
        ]


def figures(lane: Lane, load: Load | None, engine: Engine) -> Figures:
    """Return the figures of a run."""
    found: Figures = {
        "gone_ms": quantiles_ms(lane.gone()),
        "first_ms": quantiles_ms(lane.times(heard=False)),
        "words_ms": quantiles_ms(lane.times(heard=True)),
        "critical": len(lane.calls),
        "unserved": sum(call.served_s is None for call in lane.calls.values()),
        "victims": sum(call.victim is not None for call in lane.calls.values()),
        "failures": [*lane.failures, *(load.failures if load is not None else [])][:5],
        **steps_of(engine.stats),
    }
    if load is not None:
        found["late"] = sum(answer.late > 0 for answer in load.answers.values())
        found["too_late"] = sum(answer.late > 1 for answer in load.answers.values())
    return found


async def saturated(engine: Engine, sizes: Sizes, sound: Sound | None, count: int) -> Figures:
    """Fill an engine and interrupt it."""
    load = Load(engine, sizes, sound, talks=bool(engine.config.tts_model), random=random.Random(7))
    lane = Lane(engine, sound, random.Random(11), load)
    load.begin(time.monotonic())
    full = min(engine.config.max_batch, sizes.answers) * 3 // 4
    await load.until(lambda: len(load.answering) >= full, FILL_S)
    settled = time.monotonic() + (SETTLE_S if sizes is FULL else 0.0)
    await load.until(lambda: time.monotonic() > settled, SETTLE_S)
    answering = len(load.answering)
    engine.stats.clear()
    await load.until(lambda: bool(engine.stats), REPORT_S)  # the first report covers the filling too
    engine.stats.clear()
    cpu_s, begin = engine.cpu_s(), time.monotonic()
    await lane.run(count, MEAN_GAP_S)
    found = figures(lane, load, engine)
    found["answering"] = answering
    found["cpu"] = round((engine.cpu_s() - cpu_s) / (time.monotonic() - begin), 2)
    load.end()
    return found


async def idle(engine: Engine, sound: Sound | None, count: int) -> Figures:
    """Send the same critical requests to an engine with nothing else to do."""
    engine.stats.clear()
    lane = Lane(engine, sound, random.Random(11), None)
    await lane.run(count, MEAN_GAP_S)
    return figures(lane, None, engine)


async def alone(engine: Engine, sound: Sound | None, count: int) -> Figures:
    """Send the same critical requests one at a time to an idle engine."""
    engine.stats.clear()
    lane = Lane(engine, sound, random.Random(11), None)
    while len(lane.calls) < count:
        await lane.run(len(lane.calls) + 1, ALONE_GAP_S)
        await asyncio.sleep(lane.random.uniform(0, ALONE_GAP_S / 2))
    return figures(lane, None, engine)


async def measure(options: Options, folder: Path, count: int) -> dict[str, Figures]:
    """Measure idle, and each policy on an engine of its own; return the figures by name."""
    found: dict[str, Figures] = {}
    sizes = SMALL if options.dry else FULL
    try:
        for policy in options.policies:
            async with running(options.engine(policy, folder)) as engine:
                sound = (await spoken(engine, [CALL]))[0] if options.asr_model and options.tts_model else None
                gc.collect()
                gc.freeze()
                await alone(engine, sound, WARM_UP)
                if not found:
                    report(found, "alone", await alone(engine, sound, max(10, count // 2)), options.json)
                    report(found, "idle", await idle(engine, sound, count), options.json)
                report(found, policy, await saturated(engine, sizes, sound, count), options.json)
    except RuntimeError as error:  # print the figures so far
        print(f"FAILED: {error}", flush=True)
    return found


def report(found: dict[str, Figures], name: str, figures: Figures, path: str = "") -> None:
    """Print new figures and write the file again, so that it is right if a later part fails."""
    found[name] = figures
    print(name, json.dumps(figures), flush=True)
    if path:
        Path(path).write_text(json.dumps(found, indent=1), encoding="utf-8")


def summary(found: dict[str, Figures], shape: str) -> list[str]:
    """Print the table; return the bars and whether they are met."""
    header = ["policy", "gone", "first token", "words", "unserved", "late + more", "step"]
    rows = []
    for name, one in found.items():
        cells = [name, *(in_shares(one[key]) for key in ("gone_ms", "first_ms", "words_ms")), str(one["unserved"])]
        cells.append(f"{one['late']} + {one['too_late']}" if "late" in one else "")
        rows.append([*cells, f"{one['step_ms']:.1f}"])
    title = f"critical requests into a full engine ({shape}): milliseconds from Pause, p50 / p95 / p99"
    table(title, header, rows)
    lines = []
    for name in ("deadline", "priority"):
        if name in found:
            loaded, unloaded, single = (found[one]["first_ms"]["p99"] for one in (name, "idle", "alone"))
            lines.append(f"{name}: p99 of the first token {loaded:.1f} ms (bar <= {FIRST_BAR_S * 1e3:g})")
            lines.append(f"{name}: {loaded / single:.2f} x alone (bar <= {IDLE_RATIO_BAR:g})")
            lines.append(f"{name}: {loaded / unloaded:.2f} x idle")
    return lines


def main() -> None:
    """Measure and print the table."""
    commands = parser(__doc__)
    commands.add_argument("--critical", type=int, default=500, help="requests for each policy (%(default)d)")
    chosen = commands.parse_args()
    options = read_options(chosen, "gpu_interrupt")
    count = min(chosen.critical, 20) if options.dry else chosen.critical
    with chat_folder(options) as folder:
        found = asyncio.run(measure(options, folder, count))
    for line in summary(found, options.shape):
        print(" ", line)
    if any(one["failures"] for one in found.values()):
        sys.exit("some requests failed")


if __name__ == "__main__":
    main()
