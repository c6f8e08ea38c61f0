"""Qwen3-TTS, a voice that is a language model over codec frames, on one GPU: how soon it speaks, and for how many.

    PYTHONPATH=build/gpu python3 benchmarks/gpu_tts.py                      # see gpu_engine.py for build/gpu
    PYTHONPATH=build/gpu python3 benchmarks/gpu_tts.py --sizes 1.7b --levels 64 --peers FOLDER
    PYTHONPATH=build/gpu python3 benchmarks/gpu_tts.py --exact --codec      # these two instead
    python benchmarks/gpu_tts.py --dry-run                                  # on a CPU, with a tiny voice: a minute

Weights are random and have the true shapes, so the voice speaks noise without an end: a listener hangs up after 4 to 8
seconds. The engine is the server's child process. This process takes all times, at the other end of the socket. An
utterance is `Submit` (high), two sentences of text, `EndInput`. Of N listeners N - 1 hear one utterance after another,
and one asks for 0.4 s of speech (1.2 s if alone) again and again. The engine is ahead of the listener: a request ends
when all its audio has come, before it has been heard.

Columns:

    open        requests that have not ended, on average
    first       milliseconds from `Submit` until the first packet, p50 / p95 / p99
    frame       milliseconds from a packet to the next, divided by its frames (80 ms of speech), p50 / p95 / p99 of the
                frames in the second of speech after the first packet: the engine lets listeners who are ahead wait
    × real      seconds of speech a second in that second: median, and of the slowest utterance
    underruns   packets that came when a listener, who plays from the first packet on, had nothing left to play, and the
                number of utterances with such a packet
    left        milliseconds of sound that listeners had left when a packet came: half of the packets found as much or
                more, then 95, then 99 in a hundred
    step        milliseconds of the engine's steps: mean, longest

The peers (--peers) speak one after the other from the same checkpoints, while the engines are idle.

--exact compares the GPU's frames and samples with the CPU's: a small talker, eight different requests, float32.
`launched` compares the device without CUDA graphs, `graphs` with them, `alone` each request by itself with the eight
together. Codes are sampled: where two are equally likely but for rounding, another may be chosen, and other frames
follow. The first such place of each request is printed; with these seeds there is none.

--codec checks the codec's decoder at its true shape in float16, the type that serves: noise against float32 on the CPU
in decibels below its loudness, and the graph against the launched calls. Then it times many streams: `graph` is one
call for all streams as a CUDA graph in milliseconds, `launched` without a graph, `frame` the graph's time by streams
and frames in microseconds, `× real` seconds of speech a second if nothing else ran.

Time: some 90 s with both voices, plus writing checkpoints, engine starts, and the peers (two minutes at most). --exact
and --codec take less than a minute each.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from support import random_talkers
from support.people import live
from support.sessions.engine import Engine, Options, parser, read_options, running, steps_of
from support.tts import codec, exact
from support.tts import peers as tts_peers
from support.tts.load import Listeners, Prober, Voices, heard
from support.tts.tables import Row, bars, summary

TICK_S = 0.001
JOIN_S, SETTLE_S = 1.0, 0.5
ALONE_S = 1.2
"""Seconds of speech for a prober without other listeners: enough to measure the pace."""

WARM_UP_S = 1.5
TAIL_S = 0.5
"""How long to wait for the last utterances."""

MEMORY_SHARE = 0.5
"""Share of the free memory for a voice's cache: the other voice's engine starts beside it."""

Figures = dict[str, Any]


class Stage:
    """An engine under measurement, with its rows and failures."""

    def __init__(self, engine: Engine, size: str) -> None:
        self.engine = engine
        self.size = size
        self.rows: list[Row] = []
        self.failures: list[str] = []

    async def measure(self, count: int, seconds: float) -> None:
        """Let so many people listen, first without counting, then counting; keep the row."""
        voices = Voices(self.engine, count)
        listeners = Listeners.join(voices, count - 1, time.monotonic(), JOIN_S)
        prober = Prober(voices) if count > 1 else Prober(voices, ALONE_S)
        opened: list[int] = []

        def tick(now: float) -> None:
            listeners.tick(now)
            prober.tick(now)
            opened.append(voices.open)

        await live(tick, JOIN_S + SETTLE_S if count > 1 else SETTLE_S, TICK_S)
        self.engine.stats.clear()
        opened.clear()
        begin, engine_s, own_s = time.monotonic(), self.engine.cpu_s(), time.process_time()
        await live(tick, seconds, TICK_S)
        end, mean = time.monotonic(), round(sum(opened) / len(opened), 1)
        steps = steps_of(self.engine.stats)
        engine_cpu = round((self.engine.cpu_s() - engine_s) / (end - begin), 2)
        own_cpu = round((time.process_time() - own_s) / (end - begin), 2)
        await live(tick, TAIL_S, TICK_S)
        found = heard(voices.utterances, begin, end)
        self.rows.append(Row(self.size, count, mean, found, steps, engine_cpu, own_cpu))
        print(json.dumps(asdict(self.rows[-1])), flush=True)
        voices.end()
        self.failures += voices.failures
        if not await self.engine.until(lambda: voices.open == 0, 5.0):
            raise RuntimeError(f"{voices.open} utterances do not end")

    async def perform(self, levels: Sequence[int], seconds: float) -> None:
        """Measure every number of listeners, after a warm-up, unless the engine did not start; keep a failure."""
        if self.failures:
            return
        try:
            await self.measure(min(8, max(levels)), WARM_UP_S)
            gc.collect()
            gc.freeze()
            self.rows.clear()
            for level in levels:
                await self.measure(level, seconds)
        except RuntimeError as error:  # the other size may do better
            self.failures.append(str(error))


async def measure(
    options: Options, sizes: Sequence[str], levels: Sequence[int], packages: Path | None
) -> tuple[list[Row], Figures]:
    """Measure every voice; return the rows, and the peers' figures and failures. All engines start at once."""
    with contextlib.ExitStack() as folders:
        checkpoints = {size: folders.enter_context(checkpoint(size, options)) for size in sizes}
        speak: Callable[[], tts_peers.Figures] = dict
        if packages is not None:
            speak = folders.enter_context(tts_peers.loading(checkpoints, packages, dry=options.dry))
        stages = []
        for size, folder in checkpoints.items():
            told = replace(options, tts_model=str(folder))
            engine = told.engine("deadline", Path(), gpu_memory_share=MEMORY_SHARE, model="", asr_model="")
            stages.append(Stage(engine, size))
        async with contextlib.AsyncExitStack() as engines:
            await asyncio.gather(*(opened(stage, engines) for stage in stages))
            peers = await asyncio.to_thread(speak)
            for size, figures in peers.items():
                print(json.dumps({"size": size, "peers": [asdict(one) for one in figures]}), flush=True)
            for stage in stages:
                await stage.perform(levels, options.seconds)
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


def main() -> None:
    """Measure and print the tables and the bars."""
    commands = parser(__doc__, 5.0, policies=False)
    commands.set_defaults(tts_model="")
    commands.add_argument("--sizes", default="1.7b,0.6b", help="(%(default)s)")
    commands.add_argument("--levels", default="1,8,16,32,64,128", help="listeners (%(default)s)")
    commands.add_argument("--peers", type=Path, help="the folder that holds the peers' packages")
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
    sizes = ["tiny"] if options.dry else chosen.sizes.split(",")
    levels = (1, 3) if options.dry else [int(level) for level in chosen.levels.split(",")]
    random.seed(1)
    rows, other = asyncio.run(measure(options, sizes, levels, chosen.peers))
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
