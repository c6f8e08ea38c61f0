"""The chat engine on one GPU: step times beside their floor, whole workloads, and transformers on the same weights.

    mkdir -p build/gpu/voxlane
    for part in server engine codecs; do ln -sfn "$PWD/$part" build/gpu/voxlane/$part; done
    PYTHONPATH=build/gpu python3 benchmarks/gpu_engine.py                   # everything
    PYTHONPATH=build/gpu python3 benchmarks/gpu_engine.py --parts steps,workload --shapes qwen3-0.6b
    python benchmarks/gpu_engine.py --dry-run              # on a CPU, with Triton's interpreter and tiny shapes

The first two lines are for a machine where the package is not installed. Parts:

    steps         decode steps of every shape, 1 to 256 rows of 512 tokens, beside their floor: the bytes of the weights
                  and of the rows' keys and values over the bandwidth of a large copy, measured in the same run
    workload      256 requests of 100 to 1024 random tokens in and out through the whole core, tokens a second
    transformers  128 requests through transformers' continuous batching and through ours, the same weights

gpu_kernels.py and gpu_parity.py check kernels and tokens. Weights are random; the time does not depend on them. The
kernels of every shape are compiled first, each shape in a process. Figures go to gpu_engine.json in the folder $OUT, if
that is set.

Time: no part begins after --seconds, 440 by default; a part takes up to a minute.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

if "--dry-run" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"
os.environ.setdefault("VOXLANE_NATIVE", "0")  # the CPU's share is a reference here; compiling it would take a minute

import torch
from support import random_models
from support.chat import interpreted, parts
from support.command_line import command_line
from support.gpu.report import Report
from support.gpu.workers import compiling_only, elsewhere, stop_compiling

from voxlane.engine.api import Policy
from voxlane.engine.models.decoder import Decoder
from voxlane.engine.models.loading import Mode

BATCHES = (1, 8, 32, 128, 256)
CONTEXT = 512
COMPILE_SECONDS = 60.0  # a kernel not compiled by then is compiled at its first use
BARS: dict[str, Callable[[dict[str, float]], bool]] = {
    "qwen3-0.6b batch 1 step <= 1.0 ms": lambda found: found.get("step qwen3-0.6b 1", 9.0) <= 1.0e-3,
    "workload of 256 >= 18,000 tok/s": lambda found: found.get("workload fcfs", 0.0) >= 18_000,
    "the same under deadline": lambda found: found.get("workload deadline", 0.0) >= 18_000,
    "batch 128 >= 5 x transformers": lambda found: found.get("ours 128", 0) >= 5 * found.get("transformers 128", 1e12),
}


@dataclass
class Session(Report):
    """What the parts share, and their figures."""

    device: torch.device
    shapes: list[str]
    dry: bool
    folder: Path
    deadline: float
    blocks: list[int]  # page sizes for the workload
    bandwidth: float = 1e9

    @property
    def batches(self) -> tuple[int, ...]:
        """The batches to measure."""
        return (1, 3) if self.dry else BATCHES

    def model(self, shape: str) -> Decoder:
        """Return a shape on the device."""
        return parts.make_model(random_models.SHAPES[shape], str(self.device), self.mode)

    def attempt(self, name: str, work: Callable[[], None]) -> bool:
        """Do a piece of a part, then free the device's memory."""
        try:
            return super().attempt(name, work)
        finally:
            clear()

    @property
    def mode(self) -> Mode:
        """The type of the weights."""
        return "float32" if self.dry else "bfloat16"

    @property
    def pages(self) -> torch.dtype:
        """The type of keys and values."""
        return torch.float32 if self.dry else torch.bfloat16


def clear() -> None:
    """Free the device's memory."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def compile_shape(shape: str) -> None:
    """Compile a shape's kernels into the cache on disk, steps with prompts included."""
    model = parts.make_model({**random_models.SHAPES[shape], "num_hidden_layers": 2}, "cuda")
    with compiling_only():
        parts.make_bench(model, max(BATCHES) * 64, max_batch=max(BATCHES), prompts=True)


