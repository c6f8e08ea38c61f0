"""LFM2-Audio on one GPU: conversations in real time, and whether its answers are the host's.

    PYTHONPATH=build/gpu python3 benchmarks/gpu_lfm2.py                   # everything; see gpu_engine.py for build/gpu
    PYTHONPATH=build/gpu python3 benchmarks/gpu_lfm2.py --parts talk --talkers 64 --seconds 40
    python benchmarks/gpu_lfm2.py --pretend                               # on a CPU, with small shapes

Weights are random, in the published shapes; times do not depend on them. Kernels are compiled first, in processes of
their own. Parts, in their order:

    check   the self-check of the kernels, of the experts' products and of a small LFM2-Audio, device against host
    talk    LFM2-Audio 1.5B in an engine without a server. People speak 1.5 to 4 s, hear 3 to 6 s of answer as it is
            played, interrupt three of ten answers, and go on, with the conversation so far. For 1, 16, 64 and 128 of
            them: from the last sound of a turn to the first packet of its answer (the text before it included); answers
            that ran dry; from an interruption to the moment from which nothing more of the answer comes
    exact   whole answers of a small engine, its graphs captured, beside the host's, in float32

The bar: the first packet within 60 ms of the end of the turn for 95 of 100 turns of 64 people. People and engine share
one thread, so the people's own work counts against the engine. Figures go to gpu_lfm2.json in the folder $OUT, if set.

Time: no part begins after --limit, 420 s by default. About five minutes in all.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

os.environ.setdefault("VOXLANE_NATIVE", "0")  # the CPU's share is a reference here; compiling it would take a minute

import numpy as np
import torch
from support import stand_ins

assert stand_ins.MISSING is not None  # imported first: voxlane needs the packages

from support.command_line import command_line  # noqa: E402
from support.figures import percentile  # noqa: E402
from support.gpu.report import Report  # noqa: E402
from support.gpu.workers import compiling_only, elsewhere, stop_compiling  # noqa: E402
from support.lfm2.engine import Dimensions, dialogue_engine, same_engines, whole_answers  # noqa: E402
from support.lfm2.shapes import MIXTURE, SMALL_MIXTURE  # noqa: E402
from support.lfm2.talk import TalkLoop  # noqa: E402

from voxlane.engine.models.decoder_config import DecoderConfig  # noqa: E402
from voxlane.engine.runners.cuda.selfcheck import agreements  # noqa: E402
from voxlane.engine.runners.cuda.trial import Trial  # noqa: E402

COMPILE_SECONDS = 75.0  # a kernel not compiled by then is compiled at its first use
EXACT_PEOPLE, EXACT_TOKENS = 4, 20
BAR_S, BAR_TALKERS = 0.060, 64
JOIN_S, SETTLE_S = 5.0, 3.0
LATEST_S = 0.3  # turns that end later than this before the end of a level are not counted
TRUE = Dimensions(rows=128, context_tokens=8192, cache_tokens=128 * 3072, step_tokens=1024)
SMALL = Dimensions(
    rows=4,
    context_tokens=256,
    cache_tokens=2048,
    step_tokens=64,
    block_tokens=16,
    step_budget_s=0.06,
    most_frames=48,
)


@dataclass
class Measurement(Report):
    """What the parts share, and their figures."""

    device: torch.device
    pretended: bool
    talkers: Sequence[int]
    seconds: float
    codec: torch.dtype

    def attempt(self, name: str, work: Callable[[], None]) -> bool:
        """Do a piece of a part, then free the device's memory."""
        try:
            return super().attempt(name, work)
        finally:
            gc.collect()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()


def compile_part(part: str) -> None:
    """Compile a part's kernels into the cache on disk, with the published widths and few layers."""
    device = torch.device("cuda")
    with compiling_only():
        if part == "talk":
            dialogue_engine("lfm2-audio-thin", device, TRUE, torch.float32, lambda line: None)
        elif part == "exact":
            same_engines("check", device, SMALL)
        else:
            list(agreements(big_trial(device)))


def compile_all(session: Measurement, names: Sequence[str]) -> None:
    """Compile the kernels of all parts at once, each part in a process."""
    begin = time.monotonic()
    try:
        for _ in elsewhere(compile_part, names, begin + COMPILE_SECONDS):
            pass
    except multiprocessing.TimeoutError:
        session.say("not all is compiled")
    finally:
        stop_compiling()
    session.say(f"compiled in {time.monotonic() - begin:.1f} s")


def check(session: Measurement) -> None:
    """Compare kernels with their references, and a small LFM2-Audio with the host's."""
    small = DecoderConfig.from_dict(SMALL_MIXTURE).spec
    wide = Trial(small, torch.float32, torch.float32, 64, session.device, dialogue=True)
    for found in agreements(wide if session.pretended else big_trial(session.device)):
        verdict = "right" if found.good else f"WRONG {found.failure}"
        session.say(f"check {found.name:32} off by {found.error:.1e} of {found.tolerance:.1e}  {verdict}")


def big_trial(device: torch.device) -> Trial:
    """Return what the kernels are checked on: the sizes of the mixture of experts, in bfloat16."""
    spec = DecoderConfig.from_dict(MIXTURE).spec
    return Trial(spec, torch.bfloat16, torch.bfloat16, 64, device, dialogue=True)


