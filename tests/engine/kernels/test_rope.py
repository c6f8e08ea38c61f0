"""rope_write: rotation, norms, and what lands in the pages."""

from __future__ import annotations

import ctypes
from itertools import product

import pytest
import torch
from torch import Tensor

from voxlane.engine.kernels.attention.paged import gather
from voxlane.engine.kernels.attention.pages import Layout, Pages
from voxlane.engine.kernels.attention.rope import rope_write, rope_write_ref

from .batches import Shape, clone, layout, new_pages, rotary, tables

KINDS = [torch.float32, torch.bfloat16, torch.int8]
ROWS = [(0, 5), (30, 1), (7, 20), (3, 0)]  # a prefill, a decode, a chunk, and a row that sits this step out


def prepared(shape: Shape, kind: torch.dtype, random: torch.Generator) -> tuple[Tensor, Layout, Pages]:
    table, blocks = tables([40] * len(ROWS), shape.block_tokens, random)
    place = layout(ROWS, table, shape.block_tokens)
    qkv = torch.randn((place.positions.shape[0], shape.columns), generator=random)
    return qkv, place, new_pages(shape, blocks, kind)


def run(call: object, shape: Shape, qkv: Tensor, place: Layout, pages: Pages, gain: Tensor | None = None) -> Tensor:
    cos, sin = rotary(64, shape.head_dim)
    assert callable(call)
    q = call(qkv, shape.heads, shape.kv_heads, shape.head_dim, cos, sin, place, pages, gain, gain, 1e-6)
    assert isinstance(q, Tensor)
    return q


def written(pages: Pages, place: Layout, part: str) -> Tensor:
    """The vectors at this step's slots, as float32 [T, kv_heads, head_dim]."""
    size = pages.k.shape[2]
    slots = place.slots.long()
    found = [gather(pages, (slot // size).view(1), size, part)[:, slot % size] for slot in slots]
    return torch.stack(found)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("shape", [Shape(), Shape(3, 1, 64, 16), Shape(4, 4, 20, 5), Shape(2, 2, 4, 1)])
def test_native_matches_reference(
    kind: torch.dtype, normed: bool, shape: Shape, library: ctypes.CDLL, random: torch.Generator
) -> None:
    qkv, place, pages = prepared(shape, kind, random)
    gain = torch.rand(shape.head_dim, generator=random) + 0.5 if normed else None
    others = clone(pages)
    assert torch.allclose(
        run(rope_write, shape, qkv, place, pages, gain), run(rope_write_ref, shape, qkv, place, others, gain), atol=1e-5
    )
    # A last bit's difference may round to the next code: one part in 128 of a bfloat16, in 127 of an int8 vector.
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 2.0**-7, torch.int8: 0.02}[kind]
    for part in ("k", "v"):
        got, expected = written(pages, place, part), written(others, place, part)
        assert ((got - expected).abs() <= tolerance * expected.abs().amax(dim=-1, keepdim=True)).all()


def test_values_are_stored_as_they_are(library: ctypes.CDLL, random: torch.Generator) -> None:
    shape = Shape()
    for kind, write in product(KINDS, (rope_write, rope_write_ref)):
        qkv, place, pages = prepared(shape, kind, random)
        run(write, shape, qkv, place, pages)
        v = qkv.view(len(qkv), -1, shape.head_dim)[:, shape.heads + shape.kv_heads :]
        got = written(pages, place, "v")
        if kind is not torch.int8:
            assert torch.equal(got, v.to(kind).to(torch.float32))
        else:
            # Half a step, where a step is the largest magnitude / 127 and its bfloat16 may be 2 ** -8 off.
            assert ((got - v).abs() <= v.abs().amax(dim=-1, keepdim=True) * (0.5 / 127 * 1.004 + 2.0**-9)).all()


def test_rotation_turns_pairs_by_the_position(library: ctypes.CDLL, random: torch.Generator) -> None:
    shape = Shape(heads=1, kv_heads=1, head_dim=4)
    qkv, place, pages = prepared(shape, torch.float32, random)
    q = run(rope_write, shape, qkv, place, pages)
    cos, sin = rotary(64, 4)
    for token, position in enumerate(place.positions.tolist()):
        for pair in range(2):
            turn = torch.complex(cos[position, pair], sin[position, pair])
            given = torch.complex(qkv[token, pair], qkv[token, 2 + pair])
            found = torch.complex(q[token, 0, pair], q[token, 0, 2 + pair])
            assert abs(given * turn - found) < 1e-5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", [rope_write, rope_write_ref])
def test_only_the_slots_are_written_and_padding_writes_nothing(
    call: object, kind: torch.dtype, library: ctypes.CDLL, random: torch.Generator
) -> None:
    shape = Shape()
    qkv, place, pages = prepared(shape, kind, random)
    place.slots[3] = -1
    before = clone(pages)
    run(call, shape, qkv, place, pages)
    touched = torch.zeros(pages.k.shape[0] * shape.block_tokens, dtype=torch.bool)
    touched[place.slots[place.slots >= 0].long()] = True
    same = ~touched.view(-1, shape.block_tokens)
    for after, old in ((pages.k, before.k), (pages.v, before.v)):
        kept, was = (part.transpose(1, 2)[same].view(torch.int8) for part in (after, old))
        assert torch.equal(kept, was)


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_do_not_depend_on_batch_or_threads(
    kind: torch.dtype, threads: int, library: ctypes.CDLL, random: torch.Generator
) -> None:
    shape = Shape(8, 4, 64, 16)
    table, blocks = tables([200], 16, random)
    qkv = torch.randn((200, shape.columns), generator=random)
    pages = [new_pages(shape, blocks, kind) for _ in range(2)]
    cos, sin = rotary(256, shape.head_dim)
    sizes = (shape.heads, shape.kv_heads, shape.head_dim, cos, sin)
    together = rope_write(qkv, *sizes, layout([(0, 200)], table, 16), pages[0])
    alone = [rope_write(qkv[n : n + 1], *sizes, layout([(n, 1)], table, 16), pages[1]) for n in range(200)]
    assert torch.equal(together, torch.cat(alone))
    for part in ("k", "v"):
        assert torch.equal(*(gather(page, table[0], 200, part) for page in pages))


def test_int8_pages_survive_zero_and_nan(library: ctypes.CDLL, random: torch.Generator) -> None:
    shape = Shape()
    qkv, place, pages = prepared(shape, torch.int8, random)
    qkv[1] = 0.0
    qkv[2, -1] = float("nan")
    run(rope_write, shape, qkv, place, pages)
    values = written(pages, place, "v")
    assert (values[1] == 0.0).all()
    assert values[2, -1].isnan().all()
    assert values[[0, *range(3, len(qkv))]].isfinite().all()


def test_what_does_not_fit_is_named(random: torch.Generator) -> None:
    shape = Shape()
    qkv, place, pages = prepared(shape, torch.float32, random)
    cos, sin = rotary(64, shape.head_dim)
    with pytest.raises(ValueError, match="qkv"):
        rope_write(qkv, 5, 2, 16, cos, sin, place, pages)
    with pytest.raises(ValueError, match="cos"):
        rope_write(qkv, 6, 2, 16, cos[:, :4], sin, place, pages)
    with pytest.raises(ValueError, match="int8 pages need scales"):
        rope_write(qkv, 6, 2, 16, cos, sin, place, Pages(pages.k.to(torch.int8), pages.v.to(torch.int8)))
    with pytest.raises(ValueError, match="do not hold 2 heads of 16"):
        rope_write(qkv, 6, 2, 16, cos, sin, place, Pages(pages.k[:, :1], pages.v[:, :1]))
