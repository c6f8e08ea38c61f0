"""Compare a GPU with the CPU: a chat model's tokens, what small recognisers write, the default voice's samples.

    python benchmarks/gpu_parity.py --model smollm2-135m-instruct
    python benchmarks/gpu_parity.py --dry-run                             # on the CPU, a few questions

`greedy` asks twenty questions of the CPU in float32 (in another process, while the GPU's kernels are compiled), of the
GPU in float32 (every fused kernel on, TF32 off) and of the GPU in bfloat16. Where bfloat16 chooses another token, it
prints how far apart the two tokens' logits are in float32, beside the usual error of bfloat16's logits.
`batches` asks ten of the questions alone and in batches with 1, 7, 31 and 127 others, of the ten and of other prompts.
It counts equal tokens and compares log-probabilities bit by bit. The reference is our own CPU code, which the tests
compare with transformers.
`listen` lets small random models of both kinds of recogniser transcribe noise, in float32: words and log-probabilities.
`speak` says clauses with the default voice: the words' times, the samples, and a clause alone beside it in a batch.
Figures go to gpu_parity.json in the folder $OUT, if that is set.

Time: kernels are compiled for 35 s at most; after that the CPU's answers take longest.
"""

from __future__ import annotations

import itertools
import multiprocessing
import random
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from support.chat import parts
from support.chat.parts import Answer, ask
from support.command_line import command_line
from support.gpu.clock import FAILURES
from support.gpu.report import write_out
from support.gpu.workers import compiling_only, elsewhere, stop_compiling
from support.parity import listening, speaking

from voxlane.engine.api import ChatMessage
from voxlane.engine.build.assemble import use_threads
from voxlane.engine.kernels.attention.pages import Layout
from voxlane.engine.memory.pages import KVCache
from voxlane.engine.models.decoder import Decoder
from voxlane.engine.models.loading import Mode
from voxlane.engine.text.tokenizer import Tokenizer
from voxlane.engine.weights import store
from voxlane.engine.weights.files import open_weights

QUESTIONS = (
    "Why is the sky blue?",
    "Write a haiku about rain.",
    "What is the capital of Australia?",
    "Explain how a bicycle stays upright.",
    "Give me a recipe for pancakes.",
    "Translate 'good morning, my friend' into French.",
    "List five animals that live in the desert.",
    "What is 17 times 23?",
    "Tell me a short story about a lighthouse keeper.",
    "How do vaccines work?",
    "Write a Python function that reverses a string.",
    "What should I wear when it is cold and windy?",
    "Who wrote Romeo and Juliet, and when?",
    "Describe the taste of a lemon to someone who has never had one.",
    "What are the benefits of sleep?",
    "Make a shopping list for a picnic with four people.",
    "How far away is the moon?",
    "Summarise the water cycle in three sentences.",
    "Give me advice for a job interview.",
    "What is the difference between a frog and a toad?",
)
OUTPUTS = 64
COMPILE_SECONDS = 35.0  # a kernel not compiled by then is compiled at its first use
BATCHES = (1, 2, 8, 32, 128)
IN_COMPANY = 10  # questions of the part `batches`


@dataclass(slots=True)
class Session:
    """What the parts share: a model's file, its questions as tokens, a device, and the table so far."""

    path: Path
    device: torch.device
    dry: bool
    prompts: list[list[int]] = field(default_factory=list)
    table: dict[str, Any] = field(default_factory=dict)

    @property
    def outputs(self) -> int:
        """Tokens of each answer."""
        return 6 if self.dry else OUTPUTS

    @property
    def batches(self) -> tuple[int, ...]:
        """Batch sizes of a question, itself included."""
        return (1, 2, 4) if self.dry else BATCHES

    def model(self, where: str | torch.device, mode: Mode) -> Decoder:
        """Load the model."""
        return Decoder.load(open_weights(self.path), mode, device=where, context_tokens=1024)

    def bench(self, where: str | torch.device, mode: Mode, max_batch: int) -> parts.Bench:
        """Return the model with a runner and a cache of this type."""
        pages = torch.float32 if mode == "float32" else torch.bfloat16
        return parts.make_bench(self.model(where, mode), max_batch * 512, max_batch=max_batch, pages=pages)


