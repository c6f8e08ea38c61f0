"""Speech recognition on one GPU: clips through the encoder, decode steps of many streams, beside floors.

    mkdir -p build/gpu/voxlane
    for part in server engine codecs; do ln -sfn "$PWD/$part" build/gpu/voxlane/$part; done
    PYTHONPATH=build/gpu python3 benchmarks/gpu_listen.py
    PYTHONPATH=build/gpu python3 benchmarks/gpu_listen.py --qwen3-asr [--parts same,ours]
    python benchmarks/gpu_listen.py --dry-run              # on a CPU, with Triton's interpreter and tiny shapes

The first two lines are for a machine where the package is not installed. Parts:

    small    small random models of both kinds write the same on the CPU and on the GPU, in float32
    encode   clips of 3 s and 30 s, 1, 8 and 32 at once: the encoder's time on the device, and the host's for the step
    steps    a decode step of 1, 8, 32 and 128 streams that each attend to a clip of 30 s

Shapes are Whisper large-v3-turbo in bfloat16 and Moonshine tiny in float32, with random weights; the time does not
depend on them. Floors: operations over the rate of a large matrix product of the same type, bytes over the bandwidth of
a large copy, both measured in the same run. Figures go to gpu_listen.json in the folder $OUT, if that is set.

--qwen3-asr measures Qwen3-ASR instead, for 1 and 16 streams. A look is one transcription of the clip so far. Parts:

    same     a small random model in float32 writes the same on the CPU and on the GPU
    ours     the 0.6B shape in bfloat16: a first look at 3 s (clip, prompt, twelve tokens), the next look (twelve
             accepted drafts, one more token), and its parts: the step with the clip, a decode step

Time: no part begins after --seconds, 240 by default; with --qwen3-asr mostly the time to load the model.
"""

from __future__ import annotations

import gc
import itertools
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

if "--dry-run" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"
os.environ.setdefault("VOXLANE_NATIVE", "0")  # the CPU's share is a reference here; compiling it would take a minute

import torch
from support import random_models
from support.command_line import command_line
from support.gpu.report import Report
from support.listen import check as words
from support.listen import parts

from voxlane.engine.models.loading import Mode

BATCHES = (1, 8, 32)
STREAMS = (1, 8, 32, 128)
SECONDS = (3.0, 30.0)
SHAPES: dict[str, Mode] = {"whisper-large-v3-turbo": "bfloat16", "moonshine-tiny": "float32"}
DRY_SHAPES: dict[str, Mode] = {"moonshine-speck": "float32"}


@dataclass
class Session(Report):
    """What the parts share, and their figures."""

    device: torch.device
    dry: bool
    shapes: dict[str, Mode]
    bandwidth: float
    rates: dict[Mode, float]  # operations a second, by the type of weights
    benches: dict[str, parts.Bench] = field(default_factory=dict)

    def bench(self, shape: str) -> parts.Bench:
        """Return a shape's model and recogniser; the first call makes them."""
        if shape not in self.benches:
            mode, streams = self.shapes[shape], 3 if self.dry else max(STREAMS)
            bench = parts.make_bench(parts.make_model(shape, mode, self.device), self.device, streams=streams)
            self.benches[shape] = bench
            self.say(f"{shape} {mode}: steps captured in {bench.start_s:.1f} s")
        return self.benches[shape]

    def release(self) -> None:
        """Free the device's memory."""
        self.benches.clear()
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def attempt(self, name: str, work: Callable[[], None]) -> bool:
        """Do a piece of a part, and print how long it took."""
        begin = time.monotonic()
        good = super().attempt(name, work)
        print(f"---- {name} took {time.monotonic() - begin:.1f} s", flush=True)
        return good


def check(session: Session) -> None:
    """Compare the text from the CPU with the text from the device."""
    for line in words.small(session.device):
        session.say(line)


