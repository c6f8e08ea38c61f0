"""Steps over prompts as CUDA graphs: one for each number of tokens, captured at start.

Launched kernel by kernel, the 28 layers of a small model take a host 20 ms, even for few tokens. A replay takes a
packet from pinned memory, runs the model on ragged rows, chooses a token for each, and writes them to pinned memory.
prompts.py writes the packet.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from voxlane.engine.kernels.attention.pages import Layout, new_arrivals
from voxlane.engine.kernels.sampling.sampling import sample
from voxlane.engine.kernels.yield_flag import YieldFlag
from voxlane.engine.memory.pages import KVCache
from voxlane.engine.runners.cuda.rows import PACKET
from voxlane.engine.runners.cuda.staging import PacketMemory, StagingBuffer, layout_of
from voxlane.engine.runners.decoder import DecoderModel

SIZES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Tokens a step is padded to."""

FEW_ROWS = 64
CROWDED = 512
"""Rows of most steps, and the tokens from which on there is a second step with room for all rows. Its logits take
longer, so it is used only for many short prompts."""

LONG = 1024
CROWD_REACH, LONG_REACH, REACH = 2048, 4096, 8192
"""Longest rows in steps of more than FEW_ROWS rows, of more than LONG tokens, and in others: the memory for attention's
parts grows with rows, tokens and positions."""

Progress = Callable[[float], None]
Shape = tuple[int, int]  # tokens and rows of a step


class PromptGraphs:
    """Steps over at most so many tokens of so many rows."""

    def __init__(
        self,
        model: DecoderModel,
        cache: KVCache,
        device: torch.device,
        beside: Tensor,
        *,
        max_rows: int,
        context_tokens: int,
        yield_flag: YieldFlag | None = None,
        asks: Tensor | None = None,
    ) -> None:
        """Write choices to `beside`, [2, max_rows] int32 on the device.

        With a `way` these steps yield to critical prompts; with `asks`, one of its flags, other steps yield to these.
        """
        self._model = model
        self._cache = cache
        self._beside = beside
        self._yield_flag, self._asks = yield_flag, asks
        self._arrivals = new_arrivals(device)
        self._context_tokens = context_tokens
        few = min(FEW_ROWS, max_rows)
        crowded = [(size, max_rows) for size in SIZES if size >= max(CROWDED, max_rows)] if max_rows > few else []
        self.shapes: list[Shape] = [*((size, min(size, few)) for size in SIZES), *crowded]
        parts = {shape: self._parts(*shape) for shape in self.shapes}
        largest = max(parts.values(), key=lambda shapes: sum(map(math.prod, shapes.values())))
        memory = PacketMemory.of(largest, device)  # shared: one step is under way at a time
        self._packets = {shape: StagingBuffer(parts[shape], memory) for shape in self.shapes}
        self._graphs: dict[Shape, torch.cuda.CUDAGraph] = {}
        self.hidden: Tensor | None = None  # [rows, hidden]: where the last step chose tokens
        self.chosen = torch.zeros((2, max_rows), dtype=torch.int32, pin_memory=device.type == "cuda")

    def shape(self, tokens: int, rows: int, longest: int) -> Shape | None:
        """Return the smallest step for so many tokens and rows of up to `longest` positions, or None."""
        for shape in self.shapes:
            if tokens <= shape[0] and rows <= shape[1] and longest <= self._reach(*shape):
                return shape
        return None

    def packet(self, shape: Shape) -> StagingBuffer:
        """Return a step's packet; the caller writes all of it."""
        return self._packets[shape]

    def capture(
        self,
        pool: Any,
        max_tokens: int,
        progress: Progress = lambda done: None,
        stream: torch.cuda.Stream | None = None,
    ) -> None:
        """Capture the steps of up to `max_tokens` tokens in a pool of memory; nothing may be running.

        They get the priority of `stream`.
        """
        most = next((size for size in SIZES if size >= max_tokens), SIZES[-1])
        shapes = sorted((shape for shape in self.shapes if shape[0] <= most), reverse=True)  # largest first
        for number, shape in enumerate(shapes):
            self._packets[shape].clear("slots")
            self._step(shape)  # compiles kernels and picks products: a capture cannot
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                self._step(shape)
            self._graphs[shape] = graph
            progress((number + 1) / len(shapes))
        torch.cuda.synchronize()

    def launch(self, shape: Shape) -> None:
        """Launch a step after its packet was written; `chosen` is complete when it is done."""
        graph = self._graphs.get(shape)
        if graph is None:
            self._step(shape)
        else:
            graph.replay()

    def _reach(self, size: int, rows: int) -> int:
        reach = CROWD_REACH if rows > FEW_ROWS else LONG_REACH if size > LONG else REACH
        return min(reach, self._context_tokens)

    def _parts(self, size: int, rows: int) -> dict[str, tuple[int, ...]]:
        return {
            **dict.fromkeys(("tokens", "positions", "slots"), (size,)),
            "starts": (rows + 1,),
            **dict.fromkeys(("lengths", "wanted"), (rows,)),
            "rules": (rows, PACKET),
            "tables": (rows, -(-self._reach(size, rows) // self._cache.block_tokens)),
        }

    def begin(self, shape: Shape) -> tuple[Tensor, Layout]:
        """Queue a packet's way to the device; return the tokens and the layout of its step."""
        packet = self._packets[shape]
        packet.send()
        return packet.device["tokens"].long(), layout_of(
            packet.device, yield_flag=self._yield_flag, arrivals=self._arrivals
        )

    def pick(self, shape: Shape, hidden: Tensor) -> Tensor:
        """Return the hidden states after which tokens are chosen, of those of all tokens."""
        return hidden.index_select(0, self._packets[shape].device["wanted"])

    def end(self, shape: Shape, picked: Tensor, logits: Tensor) -> None:
        """Queue the choices of a step."""
        rows = shape[1]
        if self.hidden is None:
            self.hidden = picked.new_zeros((self.chosen.shape[1], picked.shape[1]))
        self.hidden[:rows].copy_(picked)
        tokens, logprobs = self._beside[:, :rows]
        sample(logits, self._packets[shape].device["rules"], tokens, logprobs.view(torch.float32))
        if self._asks is not None:
            self._asks.zero_()
        self.chosen[0, :rows].copy_(tokens, non_blocking=True)
        self.chosen[1, :rows].copy_(logprobs, non_blocking=True)

    def _step(self, shape: Shape) -> None:
        with torch.inference_mode():
            if self._asks is not None:
                self._asks.fill_(1)
            hidden = self._model.forward(*self.begin(shape), self._cache.layers)
            picked = self.pick(shape, hidden)
            self.end(shape, picked, self._model.logits(picked))
