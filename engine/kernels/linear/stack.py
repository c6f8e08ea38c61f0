"""All layers of a decoder in one native call, for steps so short that the calls from Python matter.

It gives the same bits as the model's own loop over rope_write, paged_attention, linear and the norms, because it calls
the same functions from C. The model does embedding and logits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from voxlane.engine.kernels import native
from voxlane.engine.kernels.attention.pages import Layout, Pages
from voxlane.engine.kernels.linear.linear import PackedWeight


class LayerWeights(Protocol):
    """One layer, under the names models/decoder.py gives its parts."""

    @property
    def qkv(self) -> Tensor | PackedWeight: ...
    @property
    def qkv_bias(self) -> Tensor | None: ...
    @property
    def q_norm(self) -> Tensor | None: ...
    @property
    def k_norm(self) -> Tensor | None: ...
    @property
    def cos(self) -> Tensor: ...
    @property
    def sin(self) -> Tensor: ...
    @property
    def window(self) -> int: ...
    @property
    def out(self) -> Tensor | PackedWeight: ...
    @property
    def out_bias(self) -> Tensor | None: ...
    @property
    def after_attention_norm(self) -> Tensor | None: ...
    @property
    def mlp_norm(self) -> Tensor: ...
    @property
    def gate_up(self) -> Tensor | PackedWeight: ...
    @property
    def gate_up_bias(self) -> Tensor | None: ...
    @property
    def down(self) -> Tensor | PackedWeight: ...
    @property
    def down_bias(self) -> Tensor | None: ...
    @property
    def after_mlp_norm(self) -> Tensor | None: ...
    @property
    def next_norm(self) -> Tensor: ...


_POINTER, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_VECTORS = ("q_norm", "k_norm", "cos", "sin", "after_attention_norm", "mlp_norm", "after_mlp_norm", "next_norm")
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
        *((name, _Matrix) for name in ("qkv", "out", "gate_up", "down")),
        *((name, _POINTER) for name in _VECTORS),
        ("window", _INT),
    )


class _LayerPages(ctypes.Structure):
    _fields_ = tuple((name, _POINTER) for name in _PAGE_PARTS)


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
        self._pages: Sequence[Pages] | None = None
        self._page_structures: ctypes.Array[_LayerPages] | None = None

    def run(self, residual: Tensor, layout: Layout, pages: Sequence[Pages]) -> Tensor | None:
        """Return the normed hidden rows for embedded tokens `residual` [T, hidden], which it overwrites.

        Write the tokens' keys and values into `pages`. Return None, and do nothing, if the native library is missing or
        does not take the tensors: the model's own loop must run.
        """
        library = native.library(residual)
        if library is None or not residual.is_contiguous():
            return None
        if self._pages is not pages:
            self._page_structures = (_LayerPages * len(pages))(*(_layer_pages(page) for page in pages))
            self._pages = pages
        page = pages[0].k
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
    matrices = [matrix for layer in layers for matrix in (layer.qkv, layer.out, layer.gate_up, layer.down)]
    return all(
        weight.is_cpu
        if isinstance(weight, PackedWeight)
        else weight.is_cpu and weight.is_contiguous() and weight.dtype in (torch.float32, torch.bfloat16)
        for weight in matrices
    )


def _layer(layer: LayerWeights) -> _Layer:
    return _Layer(
        _matrix(layer.qkv, layer.qkv_bias),
        _matrix(layer.out, layer.out_bias),
        _matrix(layer.gate_up, layer.gate_up_bias),
        _matrix(layer.down, layer.down_bias),
        *(native.pointer(getattr(layer, name)) for name in _VECTORS),
        layer.window,
    )


def _matrix(weight: Tensor | PackedWeight, bias: Tensor | None) -> _Matrix:
    start = native.pointer(bias)
    if isinstance(weight, PackedWeight):
        parts = ctypes.addressof(weight.table), len(weight.parts)
        return _Matrix(_PACKED, *parts, start, weight.out_features, weight.in_features)
    return _Matrix(weight.dtype is torch.bfloat16, weight.data_ptr(), 0, start, *weight.shape)


def _layer_pages(pages: Pages) -> _LayerPages:
    return _LayerPages(*(native.pointer(getattr(pages, name)) for name in _PAGE_PARTS))