def encode(session: Session, shape: str) -> None:
    """Time the encoder for clips of several lengths and batches."""
    bench = session.bench(shape)
    for seconds, batch in itertools.product((0.2,) if session.dry else SECONDS, (1, 2) if session.dry else BATCHES):
        times = parts.encode_times(bench, seconds, batch, 1 if session.dry else 8)
        floor = parts.encode_operations(bench.model, seconds) * batch / session.rates[session.shapes[shape]]
        session.found[f"encode {shape} {seconds:g} {batch}"] = times.encoder
        session.say(
            f"encode {shape:22} {seconds:4g} s x {batch:3}  encoder {times.encoder * 1e3:8.3f} ms  "
            f"step on the device {times.device * 1e3:8.3f}, on the host {times.host * 1e3:8.3f} "
            f"({times.launch * 1e3:.3f} to launch)  floor {floor * 1e3:7.3f}  "
            f"encoder/floor {times.encoder / floor:5.2f}"
        )


def steps(session: Session, shape: str) -> None:
    """Time decode steps of many streams."""
    bench = session.bench(shape)
    for count in (1, 3) if session.dry else STREAMS:
        host, launch, device = parts.step_times(bench, count, 2 if session.dry else 40)
        floor = parts.step_bytes(bench, count) / session.bandwidth
        session.found[f"step {shape} {count}"] = device
        session.say(
            f"step {shape:22} {count:3} streams  graph {device * 1e3:7.3f} ms  host {host * 1e3:7.3f} "
            f"({launch * 1e3:.3f} to launch)  floor {floor * 1e3:7.3f}  graph/floor {device / floor:5.2f}"
        )


SHAPE_PARTS: dict[str, Callable[[Session, str], None]] = {"encode": encode, "steps": steps}
PARTS = ("small", *SHAPE_PARTS)


def run_parts(session: Session, names: list[str], deadline: float) -> None:
    """Run the named parts, shape by shape; begin none after the deadline."""
    if "small" in names:
        session.attempt("small", partial(check, session))
    for shape in session.shapes:
        for name in names:
            if name == "small":
                continue
            if time.monotonic() > deadline:
                session.say(f"{name} {shape}: no time left")
            else:
                session.attempt(f"{name} {shape}", partial(SHAPE_PARTS[name], session, shape))
        session.release()


def main() -> int:
    """Run the named parts, and print the table last."""
    parser = command_line(__doc__)
    parser.add_argument("--parts", default="", help=f"comma-separated; all of them if not given ({','.join(PARTS)})")
    parser.add_argument("--shapes", default="", help=f"of {', '.join(SHAPES)}; all of them if not given")
    parser.add_argument("--seconds", type=float, default=240.0, help="start no part after this long (%(default)g)")
    parser.add_argument("--dry-run", action="store_true", help="on a CPU, with tiny shapes")
    parser.add_argument("--qwen3-asr", action="store_true", help="measure Qwen3-ASR instead; it has parts of its own")
    parser.add_argument("--times", type=int, default=30, help="looks of Qwen3-ASR to take the median of (%(default)d)")
    options = parser.parse_args()
    if options.qwen3_asr:
        from support.listen import qwen3_asr  # transformers takes seconds to import

        names = options.parts.split(",") if options.parts else qwen3_asr.PARTS
        qwen3_asr.run(names, options.times, dry=options.dry_run)
        return 0
    if options.dry_run:
        parts.interpret_kernels()
    begin = time.monotonic()
    device = torch.device("cpu" if options.dry_run else "cuda")
    wanted = {name: SHAPES[name] for name in options.shapes.split(",")} if options.shapes else SHAPES
    shapes = DRY_SHAPES if options.dry_run else wanted
    rates = {mode: parts.matrix_rate(mode, device) for mode in set(shapes.values())}
    bandwidth = parts.copy_bandwidth(device)
    session = Session(device, options.dry_run, shapes, bandwidth, rates)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU, interpreted"
    told = ", ".join(f"{mode} products {rate / 1e12:.0f} TFLOP/s" for mode, rate in rates.items())
    session.say(f"{name}, torch {torch.__version__}, copy {bandwidth / 1e12:.2f} TB/s, {told}")
    run_parts(session, options.parts.split(",") if options.parts else list(PARTS), begin + options.seconds)
    session.close("gpu_listen")
    return 0


assert random_models.SHAPES.keys() >= SHAPES.keys() | DRY_SHAPES.keys()

if __name__ == "__main__":
    sys.exit(main())
