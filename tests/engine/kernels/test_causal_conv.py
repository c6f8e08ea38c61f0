"""Causal convolutions against torch's own, in the forms for a CPU and for a GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from voxlane.engine.kernels.causal_conv import (
    causal_conv,
    causal_conv_ref,
    causal_upsample,
    conv_weight,
    depthwise_conv,
    snake,
    upsample_matrix,
)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def pictures(weight: Tensor) -> Tensor:
    """Return a weight in the form that a GPU gets: torch's CPU takes it too."""
    return weight.unsqueeze(2).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("form", [conv_weight, pictures])
@pytest.mark.parametrize(("batch", "length", "dilation"), [(1, 1, 1), (3, 5, 3), (2, 11, 9)])
def test_conv(form: Callable[[Tensor], Tensor], batch: int, length: int, dilation: int) -> None:
    x, weight, bias = torch.randn(batch, 6 * dilation + length, 8), torch.randn(12, 8, 7), torch.randn(12)
    out = causal_conv(x, form(weight), bias, dilation)
    assert out.shape == (batch, length, 12)
    assert out.is_contiguous()
    torch.testing.assert_close(out, causal_conv_ref(x, weight, bias, dilation), rtol=1e-5, atol=1e-5)


def test_conv_of_too_little() -> None:
    with pytest.raises(ValueError, match="longer than 18"):
        causal_conv(torch.zeros(1, 18, 8), conv_weight(torch.zeros(12, 8, 7)), torch.zeros(12), 3)


def test_bfloat16_gets_the_form_for_a_gpu() -> None:
    assert conv_weight(torch.zeros(12, 8, 7, dtype=torch.bfloat16)).shape == (12, 8, 1, 7)


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
