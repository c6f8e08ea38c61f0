"""Layer norms, gelu, tanh and convolutions against torch, and one row's bits whatever lies beside it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from voxlane.engine.kernels.conv.conv import conv, conv_ref, flatten, output_length
from voxlane.engine.kernels.linear.linear import pack
from voxlane.engine.kernels.norm import layer_norm_triton as kernels
from voxlane.engine.kernels.norm.layer_norm import (
    add_layer_norm,
    add_layer_norm_ref,
    gelu,
    layer_norm,
    layer_norm_ref,
    tanh,
)
from voxlane.engine.weights.tensors import quantise


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("columns", [1, 7, 64, 288, 1030])
@pytest.mark.parametrize("rows", [1, 3, 200])
@pytest.mark.parametrize("with_bias", [True, False])
def test_layer_norm(rows: int, columns: int, with_bias: bool) -> None:
    x = random(rows, columns) * 3 + 5
    weight, bias = random(columns, seed=1), random(columns, seed=2) if with_bias else None
    wanted = layer_norm_ref(x, weight, bias, 1e-5)
    torch.testing.assert_close(layer_norm(x, weight, bias, 1e-5), wanted, rtol=1e-4, atol=2e-5)
    more = random(rows, columns, seed=3)
    wanted, total = add_layer_norm_ref(more, x.clone(), weight, bias, 1e-5)
    found, residual = add_layer_norm(more, x, weight, bias, 1e-5)
    assert residual is x
    assert torch.equal(residual, total)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "columns"), [(0, 8), (1, 1), (3, 288)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_layer_norm_in_triton(rows: int, columns: int, with_bias: bool, dtype: torch.dtype) -> None:
    x = (random(rows, columns) * 3 + 5).to(dtype)
    weight, bias = random(columns, seed=1), random(columns, seed=2) if with_bias else None
    bound = {"rtol": 1e-5, "atol": 1e-5} if dtype is torch.float32 else {"rtol": 1e-2, "atol": 1e-2}
    found = kernels.layer_norm(x, weight, bias, 1e-5, dtype)
    torch.testing.assert_close(found, layer_norm_ref(x, weight, bias, 1e-5), **bound)
    residual = random(rows, columns, seed=3)  # wider than what is added to it
    wanted, total = add_layer_norm_ref(x, residual.clone(), weight, bias, 1e-5)
    found, updated = kernels.add_layer_norm(x, residual, weight, bias, 1e-5)
    assert updated is residual
    assert torch.equal(residual, total)
    torch.testing.assert_close(found, wanted, **bound)
    torch.testing.assert_close(add_layer_norm(x, residual - x, weight, bias, 1e-5)[0], wanted, **bound)


def test_a_row_is_normed_the_same_alone_and_among_others() -> None:
    x, weight = random(300, 90), random(90, seed=1)
    together = layer_norm(x, weight, None, 1e-5)
    assert torch.equal(torch.cat([layer_norm(x[n : n + 1], weight, None, 1e-5) for n in range(300)]), together)


@pytest.mark.parametrize("columns", [1, 5, 64, 1003])
def test_curves(columns: int) -> None:
    x = torch.linspace(-12, 12, 40 * columns).view(40, columns)
    x[0, 0] = 0.0
    torch.testing.assert_close(gelu(x.clone()), F.gelu(x), rtol=3e-7, atol=2e-6)
    torch.testing.assert_close(tanh(x.clone()), torch.tanh(x), rtol=0, atol=3e-7)


def test_a_curve_keeps_what_is_not_a_number() -> None:
    x = torch.tensor([[float("nan"), 1.0, 2.0, 3.0, 4.0]])
    assert gelu(x.clone()).isnan().tolist() == [[True, False, False, False, False]]
    assert tanh(x.clone()).isnan().tolist() == [[True, False, False, False, False]]


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(127, 64, 0), (7, 3, 0), (3, 2, 1), (3, 1, 1), (1, 1, 0)])
@pytest.mark.parametrize("channels", [1, 6])
def test_convolutions_of_several_clips(kernel: int, stride: int, padding: int, channels: int) -> None:
    weight, bias = random(10, channels, kernel), random(10, seed=1)
    clips = [random(length, channels, seed=length) for length in (kernel, 300, 131)]
    found = conv(clips, flatten(weight), bias, kernel, stride, padding)
    for clip, rows in zip(clips, found, strict=True):
        assert len(rows) == output_length(len(clip), kernel, stride, padding)
        torch.testing.assert_close(rows, conv_ref(clip, weight, bias, stride, padding), rtol=1e-4, atol=1e-4)


def test_a_packed_convolution() -> None:
    weight, clip = random(20, 32, 3), random(50, 32, seed=1)
    (found,) = conv([clip], pack(quantise(flatten(weight))), None, 3, 2, 1)
    wanted = conv_ref(clip, weight, None, 2, 1)
    assert float((found - wanted).square().mean().sqrt() / wanted.std()) < 0.02


def test_what_does_not_fit_is_refused() -> None:
    weight = random(4)
    with pytest.raises(ValueError, match="layer_norm"):
        layer_norm(random(2, 5), weight, None, 1e-5)
    with pytest.raises(ValueError, match="contiguous"):
        layer_norm(random(4, 4).T, weight, None, 1e-5)
    with pytest.raises(ValueError, match="residual"):
        add_layer_norm(random(2, 4), random(3, 4), weight, None, 1e-5)
    with pytest.raises(ValueError, match="contiguous"):
        gelu(random(4, 6).T)
    with pytest.raises(ValueError, match="shorter"):
        conv([random(2, 3)], random(4, 9), None, 3, 1)
    with pytest.raises(ValueError, match="channels"):
        conv([random(9)], random(4, 9), None, 3, 1)
