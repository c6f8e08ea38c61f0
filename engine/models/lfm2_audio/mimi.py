"""The decoder of Mimi, LFM2-Audio's codec: frames of codes to 24 kHz samples, many streams at once, as they come.

A frame's codes are looked up and summed, and become two positions; a transformer over a window of positions, then
convolutions at ever higher rates turn them into samples. Nothing looks ahead: one frame in, its samples out.
streaming_codec.py says how it is called and what a stream's state is.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from voxlane.engine.kernels.attention.ring import Moment, Ring, ring_attention
from voxlane.engine.kernels.conv.causal import causal_upsample, depthwise_upsample, elu, point_add
from voxlane.engine.kernels.linear.linear import linear
from voxlane.engine.kernels.norm.layer_norm import add_layer_norm, gelu, layer_norm
from voxlane.engine.models.lfm2_audio.mimi_config import STRIDE, MimiConfig
from voxlane.engine.models.lfm2_audio.mimi_weights import MimiStage, MimiWeights, load_mimi
from voxlane.engine.models.loading import Progress
from voxlane.engine.models.streaming_codec import CodecAttention, CodecState, StreamingCodec, run_conv
from voxlane.engine.weights.tensors import WeightFile

GROUPS = 8
"""Codes a frame that LFM2-Audio makes."""


class MimiCodec(StreamingCodec):
    """A loaded decoder."""

    def __init__(self, config: MimiConfig, groups: int, weights: MimiWeights) -> None:
        attention = CodecAttention(config.layers, config.kv_heads, config.head_dim, config.window, config.theta, STRIDE)
        super().__init__(attention, weights.table, groups, config.codebook_size, weights.tails)
        self.config = config
        self.sample_rate = config.sample_rate
        self.frame_samples = config.frame_samples
        self.parameters = weights.parameters
        self._weights = weights

    @classmethod
    def load(
        cls,
        weights: WeightFile,
        groups: int = GROUPS,
        dtype: torch.dtype = torch.float32,
        progress: Progress | None = None,
        device: str | torch.device = "cpu",
    ) -> MimiCodec:
        """Read a decoder of so many codes a frame, or raise ModelError with one line that names what is wrong."""
        config = MimiConfig.from_dict(weights.config)
        if not 2 <= groups <= config.quantisers:
            raise ValueError(f"{groups} codes a frame of {config.quantisers} codebooks: 2 at least")
        return cls(config, groups, load_mimi(weights, config, groups, dtype, torch.device(device), progress))

    def _decode(self, codes: Tensor, state: CodecState, rows: Tensor) -> Tensor:
        weights = self._weights
        x = F.embedding(codes + self._first_codes, weights.table).sum(dim=2)
        x = depthwise_upsample(state.extend(weights.spread_place, x, rows), weights.spread)
        x = self._transform(x, self._moment(codes.shape[1], state, rows), state)
        x = run_conv(x, weights.first, state, rows)
        for stage in weights.stages:
            x = _stage(x, stage, state, rows)
        x = run_conv(elu(x), weights.last, state, rows)
        return x.squeeze(2).to(torch.float32).clamp_(-1, 1)

    def _transform(self, x: Tensor, moment: Moment, state: CodecState) -> Tensor:
        """Run the transformer over `x` [B, positions, hidden]."""
        weights, config = self._weights, self.config
        batch, positions, hidden = x.shape
        residual = x.flatten(0, 1).to(torch.float32)
        inner: Tensor | None = None  # what the layer before adds
        for index, layer in enumerate(weights.layers):
            norm = layer.attention_norm
            if inner is None:
                inner = layer_norm(residual, norm.weight, norm.bias, config.norm_eps, self.dtype)
            else:
                inner, residual = add_layer_norm(inner, residual, norm.weight, norm.bias, config.norm_eps)
            qkv = linear(inner, layer.qkv.weight, layer.qkv.bias).view(batch, positions, -1)
            ring = Ring(state.keys[:, index], state.values[:, index], config.window)
            seen = linear(ring_attention(qkv, config.heads, ring, moment), layer.out.weight, layer.out.bias)
            norm = layer.mlp_norm
            inner, residual = add_layer_norm(seen, residual, norm.weight, norm.bias, config.norm_eps)
            inner = linear(gelu(linear(inner, layer.up)), layer.down)
        assert inner is not None, "a transformer has a layer at least"
        return (residual + inner).to(self.dtype).view(batch, positions, hidden)


def _stage(x: Tensor, stage: MimiStage, state: CodecState, rows: Tensor) -> Tensor:
    """Stretch `x` [B, T, channels] into half as many channels and run the residual units over it."""
    x = state.extend(stage.place, elu(x), rows)
    x = causal_upsample(x, stage.up.matrix, stage.up.bias, stage.up.stride)
    for unit in stage.units:
        inner = elu(run_conv(elu(x), unit.conv, state, rows))
        x = point_add(inner, unit.point, unit.point_bias, x)
    return x
