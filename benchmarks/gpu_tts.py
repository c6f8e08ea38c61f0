"""Qwen3-TTS, a voice that is a language model over codec frames, on one GPU: how soon it speaks, and for how many.

    PYTHONPATH=build/gpu python3 benchmarks/gpu_tts.py --speech some.wav     # see gpu_engine.py for build/gpu
    PYTHONPATH=build/gpu python3 benchmarks/gpu_tts.py --sizes 1.7b --levels 64 --rates 10 --peers FOLDER
    PYTHONPATH=build/gpu python3 benchmarks/gpu_tts.py --exact --codec      # these two instead
    python benchmarks/gpu_tts.py --dry-run                                  # on a CPU, with a tiny voice: a minute

Weights are random and have the true shapes, so the voice speaks noise without an end: a listener hangs up after 4 to 8
seconds. The engine is the server's child process; the voice that --mixed names shares it with a chat model and a
recogniser. This process takes all times, at the other end of the socket. An utterance is `Submit` (high), two sentences
of text, `EndInput`. Loads:

    N listeners N - 1 people who listen to one utterance after the other, and one who asks for 0.4 s of speech (1.2 s
                with one listener) again and again. The engine is ahead of the listener: a request ends when all its
                audio has come, before it has been heard
    n/s         utterances arrive at random (Poisson), so many a second, however many are open
    N at once   N people ask in the same moment for 1.2 s of speech, and again when all have it, beside 32 listeners
    mixed       32 listeners, as many answers being written and microphones being transcribed; every second (then ten
                times a second) a listener interrupts: `Pause`, `Cancel`, and a second of critical speech

Columns:

    open        requests that have not ended, on average
    first       milliseconds from `Submit` (or from when it was due) until the first packet, p50 / p95 / p99
    frame       milliseconds from a packet to the next, divided by its frames (80 ms of speech), p50 / p95 / p99 of the
                frames in the second of speech after the first packet: the engine lets listeners who are ahead wait
    × real      seconds of speech a second in that second: median, and of the slowest utterance
    underruns   packets that came when a listener, who plays from the first packet on, had nothing left to play, and the
                number of utterances with such a packet
    left        milliseconds of sound that listeners had left when a packet came: half of the packets found as much or
                more, then 95, then 99 in a hundred
    step        milliseconds of the engine's steps: mean, longest
    silence     from `Pause` until the last packet of the interrupted request (0 if none came), p50 / p95 / p99
    gone        until the engine reported its end
The peers (--peers) speak one after the other from the same checkpoints, while the engines are idle.

--exact compares the GPU's frames and samples with the CPU's: a small talker, eight different requests, float32.
`launched` compares the device without CUDA graphs, `graphs` with them, `alone` each request by itself with the eight
together. Codes are sampled: where two are equally likely but for rounding, another may be chosen, and other frames
follow. The first such place of each request is printed; with these seeds there is none.

--codec checks the codec's decoder at its true shape in float16, the type that serves: noise against float32 on the CPU
in decibels below its loudness, and the graph against the launched calls. Then it times many streams: `graph` is one
call for all streams as a CUDA graph in milliseconds, `launched` without a graph, `frame` the graph's time by streams
and frames in microseconds, `× real` seconds of speech a second if nothing else ran.

Time: some 200 s with both voices, plus writing checkpoints, engine starts, and the peers (two minutes at most). --exact
and --codec take less than a minute each.
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

import torch
from support import random_talkers
from support.people import live
from support.sessions.engine import Engine, Options, Sound, chat_folder, parser, read_options, running, steps_of
from support.tts import codec, exact
from support.tts import peers as tts_peers
from support.tts.load import Callers, Crowd, Listeners, Prober, Voices, heard
from support.tts.mixed import Barged, recording, talk_over
from support.tts.tables import BARRED, Row, bars, summary

TICK_S = 0.001
JOIN_S, SETTLE_S = 1.0, 0.5
STEADY_S = 6.0
"""How long arrivals go on before they count: after the length of an utterance as many end as begin."""

ALONE_S = 1.2
"""Seconds of speech for a prober without other listeners, and for crowds: enough to measure the pace."""

BESIDE_CROWD = 32

WARM_UP_S = 1.5
CUT_IN_GAPS_S, MIXED_S = (1.0, 0.1), 10.0
TAIL_S = 0.5
"""How long to wait for the last utterances."""

MEMORY_SHARE = 0.5
"""Share of the free memory for a chat model's cache: the other voice's engine starts beside it."""

Figures = dict[str, Any]


class Stage:
    """An engine under measurement, with its rows and failures."""

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
        """Run a load, first without counting, then counting; keep the row."""
        settle_s, seconds = spans
        await live(tick, settle_s, TICK_S)
        self.engine.stats.clear()
        begin, engine_s, own_s = time.monotonic(), self.engine.cpu_s(), time.process_time()
        opened: list[int] = []

        def counted(now: float) -> None:
            tick(now)
            opened.append(voices.open)

        await live(counted, seconds, TICK_S)
        end = time.monotonic()
        steps = steps_of(self.engine.stats)
        engine_cpu = round((self.engine.cpu_s() - engine_s) / (end - begin), 2)
        own_cpu = round((time.process_time() - own_s) / (end - begin), 2)
        await live(tick, TAIL_S, TICK_S)
        found = heard(voices.utterances, begin, end)
        row = Row(
            self.size,
            load,
            streams,
            round(sum(opened) / len(opened), 1),
            found,
            steps,
            engine_cpu,
            own_cpu,
            barged=barged() if barged else None,
        )
        self.rows.append(row)
        print(json.dumps(asdict(row)), flush=True)

    async def clear(self, voices: Voices) -> None:
        """Cancel all utterances and wait until the engine has ended them."""
        voices.end()
        self.failures += voices.failures
        if not await self.engine.until(lambda: voices.open == 0, 5.0):
            raise RuntimeError(f"{voices.open} utterances do not end")


async def concurrent(stage: Stage, count: int, seconds: float) -> None:
    """Measure so many listeners."""
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
    """Measure so many arrivals a second."""
    voices = Voices(stage.engine, round(per_s))
    callers = Callers(voices, per_s, time.monotonic())
    await stage.measure(f"{per_s:g}/s", round(6 * per_s), voices, callers.tick, (STEADY_S, seconds))
    await stage.clear(voices)


async def crowded(stage: Stage, count: int, seconds: float, *, beside: int) -> None:
    """Measure so many people who ask at once, again and again, beside some listeners."""
    voices = Voices(stage.engine, 1000 + count)
    listeners = Listeners.join(voices, beside, time.monotonic(), JOIN_S)
    crowd = Crowd(voices, count, ALONE_S)

    def tick(now: float) -> None:
        listeners.tick(now)
        crowd.tick(now)

    await live(listeners.tick, JOIN_S + SETTLE_S, TICK_S)
    await stage.measure(f"{count} at once", count + beside, voices, tick, (0.0, seconds))
    await stage.clear(voices)


@dataclass(frozen=True, slots=True)
class Plan:
    """The loads for each voice."""

    sizes: Sequence[str]
    levels: Sequence[int]
    rates: Sequence[float]
    crowds: Sequence[int]
    arrivals_s: float
    mixed: str  # the size for the mixed load; "": none
    sessions: int  # of the mixed load
    mixed_s: tuple[float, float]  # how long, for each of CUT_IN_GAPS_S
    peers: Path | None
    speech: Path | None


async def perform(stage: Stage, options: Options, plan: Plan, sound: Sound) -> None:
    """Measure one voice under every load, unless its engine did not start; the stage keeps the rows."""
    if stage.failures:
        return
    try:
        await every_load(stage, options, plan, sound)
    except RuntimeError as error:  # the other size may do better
        stage.failures.append(str(error))


async def every_load(stage: Stage, options: Options, plan: Plan, sound: Sound) -> None:
    """Measure one voice under every load, after a warm-up."""
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
    """Measure the mixed load, with few and with many interruptions."""
    voices = Voices(stage.engine, 77)
    mixture = talk_over(stage.engine, voices, sound, plan.sessions, JOIN_S, small=small)
    await live(mixture.tick, JOIN_S + SETTLE_S, TICK_S)
    for gap_s, seconds in zip(CUT_IN_GAPS_S, plan.mixed_s, strict=True):
        mixture.begin(gap_s)
        load = f"mixed, {1 / gap_s:g} cut in a second"
        await stage.measure(load, plan.sessions, voices, mixture.tick, (0.0, seconds), mixture.barged)
    mixture.end()
    stage.failures += mixture.failures
    await stage.clear(voices)


async def measure(options: Options, plan: Plan, chat: Path, sound: Sound) -> tuple[list[Row], Figures]:
    """Measure every voice; return the rows, and the peers' figures and failures. All engines start at once."""
    with contextlib.ExitStack() as folders:
        checkpoints = {size: folders.enter_context(checkpoint(size, options)) for size in plan.sizes}
        speak: Callable[[], tts_peers.Figures] = dict
        if plan.peers is not None:
            speak = folders.enter_context(tts_peers.loading(checkpoints, plan.peers, dry=options.dry))
        stages = []
        for size, folder in checkpoints.items():
            beside: dict[str, object] = {} if size == plan.mixed else {"model": "", "asr_model": ""}
            told = replace(options, tts_model=str(folder))
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
    """Yield a folder with the voice: random weights, or the folder that the command line names."""
    if options.tts_model:
        yield Path(options.tts_model)
        return
    with tempfile.TemporaryDirectory() as name:
        begin = time.monotonic()
        random_talkers.write(size, Path(name), "cpu" if options.dry else "cuda")
        print(f"{size}: written in {time.monotonic() - begin:.1f} s", flush=True)
        yield Path(name)


