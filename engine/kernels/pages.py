"""The view of the KV cache that kernels share: one layer's pages.

It knows shapes; who owns which block is kv.py's business, and allocation is cache.py's.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Pages:
    """One layer's keys and values. Head-major, so that the tokens of one (block, head) are contiguous."""

    k: Tensor  # [blocks, kv_heads, block_tokens, head_dim], float32 | bfloat16 | int8
    v: Tensor  # the same
    k_scale: Tensor | None = None  # int8 pages only: [blocks, kv_heads, block_tokens], bfloat16
    v_scale: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a step's tokens live. Row r owns queries query_starts[r] : query_starts[r + 1], its newest tokens."""

    positions: Tensor  # [tokens], int32: position of each token in its sequence
    slots: Tensor  # [tokens], int32: block * block_tokens + offset to write its key and value to
    query_starts: Tensor  # [rows + 1], int32
    context_lengths: Tensor  # [rows], int32: cached tokens including this step's
    block_tables: Tensor  # [rows, max_blocks], int32, padded with 0
    max_query: int = 0  # the most queries a row has, if the host knows; 0: it does not. Reading it back would wait
