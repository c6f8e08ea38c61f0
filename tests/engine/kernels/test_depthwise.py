"""The depthwise convolution with its norm: against torch's own layers, and the Triton kernel against the reference."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from examples import sweep

from voxlane.engine.kernels.conv import depthwise_triton as kernels
from voxlane.engine.kernels.conv.depthwise import Depthwise, depthwise_norm

EDGES = (0, 4, 17, 18, 31)
"""Where sequences begin and end: one shorter than the reach, one of a single row."""


@pytest.mark.parametrize(("channels", "width", "stride"), sweep([(64, 5, 2), (24, 7, 1), (192, 7, 8)]))
def test_each_sequence_is_alone(channels: int, width: int, stride: int, random: torch.Generator) -> None:
    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random)

    layer = Depthwise(numbers(channels, width), stride, *(numbers(channels) for _ in range(3)), 1e-5)
    x = numbers(EDGES[-1], channels)
    start, stop = torch.zeros(len(x), dtype=torch.int32), torch.zeros(len(x), dtype=torch.int32)
    expected = torch.empty_like(x)
    for first, last in itertools.pairwise(EDGES):
        start[first:last], stop[first:last] = first, last
        reach = (width // 2) * stride
        taps = layer.taps[:, None]
        summed = F.conv1d(x[first:last].T[None], taps, layer.offset, padding=reach, dilation=stride, groups=channels)
        expected[first:last] = F.layer_norm(summed[0].T, (channels,), layer.weight, layer.bias, layer.eps)
    torch.testing.assert_close(depthwise_norm(x, start, stop, layer), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(kernels.depthwise_norm(x, start, stop, layer), expected, rtol=1e-5, atol=1e-5)


def test_what_does_not_fit_is_refused(random: torch.Generator) -> None:
    layer = Depthwise(torch.ones(8, 3), 1, *(torch.ones(8) for _ in range(3)), 1e-5)
    x, bounds = torch.ones(4, 8), torch.zeros(4, dtype=torch.int32)
    with pytest.raises(ValueError, match="does not fit taps"):
        depthwise_norm(torch.ones(4, 9), bounds, bounds, layer)
    with pytest.raises(ValueError, match="one for each row"):
        depthwise_norm(x, bounds.long(), bounds, layer)
    with pytest.raises(ValueError, match="have no middle"):
        replace(layer, taps=torch.ones(8, 4))
    with pytest.raises(ValueError, match="8 numbers each"):
        replace(layer, bias=torch.ones(7))
