"""Causal convolutions against torch's own, in the forms for a CPU and for a GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from voxlane.engine.kernels.conv import causal_triton as kernel
from voxlane.engine.kernels.conv.causal import (
    causal_conv,
    causal_conv_ref,
    causal_upsample,
    conv_weight,
    depthwise_conv,
    depthwise_upsample,
    elu,
    elu_ref,
    extend,
    point_add,
    snake,
    upsample_matrix,
)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def windows(weight: Tensor) -> Tensor:
    """Return a weight in the form that a GPU gets: a CPU takes it too."""
    return conv_weight(weight.to(torch.bfloat16)).to(torch.float32)


@pytest.mark.parametrize("form", [conv_weight, windows])
@pytest.mark.parametrize(("batch", "length", "dilation"), [(1, 1, 1), (3, 5, 3), (2, 11, 9)])
def test_conv(form: Callable[[Tensor], Tensor], batch: int, length: int, dilation: int) -> None:
    x, bias = torch.randn(batch, 6 * dilation + length, 8), torch.randn(12)
    weight = torch.randn(12, 8, 7).to(torch.bfloat16).to(torch.float32)
    out = causal_conv(x, form(weight), bias, dilation)
    assert out.shape == (batch, length, 12)
    assert out.is_contiguous()
    torch.testing.assert_close(out, causal_conv_ref(x, weight, bias, dilation), rtol=1e-5, atol=1e-5)


def test_conv_of_too_little() -> None:
    with pytest.raises(ValueError, match="longer than 18"):
        causal_conv(torch.zeros(1, 18, 8), conv_weight(torch.zeros(12, 8, 7)), torch.zeros(12), 3)


def test_bfloat16_gets_the_form_for_a_gpu() -> None:
    assert conv_weight(torch.zeros(12, 8, 7, dtype=torch.bfloat16)).shape == (12, 7 * 8)


def test_conv_in_triton() -> None:
    """More channels than a tile takes at once, an output too many, streams that share a tile; then the snake."""
    x, bias = torch.randn(3, 18 + 50, 40), torch.randn(130)
    weight, curve = torch.randn(130, 40, 7) / 16, (torch.rand(130), torch.rand(130))
    form = windows(weight.to(torch.bfloat16).to(torch.float32))
    wanted = causal_conv(x, form, bias, 3)
    torch.testing.assert_close(kernel.conv(x, form, bias, 3, None, None), wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(kernel.conv(x, form, bias, 3, *curve), snake(wanted, *curve), rtol=1e-4, atol=1e-4)
    point, residual = torch.randn(130, 130), torch.randn(3, 50, 130)
    added = kernel.conv(wanted, point, bias, 1, residual=residual)
    torch.testing.assert_close(added, point_add(wanted, point, bias, residual), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("length", "steps", "channels"), [(6, 9, 5), (54, 32, 20), (2, 1, 8)])
def test_joined_in_triton(length: int, steps: int, channels: int) -> None:
    """Fewer new steps than are kept, and more; the rest of the streams' memory is left alone."""
    memory = torch.randn(5, length * channels + 13)
    other = memory.clone()
    tails = [each[:, 3 : 3 + length * channels].view(5, length, channels) for each in (memory, other)]
    x, rows, curve = (
        torch.randn(3, steps, channels),
        torch.tensor([4, 0, 2]),
        (torch.rand(channels), torch.rand(channels)),
    )
    for snaked in (None, curve):
        got = kernel.extend(x, tails[0], rows, *(snaked or (None, None)))
        torch.testing.assert_close(got, extend(x, tails[1], rows, snaked), rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(memory, other, rtol=1e-6, atol=1e-6)


def test_depthwise() -> None:
    x, weight, bias = torch.randn(2, 10, 6), torch.randn(6, 7), torch.randn(6)
    wanted = F.conv1d(x.transpose(1, 2), weight[:, None], bias, groups=6).transpose(1, 2)
    torch.testing.assert_close(depthwise_conv(x, weight, bias), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("stride", "taps"), [(2, 1), (5, 2), (3, 3)])
def test_upsample_is_the_transposed_convolution_that_nothing_later_changes(stride: int, taps: int) -> None:
    x, weight, bias = torch.randn(2, 7, 4), torch.randn(4, 6, stride * taps), torch.randn(6)
    wanted = F.conv_transpose1d(x.transpose(1, 2), weight, bias, stride).transpose(1, 2)[:, : 7 * stride]
    before = torch.zeros(2, taps - 1, 4)
    matrix = upsample_matrix(weight, stride)
    out = causal_upsample(torch.cat((before, x), dim=1), matrix, bias.repeat(stride), stride)
    torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-5)


def test_snake() -> None:
    x, frequency, depth = torch.randn(2, 3, 5), torch.rand(5), torch.rand(5)
    wanted = x.double() + depth.double() * torch.sin(x.double() * frequency.double()) ** 2
    torch.testing.assert_close(snake(x, frequency, depth).double(), wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_depthwise_upsampling_is_the_transposed_convolution_of_each_channel(stride: int) -> None:
    x, weight = torch.randn(2, 5, 6), torch.randn(6, 1, 2 * stride)
    wanted = F.conv_transpose1d(x.transpose(1, 2), weight, stride=stride, groups=6).transpose(1, 2)
    taps = weight.view(6, 2, stride).flip(1).permute(1, 2, 0)
    padded = F.pad(x, (0, 0, 1, 0))
    torch.testing.assert_close(depthwise_upsample(padded, taps), wanted[:, : 5 * stride], rtol=1e-5, atol=1e-5)


def test_elu_is_torchs() -> None:
    edges = torch.tensor([0.0, -0.0, 1e-30, -1e-30, -1e-6, 1e-6, -200.0, 1e30, -1e30, torch.inf, -torch.inf, torch.nan])
    for x in (edges, torch.randn(3, 101, 7) * 4):
        torch.testing.assert_close(elu(x), elu_ref(x), rtol=1e-7, atol=1e-7, equal_nan=True)
    assert elu(edges).dtype is torch.float32
