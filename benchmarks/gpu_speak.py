"""The default voice on a GPU: compared with the CPU's, and the time of a clause, alone and in batches.

First it compares the words' times and the samples on the device with the same code on the CPU, and a clause alone with
the same clause in a batch. Then it speaks a short clause, such as a reply begins with, and a long one, in batches. Each
batch has different seeds and is one step of the engine. Columns:

  step     milliseconds from the launch until every clause is cut and its words are timed: the time of the engine's step
  launch   the host's part of it, before the host is free for other work
  device   the device's part, by its own events
  clause   step divided by the clauses in it
  × real   seconds of speech made in a second

ONNX Runtime on one core of the same machine, with hibari's own signal processing, speaks the same clauses one by one.

  python benchmarks/gpu_speak.py               on the GPU
  python benchmarks/gpu_speak.py --dry-run     a few clauses on the CPU, to try the script

Time: about 20 s on the GPU.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from support.command_line import command_line
from support.gpu.report import Report, write_out

from voxlane.engine.memory.blocks import BlockPool, BlockTable
from voxlane.engine.models.hibari.model import Hibari
from voxlane.engine.models.synthesis import SynthesisedClause
from voxlane.engine.runners.clause_tts import ClausePayload
from voxlane.engine.runners.cuda.clause_tts import CudaClauseTTS
from voxlane.engine.schedule.plan import ModelBatch, Row
from voxlane.engine.schedule.request import Request

SHORT = "Sure, I can help with that."
LONG = (
    "The library opens at nine in the morning and closes at six in the evening, except on Sundays, when it stays "
    "closed, and nobody answers the telephone."
)
CHECKED = (SHORT, LONG, "Yes.", "Turn left after the second bridge,", "and it costs $12.50 if you come before 10:30.")
BATCHES = (1, 8, 32)


def load_of(clauses: Sequence[ClausePayload]) -> ModelBatch:
    """Return a step that says clauses."""
    table = BlockTable(BlockPool(0, 1, prefix_cache=False))
    rows = [
        Row(Request(id=str(n), task="tts", tokens=[], prompt_tokens=0, table=table, model="tts", payload=one), 0, 1)
        for n, one in enumerate(clauses)
    ]
    return ModelBatch(rows)


def say(voice: CudaClauseTTS, clauses: Sequence[ClausePayload]) -> list[SynthesisedClause]:
    """Return what one step says."""
    return [outcome.speech for outcome in voice.collect(voice.launch(load_of(clauses)))]


def difference(one: SynthesisedClause, other: SynthesisedClause) -> str:
    """Return the difference of two recordings of a clause as text."""
    if one.words != other.words or len(one.samples) != len(other.samples):
        return "OTHER WORDS' TIMES"
    error = np.abs(one.samples - other.samples)
    share = np.linalg.norm(one.samples - other.samples) / np.linalg.norm(other.samples)
    return f"most {error.max():.1e} of full scale, {share:.1e} of the sound"


def check(model: Hibari, voice: CudaClauseTTS, cpu: CudaClauseTTS, say_line: Callable[[str], None]) -> None:
    """Compare the device with the CPU, and a clause alone with one in a batch."""
    clauses = [
        ClausePayload(model.prepare(text), model.default_voice, speed, seed)
        for seed, (text, speed) in enumerate(itertools.product(CHECKED, (1.0, 0.7)))
    ]
    together = say(voice, clauses)
    for number, clause in enumerate(clauses):
        alone = say(voice, [clause])[0]
        here = say(cpu, [clause])[0]
        say_line(
            f"check {clause.prepared.phonemes:4} phonemes at {clause.speed}: CPU {difference(alone, here)}; "
            f"together {difference(together[number], alone)}"
        )


def measure(model: Hibari, voice: CudaClauseTTS, text: str, batch: int, times: int) -> dict[str, float]:
    """Return medians of a step with `batch` clauses, in milliseconds."""
    prepared = model.prepare(text)
    load = load_of([ClausePayload(prepared, model.default_voice, 1.0, seed) for seed in range(batch)])
    steps, launches, devices, spoken = [], [], [], 0
    for _ in range(times + 2):
        begin = time.perf_counter()
        ticket = voice.launch(load)
        launched = time.perf_counter()
        outcomes = voice.collect(ticket)
        steps.append(time.perf_counter() - begin)
        launches.append(launched - begin)
        start_s, stop_s = voice.phases["device"]
        devices.append(stop_s - start_s)
        spoken = sum(len(outcome.speech.samples) for outcome in outcomes)
    step, launch, device = (statistics.median(part[2:]) for part in (steps, launches, devices))
    return {
        "phonemes": prepared.phonemes,
        "batch": batch,
        "step_ms": step * 1e3,
        "launch_ms": launch * 1e3,
        "device_ms": device * 1e3,
        "clause_ms": step * 1e3 / batch,
        "real": spoken / model.sample_rate / step,
    }


def measure_host(model: Hibari, text: str, times: int) -> dict[str, float]:
    """Return the same for ONNX Runtime, one clause at a time."""
    prepared, spans, spoken = model.prepare(text), [], 0
    for seed in range(times + 1):
        begin = time.perf_counter()
        spoken = len(model.synthesise(prepared, seed=seed).samples)
        spans.append(time.perf_counter() - begin)
    step = statistics.median(spans[1:])
    return {"phonemes": prepared.phonemes, "clause_ms": step * 1e3, "real": spoken / model.sample_rate / step}


def main() -> int:
    """Check and measure; print the table last."""
    parser = command_line(__doc__)
    parser.add_argument("--times", type=int, default=20, help="steps to take the median of (%(default)d)")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, a few clauses")
    options = parser.parse_args()
    dry, report = options.dry_run, Report()
    device = torch.device("cpu" if dry else "cuda")
    batches, times = ((1, 2), 1) if dry else (BATCHES, options.times)
    torch.set_num_threads(1)
    model = Hibari(threads=1)
    model.warm_up_reading()
    begin = time.perf_counter()
    voice, cpu = CudaClauseTTS(model, device), CudaClauseTTS(model, torch.device("cpu"))
    if not dry:
        voice.capture()
        reserved = torch.cuda.memory_reserved() / 2**20
        report.say(f"{torch.cuda.get_device_name()}: captured {time.perf_counter() - begin:.1f} s, {reserved:.0f} MiB")
    check(model, voice, cpu, report.say)
    report.say(f"{'clause':28}{'batch':>6}{'step':>9}{'launch':>9}{'device':>9}{'clause':>9}{'× real':>9}")
    found = []
    for name, text in (("short", SHORT), ("long", LONG)):
        for batch in batches:
            one = measure(model, voice, text, batch, times)
            found.append(one)
            figures = "".join(f"{one[key]:9.2f}" for key in ("step_ms", "launch_ms", "device_ms", "clause_ms"))
            what = f"{name}, {one['phonemes']} phonemes"
            report.say(f"{what:28}{batch:6}{figures}{one['real']:9.0f}")
        host = measure_host(model, text, times)
        found.append(host)
        report.say(f"{'  ONNX Runtime, one core':28}{1:6}{'':27}{host['clause_ms']:9.2f}{host['real']:9.0f}")
    write_out("gpu_speak", {"lines": report.table, "found": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
