"""All layers of a decoder in one native call, for steps so short that the calls from Python matter.

It gives the same bits as the model's own loop over rope_write, paged_attention, linear and the norms, because it calls
the same functions from C. The model does embedding and logits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from voxlane.engine.kernels import native
from voxlane.engine.kernels.attention.pages import LayerPages, Layout, Pages, StatePages
from voxlane.engine.kernels.linear.linear import PackedWeight
from voxlane.engine.kernels.linear.weights import AttentionWeights, DenseWeights, LayerWeights, Weight

_POINTER, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_NORMS = ("after_attention_norm", "mlp_norm", "after_mlp_norm", "next_norm")
_OF_ONE_KIND = ("q_norm", "k_norm", "cos", "sin", "taps", "taps_bias")
_FLOATS = (torch.float32, torch.bfloat16)
_PACKED = 2  # the kind of a matrix; 0 and 1 are float32 and bfloat16
_PAGE_PARTS = ("k", "v", "k_scale", "v_scale")
_PLACES = ("positions", "slots", "query_starts", "context_lengths", "block_tables")


# The structures of linear/stack.cpp, field by field.
class _Matrix(ctypes.Structure):
    _fields_ = (
        *(("kind", _INT), ("data", _POINTER), ("parts", _INT), ("bias", _POINTER)),
        *(("outputs", _INT), ("inputs", _INT)),
    )


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, _Matrix) for name in ("mix", "out", "gate_up", "down")),
        *((name, _POINTER) for name in (*_NORMS, *_OF_ONE_KIND)),
        *((name, _INT) for name in ("window", "tap_count")),
    )


class _LayerPages(ctypes.Structure):
    _fields_ = (*((name, _POINTER) for name in (*_PAGE_PARTS, "vectors")), ("slots", _INT))


class _Model(ctypes.Structure):
    _fields_ = (
        ("layers", ctypes.POINTER(_Layer)),
        *((name, _INT) for name in ("count", "heads", "kv_heads", "head_dim", "hidden", "gelu")),
        *((name, _FLOAT) for name in ("eps", "scale", "softcap")),
        ("first_norm", _POINTER),
    )


class _Step(ctypes.Structure):
    _fields_ = (
        ("pages", ctypes.POINTER(_LayerPages)),
        *((name, _INT) for name in ("page_type", "block_tokens")),
        *((name, _POINTER) for name in _PLACES),
        *((name, _INT) for name in ("tokens", "rows", "table_columns")),
    )


class Stack:
    """The addresses of a decoder's layers, gathered once."""

    def __init__(
        self,
        layers: Sequence[LayerWeights],
        first_norm: Tensor,
        heads: int,
        kv_heads: int,
        head_dim: int,
        eps: float,
        scale: float,
        softcap: float,
        *,
        gelu: bool,
    ) -> None:
        self._kept = (list(layers), first_norm)  # keeps the addresses below valid
        self._hidden = first_norm.shape[0]
        self._layers = (_Layer * len(layers))(*(_layer(layer) for layer in layers))
        self._model = _Model(
            *(self._layers, len(layers), heads, kv_heads, head_dim, self._hidden, gelu),
            *(eps, scale, softcap, first_norm.data_ptr()),
        )
        self._pages: Sequence[LayerPages] | None = None
        self._page_structures: ctypes.Array[_LayerPages] | None = None

    def run(self, residual: Tensor, layout: Layout, pages: Sequence[LayerPages]) -> Tensor | None:
        """Return the normed hidden rows for embedded tokens `residual` [T, hidden], which it overwrites.

        Write what the layers keep of the tokens into `pages`. Return None, and do nothing, if the native library is
        missing or does not take the tensors: the model's own loop must run.
        """
        library = native.library(residual)
        if library is None or not residual.is_contiguous():
            return None
        if self._pages is not pages:
            self._page_structures = (_LayerPages * len(pages))(*(_layer_pages(page) for page in pages))
            self._pages = pages
        page = next(page.k for page in pages if isinstance(page, Pages))
        step = _Step(
            *(self._page_structures, native.page_type(page), page.shape[2]),
            *(getattr(layout, name).data_ptr() for name in _PLACES),
            *(residual.shape[0], *layout.block_tables.shape),
        )
        x = torch.empty_like(residual)
        library.vox_stack(ctypes.byref(self._model), ctypes.byref(step), residual.data_ptr(), x.data_ptr())
        return x


def fits(layers: Sequence[LayerWeights]) -> bool:
    """Return whether the native stack can read every weight."""
    return all(isinstance(layer.feed, DenseWeights) and all(map(_readable, _matrices(layer))) for layer in layers)


def _readable(weight: Weight) -> bool:
    if isinstance(weight, PackedWeight):
        return weight.is_cpu
    return weight.is_cpu and weight.is_contiguous() and weight.dtype in _FLOATS


def _matrices(layer: LayerWeights) -> tuple[Weight, ...]:
    feed = layer.feed
    return (layer.mix, layer.out, feed.gate_up, feed.down) if isinstance(feed, DenseWeights) else ()


def _layer(layer: LayerWeights) -> _Layer:
    feed = layer.feed
    assert isinstance(feed, DenseWeights), "the stack has no experts"
    matrices = (
        _matrix(layer.mix, layer.mix_bias),
        _matrix(layer.out, layer.out_bias),
        _matrix(feed.gate_up, feed.gate_up_bias),
        _matrix(feed.down, feed.down_bias),
    )
    norms = (layer.after_attention_norm, layer.mlp_norm, layer.after_mlp_norm, layer.next_norm)
    if isinstance(layer, AttentionWeights):
        of_attention = (*norms, layer.q_norm, layer.k_norm, layer.cos, layer.sin, None, None)
        return _Layer(*matrices, *map(native.pointer, of_attention), layer.window, 0)
    of_convolution = (*norms, None, None, None, None, layer.taps, layer.taps_bias)
    return _Layer(*matrices, *map(native.pointer, of_convolution), 0, layer.taps.shape[0])


def _matrix(weight: Weight, bias: Tensor | None) -> _Matrix:
    start = native.pointer(bias)
    if isinstance(weight, PackedWeight):
        parts = ctypes.addressof(weight.table), len(weight.parts)
        return _Matrix(_PACKED, *parts, start, weight.out_features, weight.in_features)
    return _Matrix(weight.dtype is torch.bfloat16, weight.data_ptr(), 0, start, *weight.shape)


def _layer_pages(pages: LayerPages) -> _LayerPages:
    if isinstance(pages, StatePages):
        return _LayerPages(*[None] * len(_PAGE_PARTS), pages.vectors.data_ptr(), pages.vectors.shape[1])
    return _LayerPages(*(native.pointer(getattr(pages, name)) for name in _PAGE_PARTS), None, 0)
