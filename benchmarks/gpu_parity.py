"""Does a GPU say the same as the CPU, and the same in company as alone? Real weights, greedy, token for token.

    python benchmarks/gpu_parity.py --model smollm2-135m-instruct

`greedy` asks twenty questions of the CPU in float32, of the GPU in float32 (every fused kernel on, TF32 off) and of the
GPU in bfloat16; where bfloat16 goes another way, it tells how far apart the two tokens' logits were there in float32,
beside how far bfloat16's logits are off in general. `batches` asks ten of them alone and among 1, 7, 31 and 127
others, counts equal tokens and compares log-probabilities bit by bit.

--dry-run tries all of it on the CPU, short.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gpu_parts as parts
import torch

from voxlane.engine.api import ChatMessage, SamplingParams
from voxlane.engine.assemble import use_threads
from voxlane.engine.cache import KVCache
from voxlane.engine.kernels.pages import Layout
from voxlane.engine.models.decoder import Decoder
from voxlane.engine.plan import Load, Row
from voxlane.engine.tokenizer import Tokenizer
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
BATCHES = (1, 2, 8, 32, 128)
IN_COMPANY = 10  # of the questions


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
        """Tokens asked of each question."""
        return 6 if self.dry else OUTPUTS

    @property
    def batches(self) -> tuple[int, ...]:
        """Sizes of the company a question is asked in, itself included."""
        return (1, 2, 4) if self.dry else BATCHES

    def model(self, where: str | torch.device, mode: str) -> Decoder:
        """Load the model."""
        return Decoder.load(open_weights(self.path), mode, device=where, context_tokens=1024)  # type: ignore[arg-type]

    def bench(self, where: str | torch.device, mode: str, max_batch: int) -> parts.Bench:
        """Return the model with a runner and a cache of its own type."""
        pages = torch.float32 if mode == "float32" else torch.bfloat16
        return parts.make_bench(self.model(where, mode), max_batch * 512, max_batch=max_batch, pages=pages)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model said to one question."""

    tokens: list[int]
    logprobs: list[float]


def ask(bench: parts.Bench, prompts: Sequence[Sequence[int]], outputs: int, chunk: int = 1 << 30) -> list[Answer]:
    """Run prompts as one batch, all of it greedy; return what came after each."""
    sampling = SamplingParams(max_tokens=1 << 20, logprobs=0, ignore_eos=True)
    requests = [bench.request(str(n), list(prompt), sampling) for n, prompt in enumerate(prompts)]
    answers = [Answer([], []) for _ in requests]
    while any(len(answer.tokens) < outputs for answer in answers):
        rows = []
        for request, answer in zip(requests, answers, strict=True):
            if len(answer.tokens) < outputs:
                count = min(len(request.tokens) - request.table.length, chunk)
                rows.append(Row(request, request.table.length, count))
                request.table.append(count)
        for row, outcome in zip(rows, bench.runner.run(Load(rows=rows)), strict=True):
            assert not outcome.failed, "logits are not finite"
            for choice in outcome.choices:
                row.request.tokens.append(choice.token)
                answers[int(row.request.id)].tokens.append(choice.token)
                assert choice.logprob is not None
                answers[int(row.request.id)].logprobs.append(choice.logprob)
    for request in requests:
        request.table.free()
    return answers


def logits_after(model: Decoder, tokens: list[int], pages: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return the logits [vocabulary] of what follows a sequence, on the CPU."""
    count, size = len(tokens), 64
    blocks = -(-count // size)
    cache = KVCache(model.layers, model.kv_heads, model.head_dim, blocks, size, pages, device)
    index = torch.arange(count, dtype=torch.int32, device=device)
    ends = torch.tensor([0, count], dtype=torch.int32, device=device)
    table = torch.arange(blocks, dtype=torch.int32, device=device)[None]
    layout = Layout(index, index, ends, ends[1:].contiguous(), table, max_query=count)
    with torch.inference_mode():
        hidden = model.forward(torch.tensor(tokens, device=device), layout, cache.pages)
        return model.logits(hidden[-1:])[0].float().cpu()


def first_difference(one: list[int], other: list[int]) -> int | None:
    """Return where two answers part."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), None)


def greedy(session: Session) -> None:
    """The CPU's float32 against the GPU's float32 and bfloat16."""
    begin = time.monotonic()
    cpu = session.bench("cpu", "float32", len(session.prompts))
    reference = ask(cpu, session.prompts, session.outputs)
    print(f"the CPU's answers took {time.monotonic() - begin:.1f} s", flush=True)
    wide = session.bench(session.device, "float32", len(session.prompts))
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
    """Explain where bfloat16 parts from float32: the gap of the two logits beside what bfloat16 is off in general."""
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
    """Each question alone and in company: the same tokens, the same bits?"""
    vocabulary = 1000
    source = random.Random(11)
    company = [
        [source.randrange(vocabulary) for _ in range(source.randint(3, 300))] for _ in range(max(session.batches))
    ]
    for mode in ("float32",) if session.dry else ("float32", "bfloat16"):
        bench = session.bench(session.device, mode, max(session.batches))
        questions = session.prompts[:IN_COMPANY]
        alone = [ask(bench, [prompt], session.outputs)[0] for prompt in questions]
        for size in session.batches:
            answers = [ask(bench, [prompt, *company[: size - 1]], session.outputs)[0] for prompt in questions]
            same = sum(a.tokens == b.tokens for a, b in zip(answers, alone, strict=True))
            bits = sum(a == b for a, b in zip(answers, alone, strict=True))
            off = max(_largest(a.logprobs, b.logprobs, first_difference(a.tokens, b.tokens))
                      for a, b in zip(answers, alone, strict=True))  # fmt: skip
            session.table[f"{mode}, batch {size}"] = {"same": same, "bits": bits, "logprobs_within": off}
            print(f"{mode:8}, batch {size:3}: {same} of {len(alone)} answers have the same tokens as alone, {bits} the "
                  f"same bits; log-probabilities within {off:.1e}", flush=True)  # fmt: skip


def _largest(one: list[float], other: list[float], stop: int | None = None) -> float:
    return max((abs(a - b) for a, b in zip(one[:stop], other[:stop], strict=True)), default=0.0)


def main() -> int:
    """Run what was asked for; one part's failure does not stop the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct", help="a name from `voxlane models list`, or a file")
    parser.add_argument("--parts", default="greedy,batches")
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args()
    use_threads(0)
    device = torch.device("cpu" if options.dry_run else "cuda")
    session = Session(store.resolve(options.model), device, options.dry_run)
    tokenizer = Tokenizer.from_weights(open_weights(session.path))
    questions = QUESTIONS[:3] if options.dry_run else QUESTIONS
    session.prompts = [tokenizer.encode_chat([ChatMessage("user", question)]) for question in questions]
    for name in options.parts.split(","):
        begin = time.monotonic()
        {"greedy": greedy, "batches": batches}[name](session)
        print(f"---- {name} took {time.monotonic() - begin:.1f} s", flush=True)
    if os.environ.get("OUT"):
        path = Path(os.environ["OUT"]) / "gpu_parity.json"
        path.write_text(json.dumps(session.table, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