def compile_all(session: Session) -> None:
    """Compile the kernels of all shapes at once."""
    begin = time.monotonic()
    try:
        for _ in elsewhere(compile_shape, session.shapes, begin + COMPILE_SECONDS):
            pass
    except multiprocessing.TimeoutError:
        session.say("not all is compiled")
    finally:
        stop_compiling()
    session.say(f"compiled in {time.monotonic() - begin:.1f} s")


def steps(session: Session) -> None:
    """Time decode steps of every shape and batch beside their floor."""
    for shape in session.shapes:
        session.attempt(f"step {shape}", partial(_steps, session, shape))


def _steps(session: Session, shape: str) -> None:
    longest = max(session.batches)
    bench = parts.make_bench(session.model(shape), longest * 1024, max_batch=longest, pages=session.pages)
    session.say(f"{shape}: graphs captured in {bench.start_s:.1f} s")
    for batch in session.batches:
        context = 20 if session.dry else CONTEXT
        host, device = parts.step_times(bench, batch, context, 2 if session.dry else 50)
        floor = parts.floor_s(bench, batch, context, session.bandwidth)
        session.found[f"step {shape} {batch}"] = host
        session.found[f"graph {shape} {batch}"] = device
        session.say(
            f"step {shape:13} batch {batch:3} x {context}  host {host * 1e3:7.3f} ms  graph {device * 1e3:7.3f} ms  "
            f"floor {floor * 1e3:6.3f} ms  graph/floor {device / floor:5.2f}  {batch / host:8.0f} tok/s"
        )


def workload(session: Session) -> None:
    """Run 256 requests of 100 to 1024 random tokens in and out through the core."""
    for block_tokens in session.blocks:
        session.attempt(f"workload block {block_tokens}", partial(_workload, session, block_tokens))


def _workload(session: Session, block_tokens: int) -> None:
    count, low, high = (3, 2, 5) if session.dry else (256, 100, 1024)
    model = session.model("speck" if session.dry else "qwen3-0.6b")
    tokens = count * (2 * high + 64)
    bench = parts.make_bench(
        model, tokens, max_batch=count, block_tokens=block_tokens, pages=session.pages, prompts=True
    )
    work = parts.random_work(count, low, high, model.vocab_size)
    policies: tuple[Policy, ...] = ("fcfs", "deadline")
    for policy in policies:
        parts.run_workload(bench, [(prompt, 4) for prompt, _ in work], policy, count)
        run = parts.run_workload(bench, work, policy, count)
        name = f"workload {policy}"
        session.found[name] = max(session.found.get(name, 0.0), run.rate)
        session.say(
            f"{name:18} block {block_tokens:3}  {run.rate:8.0f} tok/s  {run.seconds:6.2f} s in "
            f"{run.steps} steps: device {run.device_s:5.2f}, of it with prompts {run.prompt_s:5.2f}; "
            f"longest {run.longest_s * 1e3:5.1f} ms; host planning {run.plan_s:5.2f}; tokens {run.tokens:08x}"
        )


def transformers_rate(folder: Path, prompts: list[list[int]], outputs: int, device: torch.device) -> float:
    """Return the tokens a second of transformers' continuous batching, after a short run that is not counted."""
    from transformers import AutoModelForCausalLM, GenerationConfig

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="sdpa").to(device)
    rate = 0.0
    for count in (min(outputs, 8), outputs):
        config = GenerationConfig(max_new_tokens=count, do_sample=False, eos_token_id=-1, pad_token_id=0)
        begin = time.monotonic()
        results = model.generate_batch(inputs=prompts, generation_config=config, record_timestamps=True)
        seconds = time.monotonic() - begin
        stamps = [stamp for result in results.values() for stamp in (getattr(result, "timestamps", None) or [])]
        if stamps and max(stamps) > min(stamps):
            # From the first token on, so that its own warm-up does not count.
            seconds = max(stamps) - min(stamps)
        rate = sum(len(result.generated_tokens) for result in results.values()) / seconds
    return rate