async def opened(stage: Stage, engines: contextlib.AsyncExitStack) -> None:
    """Start a stage's engine; keep a failure to start as the stage's failure."""
    try:
        await engines.enter_async_context(running(stage.engine))
    except RuntimeError as error:  # the other size may do better
        stage.failures.append(str(error))


# ---- the command line


def _numbers(text: str) -> list[float]:
    return [float(one) for one in text.split(",") if one]


def read_plan(chosen: argparse.Namespace, *, dry: bool) -> Plan:
    """Return the plan that the command line asks for."""
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
    commands.add_argument("--crowds", default="64", help="people who ask at once (%(default)s)")
    commands.add_argument("--arrivals", type=float, default=12.0, help="seconds of arrivals that count (%(default)g)")
    commands.add_argument("--mixed", default=BARRED, help="the voice for the mixed load (%(default)s)")
    commands.add_argument("--peers", type=Path, help="the folder that holds the peers' packages")
    commands.add_argument("--speech", type=Path, help="a recording of speech; noise if not given")
    commands.add_argument("--exact", action="store_true", help="compare the GPU's frames with the CPU's instead")
    commands.add_argument("--codec", action="store_true", help="check and time the codec's decoder instead")
    chosen = commands.parse_args()
    if chosen.codec:
        codec.run(dry=chosen.dry_run)
    if chosen.exact and not exact.run(torch.device("cpu" if chosen.dry_run else "cuda")):
        raise SystemExit("frames differ")
    if chosen.codec or chosen.exact:
        return
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
