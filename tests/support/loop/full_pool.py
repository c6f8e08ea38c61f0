"""A block pool without its prefix cache, or with few free blocks."""

from __future__ import annotations

from voxlane.engine.memory.blocks import BlockPool


def empty_prefix_cache(pool: BlockPool) -> None:
    """Drop every cached prefix of the pool."""
    for block in pool.take(pool.available):
        pool.forget(block)
        pool.release(block)


def shrink(pool: BlockPool, leave: int) -> list[int]:
    """Occupy all blocks but `leave`, so that requests must preempt each other; return those blocks."""
    return pool.take(pool.available - leave)