def transformers(session: Session) -> None:
    """Run the same requests through transformers' continuous batching and through ours, with the same weight files."""
    from voxlane.engine.weights.safetensors import SafetensorsDirectory

    shape = "speck" if session.dry else "qwen3-0.6b"
    folder = session.folder / shape
    begin = time.monotonic()
    random_models.write(random_models.SHAPES[shape], folder, str(session.device))
    session.say(f"{shape}: written in {time.monotonic() - begin:.1f} s")
    batches = (2,) if session.dry else (128,)
    inputs, outputs = (8, 4) if session.dry else (256, 128)
    vocabulary = random_models.SHAPES[shape]["vocab_size"]
    assert isinstance(vocabulary, int)
    work = parts.random_work(max(batches), inputs, inputs, vocabulary)
    begin = time.monotonic()
    model = parts.load_model(SafetensorsDirectory(folder), str(session.device))
    session.say(f"{shape}: loaded in {time.monotonic() - begin:.1f} s")
    bench = parts.make_bench(model, max(batches) * 512, max_batch=max(batches), pages=session.pages)
    for batch in batches:
        same = [(prompt, outputs) for prompt, _ in work[:batch]]
        parts.run_workload(bench, same, "fcfs", batch)
        run = parts.run_workload(bench, same, "fcfs", batch)
        session.found[f"ours {batch}"] = run.rate
        session.say(f"ours         batch {batch:3}, {inputs} in, {outputs} out  {run.rate:8.0f} tok/s")
    del bench, model
    clear()
    for batch in batches:
        rate = transformers_rate(folder, [prompt for prompt, _ in work[:batch]], outputs, session.device)
        session.found[f"transformers {batch}"] = rate
        session.say(f"transformers batch {batch:3}, {inputs} in, {outputs} out  {rate:8.0f} tok/s")
        clear()


PARTS: dict[str, Callable[[Session], None]] = {
    "steps": steps,
    "workload": workload,
    "transformers": transformers,
}


def run_parts(session: Session, names: list[str]) -> None:
    """Run parts one after the other; one that fails does not stop the others."""
    for name in names:
        if time.monotonic() > session.deadline:
            session.say(f"{name}: no time left")
            continue
        begin = time.monotonic()
        print(f"---- {name}", flush=True)
        session.attempt(name, partial(PARTS[name], session))
        print(f"---- {name} took {time.monotonic() - begin:.1f} s", flush=True)


def main() -> int:
    """Run the named parts, and print the table last."""
    parser = command_line(__doc__)
    parser.add_argument("--parts", default=",".join(PARTS), help="(%(default)s)")
    parser.add_argument("--shapes", default="qwen3-0.6b,llama-3.2-1b,qwen3-1.7b,qwen3-8b", help="(%(default)s)")
    parser.add_argument("--blocks", default="16,64", help="tokens in a KV block, for the workload (%(default)s)")
    parser.add_argument("--seconds", type=float, default=440.0, help="start no part after this long (%(default)g)")
    parser.add_argument("--dry-run", action="store_true", help="on a CPU, with tiny shapes")
    options = parser.parse_args()
    if options.dry_run:
        interpreted.interpret_kernels()
    device = torch.device("cpu" if options.dry_run else "cuda")
    shapes = ["speck"] if options.dry_run else options.shapes.split(",")
    deadline = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory() as folder:
        blocks = [int(size) for size in options.blocks.split(",")]
        session = Session(device, shapes, options.dry_run, Path(folder), deadline, blocks)
        session.bandwidth = parts.copy_bandwidth(device)
        name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU, interpreted"
        session.say(f"{name}, torch {torch.__version__}, copy {session.bandwidth / 1e12:.2f} TB/s")
        names = options.parts.split(",")
        if device.type == "cuda" and {"steps", "workload"} & set(names):
            session.attempt("compiling", partial(compile_all, session))
        run_parts(session, names)
    for bar, met in BARS.items():
        session.say(f"bar: {bar}: {'yes' if met(session.found) else 'no'}")
    session.close("gpu_engine")
    return 0


if __name__ == "__main__":
    sys.exit(main())
