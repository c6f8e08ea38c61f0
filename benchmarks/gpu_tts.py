"""A voice that is a language model over codec frames (Qwen3-TTS) on one GPU: how soon it speaks, and for how many.

    PYTHONPATH=build/gpu python3 benchmarks/gpu_tts.py --speech some.wav     # see gpu_engine.py for build/gpu
    PYTHONPATH=build/gpu python3 benchmarks/gpu_tts.py --sizes 1.7b --levels 64 --rates 10 --peers FOLDER
    python benchmarks/gpu_tts.py --dry-run                                  # on a CPU, with a tiny voice: a minute

Random weights of the true shapes, so the voice says noise, and never an end: who listens hangs up after 4 to 8 seconds
of it. The engine is the server's child process, with a chat and a listening model beside the voice that is measured
among other work (--mixed); all times are those of this process, at the other end of the socket. An utterance is
`Submit` (high), two sentences of text, `EndInput`.

    N listeners N - 1 who listen to one utterance after the other, and one who asks for 0.4 s of speech (1.2 s if there
                is nobody else) again and again. What is made of an utterance is ahead of who hears it: the request is
                over when all of it has come, before it has been heard
    n/s         utterances arrive at random (Poisson), so many a second, whatever became of those before
    N at once   N who ask in the same moment for 1.2 s of speech, and again when all have it, beside 32 who listen
    mixed       32 who listen, as many answers being written and microphones being heard, and every second (then ten
                times a second) a listener cuts in: `Pause`, `Cancel`, and a second of critical speech to be heard

    open        requests that are not over, on average
    first       milliseconds from `Submit` (or from when it was due) until the first packet, p50 / p95 / p99
    frame       milliseconds from a packet to the next, divided by the frames (80 ms of speech) in that, p50 / p95 / p99
                of the frames in the second of speech after the first packet: who has more is let wait for more
    × real      seconds of speech a second in that second: median, and of the slowest utterance
    underruns   packets that came when a listener, who plays from the first packet on, had nothing left, and how many
                utterances had such a one
    left        milliseconds of sound that listeners had left when a packet came: half of the packets found as much or
                more, then 95, then 99 in a hundred
    step        milliseconds of the engine's steps: mean, longest
    silence     from `Pause` until the last packet of the interrupted came (nought if none came), p50 / p95 / p99
    gone        until the engine said that it is over
The peers (gpu_tts_peers.py) speak one after the other from the same checkpoints, while the engines are not asked.

Time: some 200 s are measured with both voices. Writing checkpoints, engines' starts and the peers, who
are given two minutes, come on top.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import gpu_tts_peers
import random_talkers
from gpu_steps import steps_of
from gpu_tts_load import Callers, Crowd, Listeners, Prober, Voices, heard
from gpu_tts_mixed import Barged, recording, talk_over
from gpu_tts_tables import BARRED, Row, bars, summary
from gpu_voices import Engine, Options, Sound, chat_folder, parser, read_options, running

TICK_S = 0.001
JOIN_S, SETTLE_S = 1.0, 0.5
STEADY_S = 6.0
"""How long arrivals go on before they count: as long as an utterance is, after that as many end as begin."""

ALONE_S = 1.2
"""What is asked for again and again where nobody else listens, and by crowds: enough to tell its pace."""

BESIDE_CROWD = 32

WARM_UP_S = 1.5
CUT_IN_GAPS_S, MIXED_S = (1.0, 0.1), 10.0
TAIL_S = 0.5
"""How long the last ones asked for are waited for."""

MEMORY_SHARE = 0.5
"""Of what is free, for a chat model's cache: the other voice's engine starts beside it."""

Figures = dict[str, Any]


class Stage:
    """An engine that is watched while something is asked of it."""

    def __init__(self, engine: Engine, size: str) -> None:
        self.engine = engine
        self.size = size
        self.rows: list[Row] = []
        self.failures: list[str] = []

    async def measure(
        self,
        load: str,
        streams: int,
        voices: Voices,
        tick: Callable[[float], None],
        spans: tuple[float, float],
        barged: Callable[[], Barged] | None = None,
    ) -> None:
        """Run a load, a while that does not count and a while that does; keep what was found."""
        settle_s, seconds = spans
        await self.run(tick, settle_s)
        self.engine.stats.clear()
        begin, engine_s, own_s = time.monotonic(), self.engine.cpu_s(), time.process_time()
        opened: list[int] = []

        def counted(now: float) -> None:
            tick(now)
            opened.append(voices.open)

        await self.run(counted, seconds)
        end = time.monotonic()
        steps = steps_of(self.engine.stats)
        engine_cpu = round((self.engine.cpu_s() - engine_s) / (end - begin), 2)
        own_cpu = round((time.process_time() - own_s) / (end - begin), 2)
        await self.run(tick, TAIL_S)
        found = heard(voices.utterances, begin, end)
        row = Row(
            *(self.size, load, streams, round(sum(opened) / len(opened), 1), found, steps, engine_cpu, own_cpu),
            barged=barged() if barged else None,
        )
        self.rows.append(row)
        print(json.dumps(asdict(row)), flush=True)

    async def clear(self, voices: Voices) -> None:
        """Take everything back and wait until the engine has said the end of it."""
        voices.end()
        self.failures += voices.failures
        if not await self.engine.until(lambda: voices.open == 0, 5.0):
            raise RuntimeError(f"{voices.open} utterances do not end")

    @staticmethod
    async def run(tick: Callable[[float], None], seconds: float) -> None:
        """Let a load go on for a while."""
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < end:
            tick(now)
            await asyncio.sleep(max(0.0002, now + TICK_S - time.monotonic()))


async def concurrent(stage: Stage, count: int, seconds: float) -> None:
    """Measure so many streams."""
    voices = Voices(stage.engine, count)
    listeners = Listeners.join(voices, count - 1, time.monotonic(), JOIN_S)
    prober = Prober(voices) if count > 1 else Prober(voices, ALONE_S)

    def tick(now: float) -> None:
        listeners.tick(now)
        prober.tick(now)

    settle_s = JOIN_S + SETTLE_S if count > 1 else SETTLE_S
    await stage.measure(f"{count} listeners", count, voices, tick, (settle_s, seconds))
    await stage.clear(voices)


async def arriving(stage: Stage, per_s: float, seconds: float) -> None:
    """Measure so many arriving a second."""
    voices = Voices(stage.engine, round(per_s))
    callers = Callers(voices, per_s, time.monotonic())
    await stage.measure(f"{per_s:g}/s", round(6 * per_s), voices, callers.tick, (STEADY_S, seconds))
    await stage.clear(voices)


async def crowded(stage: Stage, count: int, seconds: float, *, beside: int) -> None:
    """Measure so many who ask at once, again and again, beside some who listen."""
    voices = Voices(stage.engine, 1000 + count)
    listeners = Listeners.join(voices, beside, time.monotonic(), JOIN_S)
    crowd = Crowd(voices, count, ALONE_S)

    def tick(now: float) -> None:
        listeners.tick(now)
        crowd.tick(now)

    await stage.run(listeners.tick, JOIN_S + SETTLE_S)
    await stage.measure(f"{count} at once", count + beside, voices, tick, (0.0, seconds))
    await stage.clear(voices)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured of each voice."""

    sizes: Sequence[str]
    levels: Sequence[int]
    rates: Sequence[float]
    crowds: Sequence[int]
    arrivals_s: float
    mixed: str  # the size it is done with; "": with none
    sessions: int  # of it
    mixed_s: tuple[float, float]  # how long, for each of CUT_IN_GAPS_S
    peers: Path | None
    speech: Path | None


