"""Blocks move bit for bit, and only where they were sent."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from voxlane.engine.kernels.attention.pages import Pages, StatePages
from voxlane.engine.memory.blocks import StateWindow
from voxlane.engine.memory.pages import PAGE_DTYPES, KVCache, PageShape, StateShape

DTYPES = list(PAGE_DTYPES.values())


STATES = StateShape(layers=(0, 3), channels=5, taps=3)
HYBRID = PageShape(3, 2, 8, STATES)


def make(dtype: torch.dtype, host_blocks: int = 0) -> KVCache:
    """Return a cache whose pages hold every bit pattern, NaNs with payloads among them."""
    cache = KVCache(HYBRID, 6, 4, dtype, host_blocks=host_blocks)
    generator = torch.Generator().manual_seed(1)
    for tensor in tensors(cache):
        bits = torch.randint(0, 256, (tensor.nbytes,), generator=generator, dtype=torch.uint8)
        tensor.copy_(bits.view(tensor.dtype).view(tensor.shape))
    return cache


def tensors(cache: KVCache) -> list[Tensor]:
    found = []
    for pages in cache.layers:
        parts = (pages.vectors,) if isinstance(pages, StatePages) else (pages.k, pages.v, pages.k_scale, pages.v_scale)
        found += [part for part in parts if part is not None]
    return found


def block_bits(cache: KVCache) -> list[bytes]:
    """Return each block's bytes over all layers."""
    return [
        b"".join(tensor[block].contiguous().view(torch.uint8).numpy().tobytes() for tensor in tensors(cache))
        for block in range(cache.num_blocks)
    ]


@pytest.mark.parametrize("dtype", DTYPES)
def test_pages_have_the_kernels_shapes(dtype: torch.dtype) -> None:
    cache = KVCache(PageShape(3, 2, 8), 6, 4, dtype)
    assert len(cache.pages) == 3
    for pages in cache.pages:
        assert pages.k.shape == pages.v.shape == (6, 2, 4, 8)
        assert pages.k.dtype == pages.v.dtype == dtype
        assert pages.k.is_contiguous()
        assert pages.v.is_contiguous()
        if dtype is torch.int8:
            assert pages.k_scale is not None
            assert pages.v_scale is not None
            assert pages.k_scale.shape == pages.v_scale.shape == (6, 2, 4)
            assert pages.k_scale.dtype == pages.v_scale.dtype == torch.bfloat16
        else:
            assert pages.k_scale is None
            assert pages.v_scale is None
    assert cache.layers == cache.pages
    assert cache.state is None
    pointers = [tensor.data_ptr() for tensor in tensors(cache)]
    assert len(set(pointers)) == len(pointers)


@pytest.mark.parametrize("dtype", DTYPES)
def test_convolutions_have_states_in_the_places_of_their_layers(dtype: torch.dtype) -> None:
    cache = KVCache(HYBRID, 6, 4, dtype)
    kinds = [isinstance(pages, StatePages) for pages in cache.layers]
    assert kinds == [True, False, False, True, False]
    assert [pages for pages in cache.layers if isinstance(pages, Pages)] == cache.pages
    for pages in cache.layers:
        if isinstance(pages, StatePages):
            assert (pages.vectors.shape, pages.vectors.dtype) == ((6, 2, 5), torch.float32)
            assert pages.block_tokens == 4
            assert pages.vectors.is_contiguous()
    assert cache.state == StateWindow(reach=2, slots=2)
    assert KVCache(HYBRID, 6, 1, dtype).state == StateWindow(reach=2, slots=1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_copies_are_exact_and_touch_nothing_else(dtype: torch.dtype) -> None:
    cache = make(dtype)
    before = block_bits(cache)
    cache.copy_blocks([(0, 4), (5, 2)])
    assert block_bits(cache) == [before[0], before[1], before[5], before[3], before[0], before[5]]


def test_a_chain_of_copies_reads_what_was_there_before() -> None:
    cache = make(torch.float32)
    before = block_bits(cache)
    cache.copy_blocks([(0, 1), (1, 2), (2, 0)])
    assert block_bits(cache) == [before[2], before[0], before[1], *before[3:]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_swap_out_and_in_is_exact_to_the_bit(dtype: torch.dtype) -> None:
    cache = make(dtype, host_blocks=3)
    before = block_bits(cache)
    cache.swap_out([(1, 2), (4, 0)])
    assert block_bits(cache) == before
    for tensor in tensors(cache):
        tensor.zero_()
    empty = block_bits(cache)[0]
    cache.swap_in([(0, 3), (2, 5)])
    assert block_bits(cache) == [empty, empty, empty, before[4], empty, before[1]]


def test_nothing_to_move_is_fine() -> None:
    cache = make(torch.float32)
    before = block_bits(cache)
    cache.copy_blocks([])
    cache.swap_out([])
    cache.swap_in([])
    assert block_bits(cache) == before


def test_a_wrong_block_number_is_caught() -> None:
    cache = make(torch.float32, host_blocks=1)
    for pairs in ([(-1, 0)], [(0, -1)], [(0, 1), (2, 1)]):
        with pytest.raises(AssertionError):
            cache.copy_blocks(pairs)
    for move, pair in ((cache.copy_blocks, (6, 0)), (cache.swap_out, (0, 1)), (cache.swap_in, (1, 0))):
        with pytest.raises((IndexError, RuntimeError)):
            move([pair])


def test_bytes() -> None:
    assert PageShape(30, 3, 64).bytes_per_token(torch.float32) == 30 * 2 * 3 * 64 * 4
    assert PageShape(30, 3, 64).bytes_per_token(torch.bfloat16) == 30 * 2 * 3 * 64 * 2
    assert PageShape(30, 3, 64).bytes_per_token(torch.int8) == 30 * 2 * 3 * (64 + 2)
    for dtype in DTYPES:
        for shape in (PageShape(3, 2, 8), HYBRID):
            cache = KVCache(shape, 6, 4, dtype)
            assert cache.bytes_per_token * 6 * 4 == sum(tensor.nbytes for tensor in tensors(cache))
            assert shape.bytes_per_block(dtype, 4) == cache.bytes_per_token * 4


def test_impossible_caches_are_refused() -> None:
    with pytest.raises(ValueError, match="float16"):
        KVCache(PageShape(1, 1, 4), 1, 1, torch.float16)
    for layers, blocks, tokens in ((0, 1, 1), (1, 0, 1), (1, 1, 0)):
        with pytest.raises(ValueError, match="at least one"):
            KVCache(PageShape(layers, 1, 4), blocks, tokens, torch.float32)
    with pytest.raises(ValueError, match="at least one"):
        KVCache(PageShape(1, 1, 4), 1, 1, torch.float32, host_blocks=-1)
