"""The decoder of Qwen3-TTS's 12 Hz tokenizer: frames of codes to 24 kHz samples, many streams at once, as they come.

A frame's codes are looked up and summed; a transformer over a window of frames, then convolutions at ever higher rates
turn them into samples. Nothing looks ahead: one frame in, its samples out. encoder.py is the tokenizer's other half.

    state = codec.state(streams, max_frames)        one row per stream, all zero: every stream is at its beginning
    codec.decode(codes, state, rows) -> samples     the next frames of the streams `rows`: any number, any mixture
    state.reset(row), state.copy(source, target)    begin again; copy a stream's state to another row

A stream's state is its row of `state` and nothing else: the ends of the inputs of every convolution, and the last keys
and values of every layer in a ring. So nothing is decoded twice, and samples depend neither on how frames are cut into
calls nor on other streams (but for the rounding of products of another shape). decode reads no tensor on the host: with
codes, rows and samples at fixed addresses it can be a CUDA graph.

The package's own decode starts over every 300 frames with 25 frames of context. This one equals its decoder run over
all frames at once.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from voxlane.engine.kernels.attention.ring import Moment, Ring, ring_attention
from voxlane.engine.kernels.conv.causal import causal_conv, causal_upsample, depthwise_conv, extend, point_add
from voxlane.engine.kernels.linear.linear import linear
from voxlane.engine.kernels.norm.activation import silu_mul
from voxlane.engine.kernels.norm.layer_norm import gelu, layer_norm
from voxlane.engine.kernels.norm.rms_norm import add_rms_norm, rms_norm
from voxlane.engine.models.loading import Progress
from voxlane.engine.models.qwen3_tts.codec_config import CodecConfig
from voxlane.engine.models.qwen3_tts.codec_weights import (
    NEXT_EPS,
    CodecWeights,
    Conv,
    Next,
    Place,
    Snake,
    Stage,
    load_weights,
)
from voxlane.engine.models.rotary import Rope
from voxlane.engine.weights.tensors import WeightFile

TRIED_FRAMES = 16


class CodecState:
    """The states of all streams: a row of numbers and a count of frames each."""

    def __init__(self, config: CodecConfig, tails: list[Place], streams: int, max_frames: int, like: Tensor) -> None:
        self.max_frames = max_frames
        # A call writes all its frames before any attends: the last must not overwrite what the first still needs.
        self.ring = config.window - 1 + max_frames
        cached = (config.layers, self.ring, config.kv_heads, config.head_dim)
        shapes = [cached, cached, *((tail.length, tail.channels) for tail in tails)]
        sizes = [torch.Size(shape).numel() for shape in shapes]
        self.frames = torch.zeros(streams, dtype=torch.int64, device=like.device)
        self.numbers = torch.zeros(streams, sum(sizes), dtype=like.dtype, device=like.device)
        split = torch.split(self.numbers, sizes, dim=1)
        parts = [part.view(streams, *shape) for part, shape in zip(split, shapes, strict=True)]
        self.keys, self.values = parts[:2]  # [streams, layers, ring, kv_heads, head_dim]
        self.tails = parts[2:]  # [streams, length, channels] each

    @property
    def stream_bytes(self) -> int:
        """Return the memory that one stream takes."""
        return self.numbers[0].nbytes + self.frames[0].nbytes

    def reset(self, row: int) -> None:
        """Reset a stream to its beginning."""
        self.numbers[row].zero_()
        self.frames[row].zero_()

    def copy(self, source: int, target: int) -> None:
        """Copy the state of `source` to `target`."""
        self.numbers[target].copy_(self.numbers[source])
        self.frames[target].copy_(self.frames[source])

    def extend(self, place: Place, x: Tensor, rows: Tensor, curve: Snake | None = None) -> Tensor:
        """Return `x` [B, T, channels], or its snake, with the kept end of earlier input in front; keep its end."""
        return extend(x, self.tails[place.index], rows, curve)


class Qwen3TTSCodec:
    """A loaded decoder."""

    def __init__(self, config: CodecConfig, weights: CodecWeights) -> None:
        self.config = config
        self.sample_rate = config.sample_rate
        self.frame_samples = config.frame_samples
        self.groups = config.groups
        self.dtype = weights.table.dtype
        self.parameters = weights.parameters
        self._weights = weights
        device = weights.table.device
        self._first_codes = torch.arange(config.groups, device=device) * config.codebook_size
        # float64: after hours of sound an angle is still right.
        self._frequencies = Rope(config.theta).frequencies(config.head_dim).to(device, torch.float64)

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

    def stays_finite(self) -> bool:
        """Return whether random frames decode to finite samples: numbers may overflow float16."""
        random, device = torch.Generator().manual_seed(0), self._weights.table.device
        codes = torch.randint(self.config.codebook_size, (1, TRIED_FRAMES, self.groups), generator=random).to(device)
        with torch.inference_mode():
            samples = self.decode(codes, self.state(1, TRIED_FRAMES), torch.zeros(1, dtype=torch.int64, device=device))
        return bool(samples.isfinite().all())

    def state(self, streams: int, max_frames: int = 1) -> CodecState:
        """Return states for so many streams; a call of more than `max_frames` runs in pieces."""
        if streams < 1 or max_frames < 1:
            raise ValueError(f"a state of {streams} streams and {max_frames} frames a call is none")
        return CodecState(self.config, self._weights.tails, streams, max_frames, self._weights.table)

    def decode(self, codes: Tensor, state: CodecState, rows: Tensor) -> Tensor:
        """Return the samples [B, frames * frame_samples] float32, -1 to 1, of `codes` [B, frames, groups] int64.

        `rows` [B] int64 are the streams they continue, each at most once; padding rows may share one unused stream.
        Codes must be below codebook_size: on a CPU that is checked.
        """
        if codes.ndim != 3 or codes.shape[2] != self.groups or not codes.numel() or rows.shape != codes.shape[:1]:
            raise ValueError(
                f"codes {tuple(codes.shape)} and rows {tuple(rows.shape)}: [B, frames, {self.groups}], [B]"
            )
        if codes.is_cpu and not 0 <= int(codes.min()) <= int(codes.max()) < self.config.codebook_size:
            raise ValueError(f"a code is outside 0 to {self.config.codebook_size - 1}")
        pieces = [self._decode(piece, state, rows) for piece in torch.split(codes, state.max_frames, dim=1)]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)

    def _decode(self, codes: Tensor, state: CodecState, rows: Tensor) -> Tensor:
        weights = self._weights
        x = F.embedding(codes + self._first_codes, weights.table).sum(dim=2)
        x = self._transform(_conv(x, weights.first, state, rows), state, rows)
        for block in weights.nexts:
            x = _next(x, block, state, rows)
        x = _conv(x, weights.middle, state, rows)
        for stage in weights.stages:
            x = _stage(x, stage, state, rows)
        x = _conv(x, weights.last, state, rows, weights.last_snake)
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
        state.frames.index_copy_(0, rows, moment.begin + frames)
        return linear(x, weights.out_of.weight, weights.out_of.bias).view(batch, frames, -1)

    def _moment(self, frames: int, state: CodecState, rows: Tensor) -> Moment:
        begin = state.frames.index_select(0, rows)
        positions = begin[:, None] + torch.arange(frames, device=rows.device)  # [B, frames]
        angles = positions[:, :, None] * self._frequencies
        return Moment(rows, begin, angles.cos().to(torch.float32), angles.sin().to(torch.float32))


def _conv(
    x: Tensor, conv: Conv, state: CodecState, rows: Tensor, before: Snake | None = None, after: Snake | None = None
) -> Tensor:
    """Run a convolution, and snakes before and after it."""
    return causal_conv(state.extend(conv.place, x, rows, before), conv.weight, conv.bias, conv.dilation, after)


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
        inner = _conv(x, unit.conv, state, rows, unit.snake, unit.point_snake)
        x = point_add(inner, unit.point, unit.point_bias, x)
    return x
