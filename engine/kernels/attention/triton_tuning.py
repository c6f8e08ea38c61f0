"""How paged attention is cut and compiled for a shape: figures of a sweep on an H200."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

MIN_ROWS = 16  # of a matrix product's left side
_CROWD = 1 << 16  # numbers of a token's keys in all rows of a step: from here on decodes are tuned for many rows
_MANY_ROWS = 1 << 16  # queries × heads: work for all of an H200's multiprocessors, and again


@dataclass(frozen=True, slots=True)
class AttentionTuning:
    """How a kernel is cut and compiled."""

    tile: int  # keys at a time
    warps: int
    stages: int  # tiles in flight
    programs: int  # per multiprocessor
    split: int = 0  # decode: positions of a piece, 0: what makes as many pieces as programs; prefill: at least so many
    rows: int = MIN_ROWS  # prefill: queries × heads of a tile
    split_queries: int = 0  # prefill: rows of at most so many queries are cut into pieces
    registers: int | None = None  # the most a thread may use; fewer let more programs share a multiprocessor
    least: int = 64  # decode without split: positions of the shortest piece, a power of 2
    overlap: bool = True  # decode and triton_hopper.py: a launch begins while the one before it ends
    ahead: int = 0  # decode: pages of a piece, a power of 2, brought into the L2 before what comes before is awaited
    join: int = 4096  # decode: numbers of parts held in registers at once while they are joined
    consumers: int = 0  # prefill by triton_hopper.py: groups of four warps that share 128 rows; 0: by the other

    def options(self) -> dict[str, Any]:
        """Return the compiler's options."""
        # Explicit, because versions differ in their defaults, and bits would differ with them.
        options = {"num_warps": self.warps, "num_stages": self.stages, "enable_fp_fusion": True}
        return options if self.registers is None else {**options, "maxnreg": self.registers}


def decode_tuning(head_dim: int, page: torch.dtype, groups: int = 0) -> AttentionTuning:
    """Return how rows of few queries are served: measured on an H200, but for float32 and heads wider than 128.

    `groups` are rows × heads of keys. A crowd wants more programs that wait for memory (64 wide: 125 µs without, 116
    with), few rows want smaller tiles, since each program has few of them (128 wide: 23.2 and 22.3 µs, the crowd 244
    and 246).

    Over int8 pages one warp a program, and its first page brought near: 39.1 µs for 43.7 with two warps and without.

    `programs` is what a multiprocessor has registers for; `join` takes what the walk leaves. If it had registers for
    more, overlapping launches would be spread unevenly: a program that ends is replaced by one of the next launch, and
    one multiprocessor may get all it can hold while another gets few (1.28 times the time where 5 fitted and 4 would
    have done). If it has registers for fewer, the rest run after all others, almost alone. Each of its quarters has
    16,384, so eight warps fit with up to 255 each, twelve with up to 168. 64 rows of 20 heads took 156 µs with ten
    programs of one warp and 186 registers each, of which eight fit, and 125 with eight.
    """
    if page is torch.float32:
        return AttentionTuning(tile=32, warps=4, stages=2, programs=3 if head_dim <= 64 else 2, overlap=False)
    if head_dim > 128:
        return AttentionTuning(tile=64, warps=4, stages=2, programs=2, overlap=False)
    if page is torch.int8:
        return AttentionTuning(tile=32 if head_dim > 64 else 64, warps=1, stages=3, programs=8, ahead=1)
    crowd = groups * head_dim >= _CROWD
    if head_dim > 64:
        return (
            AttentionTuning(tile=64, warps=2, stages=2, programs=4)
            if crowd
            else AttentionTuning(32, 2, 3, 4, join=2048)
        )
    plain = AttentionTuning(tile=32, warps=1, stages=2, programs=8)
    return replace(plain, programs=12, registers=168, join=1024) if crowd else plain


def prefill_tuning(head_dim: int, page: torch.dtype, compute: torch.dtype) -> AttentionTuning:
    """Return how rows of many queries are served: measured on an H200, but for wide heads in float32 or beyond 128.

    At 128 wide, tiles of 64 rows cost whole prompts 3 % and save short chunks over long contexts 20 %.
    """
    if compute is torch.float32 and head_dim <= 64:
        return AttentionTuning(tile=64, warps=4, stages=2, programs=2, split=512, rows=64, split_queries=256)
    if compute is torch.float32 or head_dim > 128:
        tile, rows = (32, 32) if head_dim <= 128 else (16, 16)
        return AttentionTuning(tile=tile, warps=4, stages=2, programs=2, split=512, rows=rows, split_queries=256)
    if head_dim > 64:
        return AttentionTuning(tile=64, warps=4, stages=3, programs=2, split=512, rows=64, split_queries=256)
    return AttentionTuning(tile=64, warps=4, stages=3, programs=2, split=512, rows=128, split_queries=256)


def hopper_tuning(head_dim: int, rows: int) -> AttentionTuning:
    """Return how triton_hopper.py serves so many rows, queries × heads: measured on an H200.

    Two programs share a multiprocessor if they can: eight prompts of 512, 32/8 heads of 64, take 36 µs, with one
    program of three consumers 49. With heads of 128 there are registers for that with one consumer each; the same
    prompts take 61 µs, with one program of two consumers 70. But one prompt of 2,048, 16/8 heads, which has no work for
    so many programs, takes 58 that way and 36 the other.

    Where multiprocessors would have nothing to do chunks are cut, into pieces of 512 positions or more. Of 256 would be
    better where there are at most eight of them (64 queries over 1,024, 16/8 heads of 128: 13.2 µs for 14.7), and worse
    where there are more (over 4,096: 23.3 for 19.4), since one program joins them all.
    """
    programs, consumers, stages = 2, 2, 4
    if head_dim > 64:
        programs, consumers, stages = (2, 1, 2) if rows >= _MANY_ROWS else (1, 2, 4)
    return AttentionTuning(64, 4, stages, programs, split=512, split_queries=256, consumers=consumers)
