"""The view of the KV cache that kernels share: one layer's pages, and where a step's tokens lie in them.

memory/blocks.py decides which request owns a block, memory/pages.py allocates them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from voxlane.engine.kernels.yield_flag import YieldFlag

_ARRIVALS = 1 << 18
"""Counters: rows × tiles of a cut row × kv_heads × consumers, if there are any. A launch that needs more allocates its
own every time."""


ATTENTION_PARTS = 80_000
"""Parts of queries' sums, of rows of many queries, that attention may keep for each head until they are joined: 0.7 GB
with 16 heads of 128."""


@dataclass(frozen=True, slots=True)
class Pages:
    """One layer's keys and values. Head-major, so that the tokens of one (block, head) are contiguous."""

    k: Tensor  # [blocks, kv_heads, block_tokens, head_dim], float32 | bfloat16 | int8
    v: Tensor  # the same
    k_scale: Tensor | None = None  # int8 pages only: [blocks, kv_heads, block_tokens], bfloat16
    v_scale: Tensor | None = None


@dataclass(frozen=True, slots=True)
class StatePages:
    """One convolution's past: of each block the vectors of its last tokens, that of offset o in slot o % slots."""

    vectors: Tensor  # [blocks, slots, channels], float32
    block_tokens: int


LayerPages = Pages | StatePages
"""What one layer keeps in the cache."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a step's tokens live. Row r owns queries query_starts[r] : query_starts[r + 1], its newest tokens."""

    positions: Tensor  # [tokens], int32: position of each token in its sequence
    slots: Tensor  # [tokens], int32: block * block_tokens + offset to write its key and value to
    query_starts: Tensor  # [rows + 1], int32
    context_lengths: Tensor  # [rows], int32: cached tokens including this step's
    block_tables: Tensor  # [rows, max_blocks], int32, padded with 0
    max_query: int = 0  # the most queries a row has, if the host knows; 0: it does not. Reading it back would wait
    common_start: int = -1  # the position of every row's first query, where row r has block r and no other; else -1
    yield_flag: YieldFlag | None = None  # the flags that the step yields to between layers; None: it does not yield
    arrivals: Tensor | None = None  # new_arrivals(), where the tensors are kept for many steps; None: made every time
    thinned_from: Tensor | None = (
        None  # [rows], int32: the first position whose key stands for several; None: none does
    )
    thinned: int = 1  # how many equal keys such a key stands for: so often its softmax counts it
    beside: Layout | None = None  # of the tokens that follow these in the same step: prompts beside decodes

    @property
    def parts(self) -> tuple[Layout, ...]:
        """The layouts of a step, in the order of its tokens; each has attention of its own."""
        return (self,) if self.beside is None else (replace(self, beside=None), *self.beside.parts)


def new_arrivals(device: torch.device) -> Tensor:
    """Return counters of the pieces of attention that are done, for layouts whose launches never run at the same time.

    They are zero between launches: the last program to arrive resets them. A launch that does not end leaves them as
    they are; on CUDA the process has lost its device then, and ends.
    """
    return torch.zeros(_ARRIVALS, dtype=torch.int32, device=device)
