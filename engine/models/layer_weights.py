"""Reads the weights of a decoder's layers under the names that their family has for them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from voxlane.engine.kernels.linear.weights import (
    AttentionWeights,
    ConvolutionWeights,
    DenseWeights,
    ExpertWeights,
    LayerWeights,
)
from voxlane.engine.models.decoder_config import DecoderConfig
from voxlane.engine.models.experts import read_experts
from voxlane.engine.models.loading import TensorReader, Weight
from voxlane.engine.models.rotary import Rope


@dataclass(frozen=True, slots=True)
class _Names:
    """What a family calls the parts of a layer."""

    first_norm: str = "input_layernorm"
    mlp_norm: str = "post_attention_layernorm"
    last_norm: str = "norm"
    attention_out: str = "self_attn.o_proj"
    q_norm: str = "self_attn.q_norm"
    k_norm: str = "self_attn.k_norm"
    gate: str = "mlp.gate_proj"
    up: str = "mlp.up_proj"
    down: str = "mlp.down_proj"


_LLAMA = _Names()
_GEMMA = _Names(mlp_norm="pre_feedforward_layernorm")  # its post_attention_layernorm follows attention
_LFM2 = _Names(
    first_norm="operator_norm",
    mlp_norm="ffn_norm",
    last_norm="embedding_norm",
    attention_out="self_attn.out_proj",
    q_norm="self_attn.q_layernorm",
    k_norm="self_attn.k_layernorm",
    gate="feed_forward.w1",
    up="feed_forward.w3",
    down="feed_forward.w2",
)


def read_layer_weights(
    reader: TensorReader, config: DecoderConfig, prefix: str, context_tokens: int
) -> tuple[Tensor, list[LayerWeights]]:
    """Return the first norm, and the layers with the norms that follow them."""
    names = _GEMMA if config.gemma else _LFM2 if config.hybrid is not None else _LLAMA
    tables = {rope: _tables(rope, config.head_dim, context_tokens, reader.device) for rope in set(config.ropes)}
    norms = [_norm(reader, config, f"{prefix}layers.{index}.{names.first_norm}") for index in range(config.layers)]
    norms.append(_norm(reader, config, f"{prefix}{names.last_norm}"))
    layers: list[LayerWeights] = []
    for index in range(config.layers):
        layer = _LayerReader(reader, config, names, f"{prefix}layers.{index}.", index, norms[index + 1])
        layers.append(layer.convolution() if layer.convolves else layer.attention(tables[config.ropes[index]]))
    return norms[0], layers


@dataclass(frozen=True, slots=True)
class _LayerReader:
    """Reads one layer."""

    reader: TensorReader
    config: DecoderConfig
    names: _Names
    prefix: str
    index: int
    next_norm: Tensor

    @property
    def convolves(self) -> bool:
        """Whether the layer has a convolution in the place of attention."""
        return self.config.hybrid is not None and self.index in self.config.hybrid.convolutions

    def attention(self, tables: tuple[Tensor, Tensor]) -> AttentionWeights:
        """Return a layer with attention."""
        config, names = self.config, self.names
        q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
        parts = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        mix, mix_bias = self._matrix(parts, [q, kv, kv], config.hidden_size, bias=config.qkv_bias)
        out, out_bias = self._matrix((names.attention_out,), [config.hidden_size], q, bias=config.out_bias)
        return AttentionWeights(
            mix=mix,
            mix_bias=mix_bias,
            out=out,
            out_bias=out_bias,
            q_norm=self._head_norm(names.q_norm),
            k_norm=self._head_norm(names.k_norm),
            cos=tables[0],
            sin=tables[1],
            window=config.windows[self.index],
            after_attention_norm=self._gemma_norm("post_attention_layernorm"),
            mlp_norm=self._norm(names.mlp_norm),
            feed=self._feed(),
            after_mlp_norm=self._gemma_norm("post_feedforward_layernorm"),
            next_norm=self.next_norm,
        )

    def convolution(self) -> ConvolutionWeights:
        """Return a layer with a short convolution."""
        hidden, hybrid = self.config.hidden_size, self.config.hybrid
        assert hybrid is not None, "only a hybrid model has convolutions"
        mix, mix_bias = self._matrix(("conv.in_proj",), [3 * hidden], hidden, bias=hybrid.conv_bias)
        out, out_bias = self._matrix(("conv.out_proj",), [hidden], hidden, bias=hybrid.conv_bias)
        taps = self.reader.floats(f"{self.prefix}conv.conv.weight", (hidden, 1, hybrid.taps))
        return ConvolutionWeights(
            mix=mix,
            mix_bias=mix_bias,
            out=out,
            out_bias=out_bias,
            taps=taps[:, 0].t().contiguous(),
            taps_bias=self.reader.vector(f"{self.prefix}conv.conv.bias", hidden) if hybrid.conv_bias else None,
            mlp_norm=self._norm(self.names.mlp_norm),
            feed=self._feed(),
            next_norm=self.next_norm,
        )

    def _feed(self) -> DenseWeights | ExpertWeights:
        config, names = self.config, self.names
        hidden, inner = config.hidden_size, config.intermediate_size
        if config.experts is not None and self.index >= config.experts.dense_layers:
            return read_experts(self.reader, config.experts, hidden, f"{self.prefix}feed_forward.")
        gate_up, gate_up_bias = self._matrix((names.gate, names.up), [inner, inner], hidden, bias=config.mlp_bias)
        down, down_bias = self._matrix((names.down,), [hidden], inner, bias=config.mlp_bias)
        return DenseWeights(gate_up, gate_up_bias, down, down_bias)

    def _matrix(
        self, parts: tuple[str, ...], outs: list[int], inputs: int, *, bias: bool
    ) -> tuple[Weight, Tensor | None]:
        names = [self.prefix + part for part in parts]
        weight = self.reader.matrix([f"{name}.weight" for name in names], outs, inputs)
        return weight, self.reader.bias([f"{name}.bias" for name in names], outs) if bias else None

    def _norm(self, name: str) -> Tensor:
        return _norm(self.reader, self.config, self.prefix + name)

    def _gemma_norm(self, name: str) -> Tensor | None:
        return self._norm(name) if self.config.gemma else None

    def _head_norm(self, name: str) -> Tensor | None:
        config = self.config
        return _norm(self.reader, config, self.prefix + name, config.head_dim) if config.qk_norm else None


def _norm(reader: TensorReader, config: DecoderConfig, name: str, size: int = 0) -> Tensor:
    weight = reader.vector(f"{name}.weight", size or config.hidden_size)
    return weight + 1.0 if config.gemma else weight


def _tables(rope: Rope, head_dim: int, positions: int, device: torch.device) -> tuple[Tensor, Tensor]:
    cos, sin = rope.tables(head_dim, positions)
    return cos.to(device), sin.to(device)