def exact(session: Measurement) -> None:
    """Compare whole answers of a small engine on the device, its graphs captured, with the host's, in float32."""
    host, device = same_engines("small" if session.pretended else "check", session.device, SMALL)
    wanted, made = (whole_answers(engine, EXACT_PEOPLE, EXACT_TOKENS) for engine in (host, device))
    same = sum(one.pieces == other.pieces and one.end == other.end for one, other in zip(wanted, made, strict=True))
    frames = sum(len(piece) > 1 for one in wanted for piece in one.pieces)
    alike = [(one.pcm, other.pcm) for one, other in zip(wanted, made, strict=True) if one.pieces == other.pieces]
    sounds = [[np.frombuffer(pcm, "<i2").astype(int) for pcm in pair] for pair in alike]
    off = max((int(np.abs(one - other).max(initial=0)) for one, other in sounds), default=-1)
    session.found["answers that differ"] = len(wanted) - same
    session.say(
        f"exact {same} of {len(wanted)} answers with {frames} frames are the host's; samples off by {off} at most"
    )


def talk(session: Measurement) -> None:
    """Let ever more people talk with LFM2-Audio."""
    shape, sizes = ("small", SMALL) if session.pretended else ("lfm2-audio-1.5b", TRUE)
    engine = dialogue_engine(shape, session.device, sizes, session.codec, session.say)
    loop = TalkLoop(engine.core, frame_samples=engine.frame_samples, rate=engine.rate)
    warm = 2.0 if session.pretended else 8.0
    loop.join(1, 0.1)
    loop.live(warm)
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        for count in session.talkers:
            level(session, loop, count)
    finally:
        gc.enable()


def level(session: Measurement, loop: TalkLoop, count: int) -> None:
    """Measure so many people."""
    join_s = 0.5 if session.pretended else JOIN_S
    loop.join(count, join_s)
    loop.live(join_s + (0.0 if session.pretended else SETTLE_S))
    loop.stats.clear()
    begin = time.monotonic()
    loop.live(session.seconds)
    end = time.monotonic()
    diaries = [talker.diary for talker in loop.talkers]
    turns = [turn for diary in diaries for turn in diary.first_packets]
    # A turn that still waits has waited at least this long.
    turns += [(at, end - at) for talker in loop.talkers if (at := talker.unanswered_s) is not None]
    first = [waited for at, waited in turns if begin <= at < end - LATEST_S]
    cuts = [waited for diary in diaries for at, waited in diary.interrupts if begin <= at < end - 0.2]
    dry = [silence for diary in diaries for at, silence in diary.underruns if begin <= at < end]
    held = sum(not any(begin <= at < end for at, _ in diary.underruns) for diary in diaries)
    faults = [what for diary in diaries for at, what in diary.faults if begin <= at < end]
    steps = max(1, sum(one.steps for one in loop.stats))
    busy_s = sum(one.busy_s for one in loop.stats)
    session.found |= {
        f"first {count} p95": percentile(first, 0.95) if first else float("inf"),
        f"dry {count}": len(dry),
    }
    session.say(
        f"talk {count:3} people  turns {len(first):4}  first packet p50/p95/max {_ms(first)} ms  "
        f"held {held} of {count}, {len(dry)} underruns of {1e3 * sum(dry):.0f} ms in all  "
        f"{len(cuts)} interruptions in force p50/p95/max {_ms(cuts)} ms  faults {len(faults)} {faults[:1]}  "
        f"steps {steps / (end - begin):.0f}/s of {1e3 * busy_s / steps:.2f} ms, "
        f"longest {1e3 * max((one.longest_step_s for one in loop.stats), default=0.0):.1f} ms, "
        f"rows {sum(one.rows for one in loop.stats) / steps:.1f}, busy {busy_s / (end - begin):.0%}"
    )


def _ms(values: Sequence[float]) -> str:
    return "/".join(f"{1e3 * percentile(values, share):.1f}" for share in (0.5, 0.95, 1.0)) if values else "-"


PARTS: dict[str, Callable[[Measurement], None]] = {
    "check": check,
    "talk": talk,
    "exact": exact,
}


def main() -> int:
    """Run the named parts, and print the table last."""
    parser = command_line(__doc__)
    parser.add_argument("--parts", default=",".join(PARTS), help="(%(default)s)")
    parser.add_argument("--talkers", default="1,16,64,128", help="people of each level (%(default)s)")
    parser.add_argument("--seconds", type=float, default=25.0, help="measured for each level (%(default)g)")
    parser.add_argument("--codec", default="float32", choices=("float32", "float16", "bfloat16"), help="(%(default)s)")
    parser.add_argument("--limit", type=float, default=420.0, help="start no part after this long (%(default)g)")
    parser.add_argument("--pretend", action="store_true", help="on a CPU, with small shapes")
    options = parser.parse_args()
    device = torch.device("cpu" if options.pretend else "cuda")
    torch.set_num_threads(1)  # as the engine's process does: waiting threads would take longer than small products
    talkers = [int(one) for one in ("1,2" if options.pretend else options.talkers).split(",")]
    seconds = min(options.seconds, 6.0) if options.pretend else options.seconds
    session = Measurement(device, options.pretend, talkers, seconds, getattr(torch, options.codec))
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    session.say(f"{name}, torch {torch.__version__}, codec {options.codec}")
    begin, names = time.monotonic(), options.parts.split(",")
    if device.type == "cuda":
        session.attempt("compiling", partial(compile_all, session, names))
    for part in names:
        if time.monotonic() - begin > options.limit:
            session.say(f"{part}: no time left")
            continue
        print(f"---- {part} begins after {time.monotonic() - begin:.0f} s", flush=True)
        session.attempt(part, partial(PARTS[part], session))
    found = session.found.get(f"first {BAR_TALKERS} p95")
    if found is not None:
        met = "yes" if found <= BAR_S else "no"
        session.say(f"bar: first packet of {BAR_TALKERS} within {BAR_S * 1e3:.0f} ms: {met}, {found * 1e3:.1f} ms")
    session.close("gpu_lfm2")
    return 0


if __name__ == "__main__":
    sys.exit(main())
