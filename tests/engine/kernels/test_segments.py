"""Attention among sequences laid end to end: against torch on each alone, and the Triton kernel against the same."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

from voxlane.engine.kernels.vocoder import segments_triton as kernels
from voxlane.engine.kernels.vocoder.segments import segment_attention

EDGES = (0, 5, 6, 45, 50)
"""Where sequences begin and end: one longer than a block of keys, one of a single row."""


@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize(("heads", "width"), [(1, 16), (2, 24)])
def test_each_sequence_is_alone(heads: int, width: int, random: torch.Generator) -> None:
    qkv = 2 * torch.randn((EDGES[-1], 3 * heads * width), generator=random)
    start, stop = torch.zeros(len(qkv), dtype=torch.int32), torch.zeros(len(qkv), dtype=torch.int32)
    expected = torch.empty(len(qkv), heads * width)
    for first, last in itertools.pairwise(EDGES):
        start[first:last], stop[first:last] = first, last
        query, key, value = qkv[first:last].view(last - first, 3, heads, width).permute(1, 2, 0, 3)
        attended = F.softmax(query @ key.transpose(1, 2) / width**0.5, dim=-1) @ value
        expected[first:last] = attended.transpose(0, 1).reshape(last - first, -1)
    torch.testing.assert_close(segment_attention(qkv, heads, start, stop), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(kernels.segment_attention(qkv, heads, start, stop), expected, rtol=1e-5, atol=1e-5)


def test_what_does_not_fit_is_refused() -> None:
    bounds = torch.zeros(4, dtype=torch.int32)
    with pytest.raises(ValueError, match="not three times 2 heads"):
        segment_attention(torch.ones(4, 15), 2, bounds, bounds)
    with pytest.raises(ValueError, match="one for each row"):
        segment_attention(torch.ones(4, 12), 2, bounds[:3], bounds)
