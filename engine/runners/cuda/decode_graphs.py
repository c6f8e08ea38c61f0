"""Decode steps as CUDA graphs: one for each number of rows, captured at start.

A replay takes the packet from pinned memory, runs the model on every row, chooses a token for each, and writes them to
pinned memory: the host does nothing in between. rows.py writes the packet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from voxlane.engine.kernels.attention.pages import LayerPages, Layout, new_arrivals
from voxlane.engine.kernels.sampling.decode_rows import unpack
from voxlane.engine.kernels.sampling.sampling import Penalties, sample
from voxlane.engine.kernels.yield_flag import YieldFlag
from voxlane.engine.memory.pages import KVCache
from voxlane.engine.runners.cuda.rows import PACKET, DecodeRows, buckets_up_to

GIVING_WAY = 16
"""Rows from which on a step yields to critical prompts: smaller ones are over in a millisecond."""

Progress = Callable[[float], None]


class DecodeModel(Protocol):
    """What a decode step needs of an architecture."""

    vocab_size: int

    def forward(self, tokens: Tensor, layout: Layout, pages: Sequence[LayerPages]) -> Tensor:
        """Return the final hidden state of every token."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of some hidden states."""


class DecodeGraphs:
    """The device's side of the decode rows, and the steps over them."""

    def __init__(
        self,
        model: DecodeModel,
        cache: KVCache,
        rows: DecodeRows,
        context_tokens: int,
        device: torch.device,
        yield_flag: YieldFlag | None = None,
    ) -> None:
        """Let steps of many rows yield to critical prompts, if there is a `way`."""
        capacity, block_tokens = rows.capacity, cache.block_tokens
        self._model = model
        self._pages = cache.layers
        self._block_tokens = block_tokens
        self._host_packet = rows.packet
        self._yield_flag = yield_flag
        self._buckets = buckets_up_to(capacity)
        self._pinned = device.type == "cuda"
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

        def numbers(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self._packet = numbers(capacity, PACKET)
        self._tokens = numbers(capacity, dtype=torch.int64)
        self._positions, self._slots, self._lengths = numbers(capacity), numbers(capacity), numbers(capacity)
        self._starts = torch.arange(capacity + 1, dtype=torch.int32, device=device)
        self._arrivals = new_arrivals(device)
        self.tables = numbers(capacity, -(-context_tokens // block_tokens))
        # [2, capacity] twice: tokens and the bits of log-probabilities, of the rows, then of choices beside the graph.
        self.choices = numbers(4 * capacity)
        self.beside = self.choices[2 * capacity :].view(2, capacity)
        self.penalties = Penalties.empty(capacity, model.vocab_size, device)
        self.hidden: Tensor | None = None  # [capacity, hidden] of the last step, for choices on the host
        self.chosen = torch.zeros((2, capacity), dtype=torch.int32, pin_memory=self._pinned)

    def capture(self, pool: Any, progress: Progress = lambda done: None) -> None:
        """Capture every step in a pool of memory; nothing may be running, and no row may be in use."""
        sizes = self._buckets[::-1]  # the largest first: the others fit into its memory
        for number, rows in enumerate(sizes):
            self._step(rows)  # compiles kernels and picks products: a capture cannot
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                self._step(rows)
            self._graphs[rows] = graph
            progress((number + 1) / len(sizes))
        torch.cuda.synchronize()

    def launch(self, rows: int) -> None:
        """Launch a step over the first `rows` rows, a size that has a graph; `chosen` is written when it is done."""
        graph = self._graphs.get(rows)
        if graph is None:
            self._step(rows)
        else:
            graph.replay()

    def send_tables(self, tables: Sequence[tuple[int, Sequence[int]]]) -> None:
        """Write the whole block tables of some rows, (row, blocks)."""
        if not tables:
            return
        width = max(len(blocks) for _, blocks in tables)
        padded = [[row, *blocks, *[0] * (width - len(blocks))] for row, blocks in tables]
        # Pinned memory, which torch keeps until it was read: from other memory the host would wait for the copy.
        staged = torch.tensor(padded, dtype=torch.int32, pin_memory=self._pinned)
        told = staged.to(self.tables.device, non_blocking=True)
        self.tables[told[:, 0].long(), :width] = told[:, 1:]

    def begin(self, rows: int) -> tuple[Tensor, Layout]:
        """Queue the packet's way to the device; return the tokens and the layout of the first `rows` rows."""
        packet, tokens = self._packet[:rows], self._tokens[:rows]
        packet.copy_(self._host_packet[:rows], non_blocking=True)
        layout = Layout(
            self._positions[:rows],
            self._slots[:rows],
            self._starts[: rows + 1],
            self._lengths[:rows],
            self.tables[:rows],
            max_query=1,
            yield_flag=self._yield_flag if rows >= GIVING_WAY else None,
            arrivals=self._arrivals,
        )
        unpack(packet, tokens, layout, self._block_tokens, self.choices)
        return tokens, layout

    def end(self, hidden: Tensor, logits: Tensor) -> None:
        """Queue the choices of the first rows, of which these are all hidden states and logits."""
        rows = hidden.shape[0]
        if self.hidden is None:
            self.hidden = hidden.new_zeros((self._packet.shape[0], hidden.shape[1]))
        self.hidden[:rows].copy_(hidden)
        chosen = self.choices[: self.chosen.numel()].view_as(self.chosen)
        probabilities = chosen[1, :rows].view(torch.float32)
        sample(logits, self._packet[:rows], chosen[0, :rows], probabilities, self.penalties, self._tokens[:rows])
        self.chosen.copy_(chosen, non_blocking=True)

    def _step(self, rows: int) -> None:
        with torch.inference_mode():
            hidden = self._model.forward(*self.begin(rows), self._pages)
            self.end(hidden, self._model.logits(hidden))
