"""LFM2-Audio's encoder, a FastConformer: a clip's spectrogram in, rows for the backbone out, 12.5 of them a second.

Convolutions shorten the spectrogram eightfold. In each layer every row attends to the whole clip, so a row is known
only when the clip is. What can be done while a person speaks is the spectrogram (nemo_mel.py); its scaling, the
convolutions and the layers wait for the end of the clip. clip_stream.py has the other way: windows with a look-ahead.

Several clips run together: products take the rows of all of them, attention and convolutions one clip after the other.
So a clip's bits do not depend on the clips beside it where the products' do not.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from voxlane.engine.kernels.attention.relative import Distances, attend_clip, relative_attention
from voxlane.engine.kernels.conv.causal import depthwise_conv
from voxlane.engine.kernels.norm.layer_norm import add_layer_norm, gelu, layer_norm
from voxlane.engine.models.encoder_decoder import EPS, LayerNorm
from voxlane.engine.models.lfm2_audio.conformer_config import ConformerConfig
from voxlane.engine.models.lfm2_audio.conformer_weights import ConformerLayer, ConformerWeights, Halving, read_conformer
from voxlane.engine.models.loading import TensorReader

MAX_TIMESCALE = 10_000.0
_FIRST_REACH = 256
"""Rows of the clips that distances are first computed for: 20 s."""


class Conformer:
    """A loaded encoder."""

    def __init__(
        self, config: ConformerConfig, weights: ConformerWeights, output_size: int, dtype: torch.dtype
    ) -> None:
        self.config = config
        self.output_size = output_size  # the backbone's hidden size
        self.dtype = dtype
        self.device = weights.halvings[0].weight.device
        self._weights = weights
        self._distances: list[Distances] = []
        self._reach = 0

    @classmethod
    def read(cls, reader: TensorReader, config: ConformerConfig, output_size: int) -> Conformer:
        """Read the encoder and the adapter; `reader` is over flat_points, `output_size` is the backbone's."""
        return cls(config, read_conformer(reader, config, output_size), output_size, reader.dtype)

    def encode(self, mels: Sequence[Tensor]) -> list[Tensor]:
        """Return the backbone's input rows [states, output_size] of spectrograms [frames, bins]."""
        return list(torch.split(self._adapt(torch.cat(self.encode_rows(mels))), self._states(mels)))

    def encode_rows(self, mels: Sequence[Tensor]) -> list[Tensor]:
        """Return the encoder's own rows [states, hidden] of spectrograms [frames, bins], before the adapter."""
        longest = self.config.max_states * (1 << self.config.halvings)
        if not mels or any(mel.ndim != 2 or not 0 < len(mel) <= longest for mel in mels):
            raise ValueError(f"spectrograms of 1 to {longest} frames are needed")
        lengths = self._states(mels)
        self._extend_distances(max(lengths))
        rows = torch.cat([self._stem(self._sent(mel)) for mel in mels])
        for layer, distances in zip(self._weights.layers, self._distances, strict=True):
            rows = self._layer(rows, layer, distances, lengths)
        return list(torch.split(rows.to(self.dtype), lengths))

    def prepare(self, states: int) -> list[Distances]:
        """Compute what clips of up to so many rows need; return it, for a graph that must keep it."""
        self._extend_distances(states)
        return self._distances

    def encode_padded(self, mel: Tensor, frames: Tensor) -> Tensor:
        """Return the backbone's input rows of a spectrogram [n, bins] that is zero from `frames` [] int64 on.

        Rows past the clip's own are noise. Shapes depend on n alone, a multiple of what becomes one row: as a graph
        needs. `prepare` comes first.
        """
        rows = self._stem(mel, frames)
        valid = _before(len(rows), frames, self.config.halvings)
        for layer, distances in zip(self._weights.layers, self._distances, strict=True):
            rows = self._layer(rows, layer, distances, [len(rows)], valid)
        return self._adapt(rows.to(self.dtype))

    def _states(self, mels: Sequence[Tensor]) -> list[int]:
        return [-(-len(mel) // (1 << self.config.halvings)) for mel in mels]

    def _sent(self, mel: Tensor) -> Tensor:
        """Return a spectrogram on the encoder's device; a copy from pinned memory does not wait for queued work."""
        if self.device.type == "cuda" and mel.is_cpu:
            mel = mel.pin_memory()
        return mel.to(self.device, torch.float32, non_blocking=True)

    def _stem(self, mel: Tensor, frames: Tensor | None = None) -> Tensor:
        """Return the layers' input [states, hidden] float32 of a spectrogram [n, bins], of which `frames` are known."""
        x = mel.to(self.dtype)[None]
        by_taps = frames is not None or not x.is_cpu
        for times, halving in enumerate(self._weights.halvings, start=1):
            x = F.relu(halve_by_taps(x, halving) if by_taps else halve(x, halving))
            if frames is not None:
                x = x * _before(x.shape[1], frames, times)[:, None]
        rows = x.transpose(0, 1).flatten(1).contiguous()  # [states, channels * bands]
        return self._weights.stem_out(rows).to(torch.float32) * self.config.input_scale

    def _layer(
        self,
        residual: Tensor,
        layer: ConformerLayer,
        distances: Distances,
        lengths: list[int],
        valid: Tensor | None = None,
    ) -> Tensor:
        """Run a layer over rows [T, hidden] float32, which it overwrites; return its output, float32.

        With `valid` [T] bool it is one clip, whose other rows do not count.
        """
        x = _norm(residual, layer.first_norm, self.dtype)
        x = layer.first_down(F.silu(layer.first_up(x))).mul_(0.5)
        x, residual = _add_norm(x, residual, layer.attention_norm)
        qkv = layer.qkv(x)
        seen = (
            relative_attention(qkv, lengths, distances) if valid is None else attend_clip(qkv, distances, valid=valid)
        )
        x = layer.out(seen)
        x, residual = _add_norm(x, residual, layer.conv_norm)
        x = F.glu(layer.widen(x), dim=1)
        x = layer.narrow(self._convolve(x if valid is None else x * valid[:, None], layer, lengths))
        x, residual = _add_norm(x, residual, layer.last_norm)
        x = layer.last_down(F.silu(layer.last_up(x))).mul_(0.5)
        residual += x
        return _norm(residual, layer.out_norm, torch.float32)

    def _convolve(self, x: Tensor, layer: ConformerLayer, lengths: list[int]) -> Tensor:
        """Return each channel's convolution over its own clip; beyond a clip's ends there are zeros."""
        margin = self.config.kernel // 2
        clips = [
            depthwise_conv(F.pad(clip, (0, 0, margin, margin))[None], layer.taps, layer.taps_bias)[0]
            for clip in torch.split(x, lengths)
        ]
        return F.silu(torch.cat(clips))

    def _adapt(self, rows: Tensor) -> Tensor:
        weights = self._weights
        x = _norm(rows, weights.adapter_norm, self.dtype)
        return weights.adapter_down(gelu(weights.adapter_up(x)))

    def _extend_distances(self, states: int) -> None:
        """Compute every layer's keys of distances up to `states`; they are the same for all clips."""
        if states <= self._reach:
            return
        self._reach = max(_FIRST_REACH, 1 << (states - 1).bit_length())
        waves = _waves(self._reach, self.config.hidden_size).to(self.device, self.dtype)
        self._distances = [
            Distances(layer.distance(waves), layer.content_bias, layer.distance_bias) for layer in self._weights.layers
        ]


def halve(x: Tensor, halving: Halving) -> Tensor:
    """Return `x` [1 or channels, frames, bands] halved in both directions, [channels, …]."""
    x = F.conv2d(x[None], halving.weight, halving.bias, stride=2, padding=1, groups=len(x))
    return x[0] if halving.mix is None else F.conv2d(x, *halving.mix)[0]


def halve_by_taps(x: Tensor, halving: Halving) -> Tensor:
    """Do halve's work tap by tap, in float32, for CUDA: cuDNN makes a new plan for every length of a clip."""
    height, width = (-(-size // 2) for size in x.shape[1:])
    x, weight = F.pad(x.to(torch.float32), (1, 1, 1, 1)), halving.weight.to(torch.float32)
    out = halving.bias.to(torch.float32)[:, None, None].expand(-1, height, width)
    for down, right in itertools.product(range(weight.shape[2]), range(weight.shape[3])):
        seen = x[:, down : down + 2 * height - 1 : 2, right : right + 2 * width - 1 : 2]
        out = torch.addcmul(out, seen, weight[:, 0, down, right, None, None])
    out = out.to(halving.weight.dtype)
    if halving.mix is None:
        return out
    mix, bias = halving.mix
    return torch.addmm(bias[:, None], mix.flatten(1), out.flatten(1)).view(-1, height, width)


def _before(count: int, frames: Tensor, halvings: int) -> Tensor:
    """Return which of `count` rows a clip of `frames` [] int64 has after so many halvings."""
    step = 1 << halvings
    return torch.arange(count, device=frames.device) < (frames + step - 1) // step


def _waves(reach: int, width: int) -> Tensor:
    """Return sines and cosines [2 reach - 1, width], in turn, of the distances reach - 1 down to 1 - reach."""
    steps = torch.exp(torch.arange(0, width, 2, dtype=torch.float32) * (-math.log(MAX_TIMESCALE) / width))
    angles = torch.arange(reach - 1, -reach, -1, dtype=torch.float32)[:, None] * steps
    return torch.stack((angles.sin(), angles.cos()), dim=2).flatten(1)


def _norm(x: Tensor, norm: LayerNorm, dtype: torch.dtype) -> Tensor:
    return layer_norm(x, norm.weight, norm.bias, EPS, dtype)


def _add_norm(x: Tensor, residual: Tensor, norm: LayerNorm) -> tuple[Tensor, Tensor]:
    return add_layer_norm(x, residual, norm.weight, norm.bias, EPS)
