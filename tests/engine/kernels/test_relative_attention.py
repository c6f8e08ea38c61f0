"""Attention by content and distance, against its definition, one pair of rows at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from voxlane.engine.kernels.attention.relative import Distances, attend_clip, relative_attention

HEADS, SIZE, REACH = 3, 4, 9


def distances() -> Distances:
    torch.manual_seed(2)
    biases = torch.randn(2, HEADS, SIZE)
    return Distances(torch.randn(2 * REACH - 1, HEADS * SIZE), biases[0], biases[1])


def slow(qkv: Tensor, known: Distances) -> Tensor:
    """Return the attention of one clip, each score by itself."""
    rows = len(qkv)
    q, k, v = qkv.double().view(rows, 3, HEADS, SIZE).unbind(1)
    far = known.keys.double().view(-1, HEADS, SIZE)
    out = torch.zeros(rows, HEADS, SIZE, dtype=torch.float64)
    for head in range(HEADS):
        for row in range(rows):
            content, place = q[row, head] + known.content_bias[head], q[row, head] + known.distance_bias[head]
            scores = [content @ k[other, head] + place @ far[REACH - 1 - (row - other), head] for other in range(rows)]
            out[row, head] = torch.softmax(torch.stack(scores) / SIZE**0.5, dim=0) @ v[:, head]
    return out.view(rows, -1).float()


@pytest.mark.parametrize("lengths", [[1], [9], [4, 1, 9, 3]])
def test_every_clip_is_its_definition(lengths: list[int]) -> None:
    known, qkv = distances(), torch.randn(sum(lengths), 3 * HEADS * SIZE)
    wanted = torch.cat([slow(clip, known) for clip in torch.split(qkv, lengths)])
    torch.testing.assert_close(relative_attention(qkv, lengths, known), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 5, 9])
def test_products_do_what_the_fused_attention_does(rows: int) -> None:
    """They serve CUDA."""
    known, qkv = distances(), torch.randn(rows, 3 * HEADS * SIZE)
    torch.testing.assert_close(attend_clip(qkv, known, fused=False), slow(qkv, known), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("rows", "lengths"), [(10, [10]), (4, [3]), (0, [0, 10])])
def test_what_does_not_fit_is_refused(rows: int, lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="rows, each of at most 9"):
        relative_attention(torch.zeros(rows, 3 * HEADS * SIZE), lengths, distances())