def logits_after(model: Decoder, tokens: list[int], pages: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return the logits [vocabulary] after a sequence, on the CPU."""
    count, size = len(tokens), 64
    blocks = -(-count // size)
    cache = KVCache(model.spec.pages, blocks, size, pages, device)
    index = torch.arange(count, dtype=torch.int32, device=device)
    ends = torch.tensor([0, count], dtype=torch.int32, device=device)
    table = torch.arange(blocks, dtype=torch.int32, device=device)[None]
    layout = Layout(index, index, ends, ends[1:].contiguous(), table, max_query=count)
    with torch.inference_mode():
        hidden = model.forward(torch.tensor(tokens, device=device), layout, cache.pages)
        return model.logits(hidden[-1:])[0].float().cpu()


def first_difference(one: list[int], other: list[int]) -> int | None:
    """Return the first position where two answers differ."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), None)


def answers_of_cpu(session: Session) -> tuple[list[Answer], float]:
    """Return the CPU's answers in float32, and the seconds they took."""
    use_threads(0)
    begin = time.monotonic()
    bench = session.bench("cpu", "float32", len(session.prompts))
    return ask(bench, session.prompts, session.outputs), time.monotonic() - begin


def compile_all(session: Session, names: list[str]) -> None:
    """Compile the kernels of both types and all batches into the cache on disk, each in a process."""
    begin = time.monotonic()
    most = {"greedy": len(session.prompts), "batches": max(session.batches)}
    modes: tuple[Mode, ...] = ("bfloat16", "float32")
    kinds = list(itertools.product([session], modes, [most[name] for name in names if name in most]))
    try:
        for _ in elsewhere(compile_kind, kinds, begin + COMPILE_SECONDS):
            pass
    except (multiprocessing.TimeoutError, *FAILURES) as error:
        print(f"not all is compiled: {type(error).__name__} {str(error)[:200]}", flush=True)
    finally:
        stop_compiling()
    print(f"compiled in {time.monotonic() - begin:.1f} s", flush=True)


def compile_kind(kind: tuple[Session, Mode, int]) -> None:
    """Compile the kernels of a type and a batch, prompts included."""
    session, mode, max_batch = kind
    with compiling_only():
        session.bench(session.device, mode, max_batch).runner.rehearse(parts.STEP_TOKENS)


def greedy(session: Session) -> None:
    """Compare the CPU's float32 with the GPU's float32 and bfloat16."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        coming = pool.submit(answers_of_cpu, session)
        wide = session.bench(session.device, "float32", len(session.prompts))
        reference, seconds = coming.result()
    print(f"the CPU's answers took {seconds:.1f} s", flush=True)
    for name, chunk in (("whole prompts", 1 << 30), ("prompts in chunks of 13", 13)):
        answers = ask(wide, session.prompts, session.outputs, chunk)
        same = sum(a.tokens == b.tokens for a, b in zip(answers, reference, strict=True))
        off = max(_largest(a.logprobs, b.logprobs) for a, b in zip(answers, reference, strict=True))
        session.table[f"float32, {name}"] = {"same": same, "of": len(reference), "logprobs_within": off}
        print(f"float32, {name}: {same} of {len(reference)} answers of {session.outputs} tokens are the CPU's, token "
              f"for token; log-probabilities within {off:.1e}", flush=True)  # fmt: skip
    if not session.dry:
        narrow(session, reference, wide.model)


def narrow(session: Session, reference: list[Answer], wide: Decoder) -> None:
    """Print, where bfloat16 differs, the gap of the two logits in float32 beside bfloat16's usual error."""
    bench = session.bench(session.device, "bfloat16", len(session.prompts))
    answers = ask(bench, session.prompts, session.outputs)
    rows = []
    for number, (prompt, mine, theirs) in enumerate(zip(session.prompts, answers, reference, strict=True)):
        at = first_difference(mine.tokens, theirs.tokens)
        if at is None:
            continue
        shared = prompt + theirs.tokens[:at]
        exact = logits_after(wide, shared, torch.float32, session.device)
        rounded = logits_after(bench.model, shared, torch.bfloat16, session.device)
        gap = float(exact[theirs.tokens[at]] - exact[mine.tokens[at]])
        error = float((rounded - exact).square().mean().sqrt())
        rank = int((exact > exact[mine.tokens[at]]).sum()) + 1
        rows.append({"question": number, "token": at, "gap": gap, "bfloat16_error": error, "rank": rank})
        print(f"bfloat16, question {number:2}: parts at token {at:2}, logits {gap:.3f} apart, the other choice ranks "
              f"{rank}; bfloat16 is off by {error:.3f} (rms over the vocabulary)", flush=True)  # fmt: skip
    same = len(reference) - len(rows)
    session.table["bfloat16"] = {"same": same, "of": len(reference), "parted": rows}
    print(f"bfloat16: {same} of {len(reference)} answers are the CPU's; where they part, the largest gap is "
          f"{max((row['gap'] for row in rows), default=0.0):.3f}", flush=True)  # fmt: skip


def batches(session: Session) -> None:
    """Compare the tokens and bits of each question alone and in batches."""
    vocabulary = 1000
    source = random.Random(11)
    company = [
        [source.randrange(vocabulary) for _ in range(source.randint(3, 300))] for _ in range(max(session.batches))
    ]
    modes: tuple[Mode, ...] = ("float32",) if session.dry else ("float32", "bfloat16")
    for mode in modes:
        bench = session.bench(session.device, mode, max(session.batches))
        questions = session.prompts[:IN_COMPANY]
        alone = [ask(bench, [prompt], session.outputs)[0] for prompt in questions]
        for size in session.batches:
            answers = []
            for first in range(0, len(questions), size):
                asked = questions[first : first + size]
                strangers = company[: size - len(asked)]
                answers += ask(bench, [*asked, *strangers], session.outputs)[: len(asked)]
            same = sum(a.tokens == b.tokens for a, b in zip(answers, alone, strict=True))
            bits = sum(a == b for a, b in zip(answers, alone, strict=True))
            off = max(_largest(a.logprobs, b.logprobs, first_difference(a.tokens, b.tokens))
                      for a, b in zip(answers, alone, strict=True))  # fmt: skip
            session.table[f"{mode}, batch {size}"] = {"same": same, "bits": bits, "logprobs_within": off}
            print(f"{mode:8}, batch {size:3}: {same} of {len(alone)} answers have the same tokens as alone, {bits} the "
                  f"same bits; log-probabilities within {off:.1e}", flush=True)  # fmt: skip


def _largest(one: list[float], other: list[float], stop: int | None = None) -> float:
    return max((abs(a - b) for a, b in zip(one[:stop], other[:stop], strict=True)), default=0.0)


def listen(session: Session) -> None:
    """Compare what small recognisers write."""
    tell(session, "listen", listening.compare(session.device))


def speak(session: Session) -> None:
    """Compare what the default voice says."""
    tell(session, "speak", speaking.compare(session.device))


def tell(session: Session, name: str, lines: Iterator[str]) -> None:
    """Print lines as they come, and keep them in the table."""
    session.table[name] = []
    for line in lines:
        session.table[name].append(line)
        print(f"{name}: {line}", flush=True)


PARTS: dict[str, Callable[[Session], None]] = {"greedy": greedy, "batches": batches, "listen": listen, "speak": speak}


def main() -> int:
    """Run the named parts; a failure does not stop the next part."""
    parser = command_line(__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct", help="a name from `voxlane models list`, or a file")
    parser.add_argument("--parts", default=",".join(PARTS), help="(%(default)s)")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, a few questions")
    options = parser.parse_args()
    device = torch.device("cpu" if options.dry_run else "cuda")
    session = Session(store.resolve(options.model), device, options.dry_run)
    tokenizer = Tokenizer.from_weights(open_weights(session.path))
    questions = QUESTIONS[:3] if options.dry_run else QUESTIONS
    session.prompts = [tokenizer.encode_chat([ChatMessage("user", question)]) for question in questions]
    names = options.parts.split(",")
    if not session.dry:
        compile_all(session, names)
    for name in names:
        begin = time.monotonic()
        PARTS[name](session)
        print(f"---- {name} took {time.monotonic() - begin:.1f} s", flush=True)
    write_out("gpu_parity", session.table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
