"""The kernels of a codec language model, interpreted on the CPU: short attention, the choice of a code, rings."""

from __future__ import annotations

import pytest
import torch
from examples import sweep
from torch import Tensor

from voxlane.engine.kernels.attention import ring_triton as rings
from voxlane.engine.kernels.attention import short_triton as short
from voxlane.engine.kernels.attention.pages import Pages
from voxlane.engine.kernels.attention.ring import Moment, Ring, ring_attention, ring_attention_ref
from voxlane.engine.kernels.attention.short import Heads, short_attention, short_attention_ref
from voxlane.engine.kernels.sampling import code_choice_triton
from voxlane.engine.kernels.sampling.code_choice import FirstRules, choose_code, choose_code_ref
from voxlane.engine.models.qwen3_tts.choice import packet_rows
from voxlane.engine.models.qwen3_tts.config import SpeechSampling

pytestmark = pytest.mark.usefixtures("interpreter")

VOCABULARY, END = 100, 90
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("normed", sweep([True, False]))
def test_short_attention(normed: bool) -> None:
    """Two tokens a row, then one by one; a block's unwritten places are NaN."""
    heads, kv_heads, dim, rows = 4, 2, 12, 3
    norms = (torch.rand(dim), torch.rand(dim)) if normed else (None, None)
    own = Heads(heads, kv_heads, dim, torch.randn(16, dim // 2), torch.randn(16, dim // 2), *norms, 1e-6, dim**-0.5)
    pages = [Pages(*(torch.full((5, kv_heads, 16, dim), torch.nan) for _ in range(2))) for _ in range(2)]
    start = 0
    for count in (2, 1, 1):
        qkv = torch.randn(rows * count, (heads + 2 * kv_heads) * dim)
        wanted = short_attention_ref(qkv, own, pages[1], start, count)
        torch.testing.assert_close(short.short_attention(qkv, own, pages[0], start, count), wanted, **CLOSE)
        for got, expected in ((pages[0].k, pages[1].k), (pages[0].v, pages[1].v)):
            torch.testing.assert_close(got, expected, equal_nan=True, **CLOSE)
        start += count


def test_short_attention_refuses_what_does_not_fit() -> None:
    own = Heads(4, 2, 12, torch.zeros(16, 6), torch.zeros(16, 6), None, None, 0.0, 1.0)
    pages = Pages(torch.zeros(2, 2, 16, 12), torch.zeros(2, 2, 16, 12))
    for rows, start in ((3, 0), (2, 16)):
        with pytest.raises(ValueError, match="positions to"):
            short_attention(torch.zeros(rows, 96), own, pages, start, 1)
    with pytest.raises(ValueError, match="not contiguous"):
        short_attention(torch.zeros(3, 96), own, pages, 0, 2)


SAMPLINGS = (
    SpeechSampling(inner_temperature=0.9, inner_top_k=5),
    SpeechSampling(inner_temperature=0.0),
    SpeechSampling(inner_temperature=1.3, inner_top_k=0, inner_top_p=0.3),
    SpeechSampling(inner_temperature=0.5, inner_top_k=50, inner_top_p=0.8),
    SpeechSampling(inner_temperature=0.9, inner_top_k=1),
)


def _packet(seed: int) -> Tensor:
    rows = [packet_rows(sampling, 1000 * seed + row, 16 * row)[1] for row, sampling in enumerate(SAMPLINGS)]
    return torch.tensor(rows, dtype=torch.int32)


@pytest.mark.parametrize("ruled", sweep([True, False]))
@pytest.mark.parametrize("seed", sweep([3, 2, 1, 0], here=2))
def test_a_code_is_chosen_as_sampling_chooses(ruled: bool, seed: int) -> None:
    """Flat logits and steep ones, equal ones, one that is no number; with the rules of a first code, and without."""
    logits = torch.randn(len(SAMPLINGS), VOCABULARY) * (0.1, 1.0, 4.0, 1.0)[seed]
    if seed == 2:
        logits[:, 5:9] = logits.max()
    if seed == 3:
        logits[1, 3] = torch.nan
    packet, table, found = _packet(seed), torch.randn(VOCABULARY + 7, 24), []
    for choose in (choose_code_ref, code_choice_triton.choose_code):
        said = torch.arange(6 * VOCABULARY).view(6, VOCABULARY) % 3 == 0
        penalty = torch.tensor([1.05, 1.0, 2.0, 1.3, 1.1])
        rules = FirstRules(said, torch.tensor([4, 1, 0, 2, 5]), penalty, VOCABULARY - 30, END, 32) if ruled else None
        codes, residual = torch.zeros(len(SAMPLINGS), 3, dtype=torch.int64), torch.zeros(len(SAMPLINGS), 2, 24)
        choose(logits, packet, codes[:, 1], rules, residual[:, 1], table, 7)
        found.append((codes, residual, said))
    for got, expected in zip(*found, strict=True):
        assert torch.equal(got, expected)
    assert (found[0][0][:, 1] < 0).any() == (seed == 3)


def test_a_choice_for_other_rows_is_refused() -> None:
    packet, codes = _packet(0), torch.zeros(3, dtype=torch.int64)
    with pytest.raises(ValueError, match="for 5 rows"):
        choose_code(torch.zeros(5, VOCABULARY), packet, codes)
    with pytest.raises(ValueError, match="residual"):
        choose_code(torch.zeros(5, VOCABULARY), packet, packet[:, 0].long(), None, torch.zeros(5, 3), torch.zeros(9, 4))


@pytest.mark.parametrize(("heads", "kv_heads", "window"), sweep([(4, 2, 121), (2, 2, 250)]))
def test_ring_attention_over_a_window_as_long_as_mimis(heads: int, kv_heads: int, window: int) -> None:
    """Rings that are walked in tiles: a full one that wraps around within the call, one that begins, an empty one."""
    dim, frames = 32, 16
    size = window - 1 + frames
    kept = torch.randn(2, 4, size, kv_heads, dim)
    which, angles = torch.tensor([2, 0, 3]), torch.randn(3, frames, dim // 2)
    moment = Moment(which, torch.tensor([4 * size - 3, 30, 0]), angles.cos(), angles.sin())
    qkv = torch.randn(3, frames, (heads + 2 * kv_heads) * dim)
    ours, theirs = (Ring(*kept.clone().unbind(0), window) for _ in range(2))
    got = rings.ring_attention(qkv, heads, ours, moment)
    torch.testing.assert_close(got, ring_attention_ref(qkv, heads, theirs, moment), **CLOSE)
    torch.testing.assert_close(
        torch.stack((ours.keys, ours.values)), torch.stack((theirs.keys, theirs.values)), **CLOSE
    )


@pytest.mark.parametrize(("heads", "kv_heads"), sweep([(4, 2), (2, 2)]))
def test_ring_attention(heads: int, kv_heads: int) -> None:
    """Rings that fill up, wrap around and are longer than the window; two streams at different positions."""
    dim, window, most = 16, 5, 3
    size = window - 1 + most
    memory = [torch.zeros(4, 2 * size * kv_heads * dim + 5) for _ in range(2)]
    begin = torch.tensor([0, 0, 0, 0])
    for rows, frames in (([2, 0], 1), ([0], 2), ([0, 2], 3), ([2, 0], 2), ([0, 2], 3), ([2], 1)):
        which, angles = torch.tensor(rows), torch.randn(len(rows), frames, dim // 2)
        moment = Moment(which, begin[which], angles.cos(), angles.sin())
        qkv = torch.randn(len(rows), frames, (heads + 2 * kv_heads) * dim)
        parts = [each[:, 5:].view(4, 2, size, kv_heads, dim).unbind(1) for each in memory]
        got = rings.ring_attention(qkv, heads, Ring(*parts[0], window), moment)
        torch.testing.assert_close(got, ring_attention_ref(qkv, heads, Ring(*parts[1], window), moment), **CLOSE)
        torch.testing.assert_close(memory[0], memory[1], **CLOSE)
        begin[which] += frames
    with pytest.raises(ValueError, match="does not fit"):
        ring_attention(torch.zeros(1, most + 1, 96), 2, Ring(*parts[0], window), moment)