async def perform(stage: Stage, options: Options, plan: Plan, sound: Sound) -> None:
    """Measure one voice under every load, unless its engine did not start; what is found is the stage's."""
    if stage.failures:
        return
    try:
        await every_load(stage, options, plan, sound)
    except RuntimeError as error:  # the other size may do better
        stage.failures.append(str(error))


async def every_load(stage: Stage, options: Options, plan: Plan, sound: Sound) -> None:
    """Measure one voice under every load, after a while that does not count."""
    await concurrent(stage, 2 if options.dry else 8, WARM_UP_S)
    gc.collect()
    gc.freeze()
    stage.rows.clear()
    for level in plan.levels:
        await concurrent(stage, level, options.seconds)
    for rate in plan.rates:
        await arriving(stage, rate, plan.arrivals_s)
    for count in plan.crowds:
        await crowded(stage, count, options.seconds, beside=2 if options.dry else BESIDE_CROWD)
    if plan.mixed == stage.size:
        await mixed(stage, plan, sound, small=options.dry)


async def mixed(stage: Stage, plan: Plan, sound: Sound, *, small: bool) -> None:
    """Measure among other work, with somebody cutting in, now and then and often."""
    voices = Voices(stage.engine, 77)
    mixture = talk_over(stage.engine, voices, sound, plan.sessions, JOIN_S, small=small)
    await stage.run(mixture.tick, JOIN_S + SETTLE_S)
    for gap_s, seconds in zip(CUT_IN_GAPS_S, plan.mixed_s, strict=True):
        mixture.begin(gap_s)
        load = f"mixed, {1 / gap_s:g} cut in a second"
        await stage.measure(load, plan.sessions, voices, mixture.tick, (0.0, seconds), mixture.barged)
    mixture.end()
    stage.failures += mixture.failures
    await stage.clear(voices)


