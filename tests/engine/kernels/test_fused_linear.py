"""A product with its bias, curve and residual: the Triton kernel against torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from voxlane.engine.kernels.linear import fused_triton as kernels
from voxlane.engine.kernels.linear.fused import fused_linear

pytestmark = pytest.mark.usefixtures("interpreter")


@pytest.mark.parametrize(("rows", "depth", "columns"), [(0, 8, 8), (5, 24, 40), (37, 70, 33)])
@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize("add", [False, True])
def test_against_torch(rows: int, depth: int, columns: int, gelu: bool, add: bool, random: torch.Generator) -> None:
    x, weight = torch.randn((rows, depth), generator=random), torch.randn((columns, depth), generator=random)
    bias, residual = torch.randn(columns, generator=random), torch.randn((rows, columns), generator=random)
    expected = F.linear(x, weight, bias)
    expected = F.gelu(expected) if gelu else expected
    expected = expected + residual if add else expected
    given = residual if add else None
    torch.testing.assert_close(fused_linear(x, weight, bias, gelu=gelu, residual=given), expected)
    got = kernels.fused_linear(x, weight, bias, gelu=gelu, residual=given, rounded=False)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_what_does_not_fit_is_refused() -> None:
    x, weight, bias = torch.ones(4, 8), torch.ones(6, 8), torch.ones(6)
    with pytest.raises(ValueError, match="do not fit"):
        fused_linear(x, weight.T, bias)
    with pytest.raises(ValueError, match="is not \\[4, 6\\]"):
        fused_linear(x, weight, bias, residual=x)
    with pytest.raises(ValueError, match="contiguous float32"):
        fused_linear(x.double(), weight, bias)
