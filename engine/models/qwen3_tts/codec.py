"""The decoder of Qwen3-TTS's 12 Hz tokenizer: frames of codes to 24 kHz samples, many streams at once, as they come.

A frame's codes are looked up and summed; a transformer over a window of frames, then convolutions at ever higher rates
turn them into samples. Nothing looks ahead: one frame in, its samples out. encoder.py is the tokenizer's other half.

streaming_codec.py says how it is called and what a stream's state is.

The package's own decode starts over every 300 frames with 25 frames of context. This one equals its decoder run over
all frames at once.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from voxlane.engine.kernels.attention.ring import Ring, ring_attention
from voxlane.engine.kernels.conv.causal import causal_upsample, depthwise_conv, point_add
from voxlane.engine.kernels.linear.linear import linear
from voxlane.engine.kernels.norm.activation import silu_mul
from voxlane.engine.kernels.norm.layer_norm import gelu, layer_norm
from voxlane.engine.kernels.norm.rms_norm import add_rms_norm, rms_norm
from voxlane.engine.models.loading import Progress
from voxlane.engine.models.qwen3_tts.codec_config import CodecConfig
from voxlane.engine.models.qwen3_tts.codec_weights import NEXT_EPS, CodecWeights, Next, Stage, load_weights
from voxlane.engine.models.streaming_codec import CodecAttention, CodecState, StreamingCodec, run_conv
from voxlane.engine.weights.tensors import WeightFile

__all__ = ["CodecState", "Qwen3TTSCodec"]


class Qwen3TTSCodec(StreamingCodec):
    """A loaded decoder."""

    def __init__(self, config: CodecConfig, weights: CodecWeights) -> None:
        attention = CodecAttention(config.layers, config.kv_heads, config.head_dim, config.window, config.theta)
        super().__init__(attention, weights.table, config.groups, config.codebook_size, weights.tails)
        self.config = config
        self.sample_rate = config.sample_rate
        self.frame_samples = config.frame_samples
        self.parameters = weights.parameters
        self._weights = weights

    @classmethod
    def load(
        cls,
        weights: WeightFile,
        dtype: torch.dtype = torch.float32,
        progress: Progress | None = None,
        device: str | torch.device = "cpu",
    ) -> Qwen3TTSCodec:
        """Read a decoder, or raise ModelError with one line that names the config key or tensor at fault."""
        config = CodecConfig.from_dict(weights.config)
        return cls(config, load_weights(weights, config, dtype, torch.device(device), progress))

    def _decode(self, codes: Tensor, state: CodecState, rows: Tensor) -> Tensor:
        weights = self._weights
        x = F.embedding(codes + self._first_codes, weights.table).sum(dim=2)
        x = self._transform(run_conv(x, weights.first, state, rows), state, rows)
        for block in weights.nexts:
            x = _next(x, block, state, rows)
        x = run_conv(x, weights.middle, state, rows)
        for stage in weights.stages:
            x = _stage(x, stage, state, rows)
        x = run_conv(x, weights.last, state, rows, weights.last_snake)
        return x.squeeze(2).to(torch.float32).clamp_(-1, 1)

    def _transform(self, x: Tensor, state: CodecState, rows: Tensor) -> Tensor:
        """Run the transformer over `x` [B, frames, latent]."""
        weights, eps = self._weights, self.config.norm_eps
        batch, frames, _ = x.shape
        moment = self._moment(frames, state, rows)
        residual = linear(x.flatten(0, 1), weights.into.weight, weights.into.bias).to(torch.float32)
        x = rms_norm(residual, weights.layers[0].attention_norm, eps, self.dtype)
        for index, layer in enumerate(weights.layers):
            qkv = linear(x, layer.qkv.weight, layer.qkv.bias).view(batch, frames, -1)
            ring = Ring(state.keys[:, index], state.values[:, index], self.config.window)
            x = linear(ring_attention(qkv, self.config.heads, ring, moment), layer.out.weight, layer.out.bias)
            x, residual = add_rms_norm(x, residual, layer.mlp_norm, eps)
            x = linear(silu_mul(linear(x, layer.gate_up)), layer.down)
            x, residual = add_rms_norm(x, residual, layer.next_norm, eps)
        return linear(x, weights.out_of.weight, weights.out_of.bias).view(batch, frames, -1)


def _next(x: Tensor, block: Next, state: CodecState, rows: Tensor) -> Tensor:
    """Stretch `x` [B, T, latent] and run a ConvNeXt block over it."""
    x = causal_upsample(x, block.up.matrix, block.up.bias, block.up.stride)
    inner = depthwise_conv(state.extend(block.place, x, rows), block.taps, block.taps_bias).flatten(0, 1)
    inner = layer_norm(inner, block.norm, block.norm_bias, NEXT_EPS)
    inner = gelu(linear(inner, block.widen.weight, block.widen.bias))
    return x + linear(inner, block.narrow.weight, block.narrow.bias).view_as(x)


def _stage(x: Tensor, stage: Stage, state: CodecState, rows: Tensor) -> Tensor:
    """Stretch `x` [B, T, channels] into half as many channels and run the residual units over it."""
    x = state.extend(stage.place, x, rows, stage.snake)
    x = causal_upsample(x, stage.up.matrix, stage.up.bias, stage.up.stride)
    for unit in stage.units:
        inner = run_conv(x, unit.conv, state, rows, unit.snake, unit.point_snake)
        x = point_add(inner, unit.point, unit.point_bias, x)
    return x