async def measure(options: Options, plan: Plan, chat: Path, sound: Sound) -> tuple[list[Row], Figures]:
    """Measure every voice; return the rows, and what else was found. Engines start side by side, to save time."""
    with contextlib.ExitStack() as folders:
        checkpoints = {size: folders.enter_context(checkpoint(size, options)) for size in plan.sizes}
        speak: Callable[[], gpu_tts_peers.Figures] = dict
        if plan.peers is not None:
            speak = folders.enter_context(gpu_tts_peers.loading(checkpoints, plan.peers, dry=options.dry))
        stages = []
        for size, folder in checkpoints.items():
            beside: dict[str, object] = {} if size == plan.mixed else {"model": "", "asr_model": ""}
            profile = f"{options.profile}.{size}" if options.profile and len(plan.sizes) > 1 else options.profile
            told = replace(options, tts_model=str(folder), profile=profile)
            stages.append(Stage(told.engine("deadline", chat, gpu_memory_share=MEMORY_SHARE, **beside), size))
        async with contextlib.AsyncExitStack() as engines:
            await asyncio.gather(*(opened(stage, engines) for stage in stages))
            peers = await asyncio.to_thread(speak)
            for size, figures in peers.items():
                print(json.dumps({"size": size, "peers": [asdict(one) for one in figures]}), flush=True)
            for stage in stages:
                await perform(stage, options, plan, sound)
    failures = [f"{stage.size}: {failure}" for stage in stages for failure in stage.failures]
    return [row for stage in stages for row in stage.rows], {"peers": peers, "failures": failures}


@contextlib.contextmanager
def checkpoint(size: str, options: Options) -> Iterator[Path]:
    """Keep a folder with the voice while it is needed: random weights, or what the command line names."""
    if options.tts_model:
        yield Path(options.tts_model)
        return
    with tempfile.TemporaryDirectory() as name:
        begin = time.monotonic()
        random_talkers.write(size, Path(name), "cpu" if options.dry else "cuda")
        print(f"{size}: written in {time.monotonic() - begin:.1f} s", flush=True)
        yield Path(name)


async def opened(stage: Stage, engines: contextlib.AsyncExitStack) -> None:
    """Start a stage's engine; one that cannot is one of its failures."""
    try:
        await engines.enter_async_context(running(stage.engine))
    except RuntimeError as error:  # the other size may do better
        stage.failures.append(str(error))


# ---- the command line


def _numbers(text: str) -> list[float]:
    return [float(one) for one in text.split(",") if one]


def read_plan(chosen: argparse.Namespace, *, dry: bool) -> Plan:
    """Return what the command line says."""
    if dry:
        return Plan(["tiny"], (1, 3), (1.0,), (3,), 6.0, "tiny", 3, (3.0, 1.0), chosen.peers, chosen.speech)
    return Plan(
        sizes=chosen.sizes.split(","),
        levels=[int(level) for level in _numbers(chosen.levels)],
        rates=_numbers(chosen.rates),
        crowds=[int(count) for count in _numbers(chosen.crowds)],
        arrivals_s=chosen.arrivals,
        mixed=chosen.mixed,
        sessions=32,
        mixed_s=(max(MIXED_S, 2 * chosen.seconds), chosen.seconds),
        peers=chosen.peers,
        speech=chosen.speech,
    )


def main() -> None:
    """Measure and print the tables and the bars."""
    commands = parser(__doc__, 5.0, policies=False)
    commands.set_defaults(tts_model="")
    commands.add_argument("--sizes", default="1.7b,0.6b", help="(%(default)s)")
    commands.add_argument("--levels", default="1,8,16,32,64,128", help="listeners (%(default)s)")
    commands.add_argument("--rates", default="10,20", help="requests a second (%(default)s)")
    commands.add_argument("--crowds", default="64", help="who ask at once (%(default)s)")
    commands.add_argument("--arrivals", type=float, default=12.0, help="seconds of arrivals that count (%(default)g)")
    commands.add_argument(
        "--mixed", default=BARRED, help="the voice that is also measured among other work (%(default)s)"
    )
    commands.add_argument("--peers", type=Path, help="the folder that holds the peers' packages")
    commands.add_argument("--speech", type=Path, help="a recording of somebody who speaks; noise, if there is none")
    chosen = commands.parse_args()
    options = read_options(chosen, "gpu_tts")
    plan = read_plan(chosen, dry=options.dry)
    random.seed(1)
    with chat_folder(options) as chat:
        rows, other = asyncio.run(measure(options, plan, chat, recording(plan.speech)))
    if options.json:
        peers = {size: [asdict(one) for one in figures] for size, figures in other["peers"].items()}
        told: Figures = {"rows": [asdict(row) for row in rows], **other, "peers": peers}
        Path(options.json).write_text(json.dumps(told, indent=1), encoding="utf-8")
    summary(rows, other["peers"])
    for line in bars(rows, [failure.partition(":")[0] for failure in other["failures"]]):
        print(" ", line)
    for failure in other["failures"][:5]:
        print("  FAILED:", failure)


if __name__ == "__main__":
    main()
