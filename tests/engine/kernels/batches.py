"""Batches of rows at any stage, laid out in pages through scrambled block tables."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from voxlane.engine.kernels.attention.pages import Layout, Pages


@dataclass(frozen=True)
class Shape:
    """The sizes one attention call is about."""

    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 16
    block_tokens: int = 16

    @property
    def columns(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head_dim


def new_pages(shape: Shape, blocks: int, kind: torch.dtype) -> Pages:
    """Return pages full of values that would be seen at once if they were ever used."""
    size = (blocks, shape.kv_heads, shape.block_tokens, shape.head_dim)
    if kind is torch.int8:
        k, v = (torch.full(size, 127, dtype=torch.int8) for _ in range(2))
        scales = (torch.full(size[:3], float("nan"), dtype=torch.bfloat16) for _ in range(2))
        return Pages(k, v, *scales)
    return Pages(*(torch.full(size, float("nan"), dtype=kind) for _ in range(2)))


def clone(pages: Pages) -> Pages:
    """Return a copy that shares nothing."""
    parts = (pages.k, pages.v, pages.k_scale, pages.v_scale)
    return Pages(*(None if part is None else part.clone() for part in parts))  # type: ignore[arg-type]


def tables(lengths: list[int], block_tokens: int, random: torch.Generator) -> tuple[Tensor, int]:
    """Return a table of blocks in random order for rows that grow to `lengths`, and the number of blocks."""
    counts = [-(-length // block_tokens) for length in lengths]
    order = torch.randperm(sum(counts) + 1, generator=random).tolist()
    table = torch.zeros((len(lengths), max([*counts, 1])), dtype=torch.int32)
    for row, count in enumerate(counts):
        table[row, :count] = torch.tensor([order.pop() for _ in range(count)], dtype=torch.int32)
    return table, sum(counts) + 1


def filled(shape: Shape, kind: torch.dtype, lengths: list[int], random: torch.Generator) -> tuple[Tensor, Pages]:
    """Return a block table and pages whose first `lengths` positions hold random vectors; the rest stays poisoned."""
    table, blocks = tables(lengths, shape.block_tokens, random)
    pages = new_pages(shape, blocks, kind)
    for row, length in enumerate(lengths):
        at = torch.arange(length)
        where = (table[row, at // shape.block_tokens].long(), slice(None), at % shape.block_tokens)
        for page, scale in ((pages.k, pages.k_scale), (pages.v, pages.v_scale)):
            vectors = torch.randn((length, shape.kv_heads, shape.head_dim), generator=random)
            if scale is not None:
                vectors = vectors.mul(40).clamp(-127, 127)
                scale[where] = torch.rand((length, shape.kv_heads), generator=random).mul(0.05).to(torch.bfloat16)
            page[where] = vectors.to(kind)
    return table, pages


def layout(rows: list[tuple[int, int]], table: Tensor, block_tokens: int) -> Layout:
    """Return the layout of a step in which row r runs positions start : start + count, for rows = [(start, count)]."""
    positions = [start + n for start, count in rows for n in range(count)]
    slots = [
        int(table[row, position // block_tokens]) * block_tokens + position % block_tokens
        for row, (start, count) in enumerate(rows)
        for position in range(start, start + count)
    ]
    starts = [0]
    for _, count in rows:
        starts.append(starts[-1] + count)
    lengths = [start + count for start, count in rows]
    where, write, first, seen = (
        torch.tensor(values, dtype=torch.int32) for values in (positions, slots, starts, lengths)
    )
    return Layout(where, write, first, seen, table)


def rotary(positions: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """Return tables of cosines and sines [positions, head_dim / 2]."""
    angles = torch.arange(positions)[:, None] / 100.0 ** (torch.arange(0, head_dim, 2) / head_dim)
    return angles.cos().contiguous(), angles.sin().contiguous()
