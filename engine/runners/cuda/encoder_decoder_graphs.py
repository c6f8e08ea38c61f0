"""Steps of an encoder–decoder as CUDA graphs: decodes, prompts and drafts of many streams in one.

A step's rows are ragged: all that varies is numbers in a packet, so a graph serves every batch of at most its number of
tokens. A replay takes the packet from pinned memory, runs the model, chooses a token at every position and writes the
choices to pinned memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from voxlane.engine.kernels.attention.pages import Layout, Pages, new_arrivals
from voxlane.engine.kernels.sampling.sampling import sample
from voxlane.engine.memory.pages import KVCache
from voxlane.engine.models.recognition import Cross
from voxlane.engine.runners.cuda.rows import PACKET, buckets_up_to
from voxlane.engine.runners.cuda.staging import PacketMemory, StagingBuffer, layout_of

Progress = Callable[[float], None]

NARROW_QUERIES = 16
"""Most tokens of a row in a narrow step, which runs attention's kernel for few queries and not that for many."""

FEW_ROWS = 16
"""Rows in steps of few tokens; all other steps have room for the most rows."""

WIDE_SIZES = (32, 64, 128, 256, 512, 1024)
"""Tokens of wide steps, where a row may have more. Larger steps are not captured: they outlast their launches."""

INLINE_SIZES = (*WIDE_SIZES, 2048)
"""The same for a model with inline clips: a second of sound is 13 tokens."""

INLINE_CHOICES = 4
"""With inline clips, one position in so many can have a choice: the others are sound."""

CHOICE_ROWS = 256
"""Rows of logits held at once: 256 × 51,866 floats are 53 MB."""


class EncoderDecoderModel(Protocol):
    """What these steps need of an architecture."""

    max_samples: int
    inline: bool
    context_tokens: int
    hidden_size: int
    dtype: torch.dtype
    restrictions: Tensor | None

    def states(self, samples: int) -> int:
        """Return how many encoder states a clip becomes."""

    def forward(self, tokens: Tensor, layout: Layout, cross: Cross, pages: list[Pages]) -> Tensor:
        """Return the final hidden state of every token."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of some hidden states."""


@dataclass(frozen=True, slots=True)
class Step:
    """The memory of a step of some number of tokens."""

    packet: StagingBuffer  # its input; the caller writes all of it
    hidden: Tensor  # [tokens, hidden]: the final states
    chosen: Tensor  # [2, tokens] int32: tokens, and the bits of log-probabilities
    results: Tensor  # the same in pinned memory

    def choices(self) -> tuple[list[int], list[float]]:
        """Return the tokens that a finished step chose, -1 where none could be chosen, and their log-probabilities."""
        tokens, bits = self.results.numpy()
        return tokens.tolist(), bits.view(np.float32).tolist()


class StepGraphs:
    """Steps over tokens: for each number of tokens a narrow and a wide graph."""

    def __init__(self, model: EncoderDecoderModel, cache: KVCache, device: torch.device, *, max_rows: int) -> None:
        self._model = model
        self._pages = cache.pages
        self._max_rows = max_rows
        self._narrow = buckets_up_to(max_rows)
        self._width = -(-model.context_tokens // cache.block_tokens)
        self._cross_width = -(-model.states(model.max_samples) // cache.block_tokens)
        self._graphs: dict[tuple[int, bool], torch.cuda.CUDAGraph] = {}
        self._device = device
        self._arrivals = new_arrivals(device)
        self._rules = torch.zeros((CHOICE_ROWS, PACKET), dtype=torch.int32, device=device)  # the largest logit
        self._wide = INLINE_SIZES if model.inline else WIDE_SIZES
        # One graph runs at a time: all share the memory of the largest.
        whole = self._memory(max(self._wide[-1], max_rows))
        self._steps = {
            size: Step(
                StagingBuffer(self._shapes(size), whole.packet.memory),
                whole.hidden[:size],
                whole.chosen.view(-1)[: 2 * size].view(2, size),
                whole.results.view(-1)[: 2 * size].view(2, size),
            )
            for size in (*self._narrow, *self._wide)
        }

    def size(self, tokens: int, longest: int, choices: int = 0) -> tuple[int, bool]:
        """Return the smallest step for so many tokens, and whether it is wide because a row has `longest` tokens.

        With inline clips the step must have room for `choices` choices.
        """
        if longest <= NARROW_QUERIES and tokens <= self._narrow[-1]:
            return next(size for size in self._narrow if size >= tokens), False
        if self._model.inline:
            tokens = max(tokens, INLINE_CHOICES * choices)
        wide = next((size for size in self._wide if size >= tokens), 0)
        return wide or -(-tokens // self._wide[-1]) * self._wide[-1], True

    def step(self, size: int) -> Step:
        """Return the memory of a step of `size` tokens."""
        if size not in self._steps:
            self._steps[size] = self._memory(size)
        return self._steps[size]

    def capture(self, progress: Progress = lambda done: None) -> None:
        """Capture every step, and run a larger one, whose kernels may differ. Nothing may be running."""
        sizes = [(size, True) for size in self._wide[::-1]] + [(size, False) for size in self._narrow[::-1]]
        pool = torch.cuda.graph_pool_handle()
        for number, (size, wide) in enumerate(sizes):
            self._steps[size].packet.clear("slots")
            self._graphs[size, wide] = captured(partial(self._step, size, wide), pool)
            progress((number + 1) / len(sizes))
        beyond = 2 * self._wide[-1]
        self.step(beyond).packet.clear("slots")
        self._step(beyond, wide=True)

    def launch(self, size: int, *, wide: bool) -> None:
        """Launch a step after its packet was written; its choices are complete when it is done."""
        graph = self._graphs.get((size, wide))
        if graph is None:
            self._step(size, wide)
        else:
            graph.replay()

    def _memory(self, size: int) -> Step:
        shapes, device = self._shapes(size), self._device
        return Step(
            StagingBuffer(shapes, PacketMemory.of(shapes, device)),
            torch.zeros((size, self._model.hidden_size), dtype=self._model.dtype, device=device),
            torch.zeros((2, size), dtype=torch.int32, device=device),
            torch.zeros((2, size), dtype=torch.int32, pin_memory=device.type == "cuda"),
        )

    def _shapes(self, size: int) -> dict[str, tuple[int, ...]]:
        # Attention is compiled for 16, 64, 256, … rows: two of these suffice.
        rows = min(FEW_ROWS, self._max_rows) if size <= FEW_ROWS else self._max_rows
        return {
            **dict.fromkeys(("tokens", "positions", "slots", "kinds"), (size,)),
            "wanted": (size // INLINE_CHOICES if self._model.inline else 0,),
            "starts": (rows + 1,),
            **dict.fromkeys(("lengths", "states"), (rows,)),
            "tables": (rows, self._width),
            "cross_tables": (rows, self._cross_width),
        }

    def _step(self, size: int, wide: bool) -> None:
        model, step = self._model, self.step(size)
        with torch.inference_mode():
            step.packet.send()
            part = step.packet.device
            layout = layout_of(
                part,
                max_query=0 if wide else NARROW_QUERIES,
                arrivals=self._arrivals,
            )
            cross = Cross(part["states"], part["cross_tables"])
            hidden = model.forward(part["tokens"].long(), layout, cross, self._pages)
            step.hidden.copy_(hidden)
            if wide and model.inline:
                wanted = part["wanted"].long()  # padding repeats the first position
                chosen = torch.empty_like(step.chosen[:, : len(wanted)])
                self._choose(hidden[wanted], part["kinds"][wanted], chosen)
                step.chosen.index_copy_(1, wanted, chosen)
            else:
                self._choose(hidden, part["kinds"], step.chosen)
            step.results.copy_(step.chosen, non_blocking=True)

    def _choose(self, hidden: Tensor, kinds: Tensor, chosen: Tensor) -> None:
        """Choose a token after each of the hidden rows, and write it and its log-probability into `chosen`."""
        model = self._model
        for begin in range(0, len(hidden), CHOICE_ROWS):
            some = slice(begin, min(begin + CHOICE_ROWS, len(hidden)))
            logits = model.logits(hidden[some])
            if model.restrictions is not None:
                logits = logits.add_(model.restrictions[kinds[some].long()])
            rules = self._rules[: len(logits)]
            sample(logits, rules, chosen[0, some], chosen[1, some].view(torch.float32))


def captured(work: Callable[[], None], pool: Any) -> torch.cuda.CUDAGraph:
    """Return `work` as a graph, captured on the stream it will run on, whose priority its kernels get."""
    work()  # compiles kernels and picks products: a capture cannot
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=torch.cuda.current_stream()):
        work()
    return graph
