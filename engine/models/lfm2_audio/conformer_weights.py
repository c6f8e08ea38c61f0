"""The tensors of LFM2-Audio's FastConformer encoder and of the adapter after it, under NeMo's names.

Batch norms become part of the convolutions before them, in float32 before anything is rounded.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from voxlane.engine.models.encoder_decoder import LayerNorm, Projection
from voxlane.engine.models.lfm2_audio.conformer_config import ConformerConfig
from voxlane.engine.models.lfm2_audio.derived_tensors import Derived, DerivedTensors
from voxlane.engine.models.loading import TensorReader
from voxlane.engine.weights.tensors import WeightFile

PREFIX, ADAPTER = "conformer.", "audio_adapter."
BATCH_NORM_EPS = 1e-5
"""torch's default, which the configuration does not name."""

_KERNEL = 3  # of the convolutions that shorten a spectrogram, in both directions
_POINTS = (".pointwise_conv1.weight", ".pointwise_conv2.weight")


@dataclass(frozen=True, slots=True)
class Halving:
    """A convolution that halves a spectrogram in both directions and, but for the first, one that mixes channels."""

    weight: Tensor  # [channels, 1, 3, 3]
    bias: Tensor
    mix: tuple[Tensor, Tensor] | None  # [channels, channels, 1, 1], and its bias


@dataclass(frozen=True, slots=True)
class ConformerLayer:
    """One layer of the encoder."""

    first_norm: LayerNorm
    first_up: Projection
    first_down: Projection
    attention_norm: LayerNorm
    qkv: Projection
    distance: Projection  # makes keys of distances
    content_bias: Tensor  # [heads, head_dim]
    distance_bias: Tensor
    out: Projection
    conv_norm: LayerNorm
    widen: Projection  # [2 * hidden, hidden]
    taps: Tensor  # [hidden, kernel] float32
    taps_bias: Tensor
    narrow: Projection
    last_norm: LayerNorm
    last_up: Projection
    last_down: Projection
    out_norm: LayerNorm


@dataclass(frozen=True, slots=True)
class ConformerWeights:
    """All of them, in the order of computation."""

    halvings: list[Halving]
    stem_out: Projection  # [hidden, channels * bands]
    layers: list[ConformerLayer]
    adapter_norm: LayerNorm
    adapter_up: Projection
    adapter_down: Projection  # [backbone's hidden, backbone's hidden]


def read_conformer(reader: TensorReader, config: ConformerConfig, output_size: int) -> ConformerWeights:
    """Ask `reader`, over flat_points, for every tensor of the encoder and the adapter."""
    hidden = config.hidden_size
    adapter = f"{ADAPTER}model."
    return ConformerWeights(
        halvings=[_halving(reader, config.channels, index) for index in range(config.halvings)],
        stem_out=_projection(reader, f"{PREFIX}pre_encode.out", hidden, config.channels * config.bands),
        layers=[_layer(reader, config, f"{PREFIX}layers.{index}.") for index in range(config.layers)],
        adapter_norm=_norm(reader, f"{adapter}0", hidden),
        adapter_up=_projection(reader, f"{adapter}1", output_size, hidden),
        adapter_down=_projection(reader, f"{adapter}3", output_size, output_size),
    )


def spare_names(config: ConformerConfig) -> list[str]:
    """Return the names of tensors that encoding does not need."""
    return [f"{PREFIX}layers.{index}.conv.batch_norm.num_batches_tracked" for index in range(config.layers)]


def flat_points(weights: WeightFile) -> DerivedTensors:
    """Return the file with its convolutions that see a single row as matrices."""
    names = weights.names()
    points = {name: Derived((name,), _flat) for name in names if name.endswith(_POINTS)}
    return DerivedTensors(weights, {name: points.get(name, name) for name in names}, weights.config)


def _flat(tensor: Tensor) -> Tensor:
    return tensor.squeeze(2) if tensor.ndim == 3 else tensor  # the reader refuses any other shape


def _halving(reader: TensorReader, channels: int, index: int) -> Halving:
    """Read a halving; modules are counted with the curves between them, and the first halving has no mix."""
    module = 0 if index == 0 else 3 * index - 1
    name = f"{PREFIX}pre_encode.conv.{module}"
    weight = reader.floats(f"{name}.weight", (channels, 1, _KERNEL, _KERNEL))
    bias, mix = reader.vector(f"{name}.bias", channels), None
    if index:
        name = f"{PREFIX}pre_encode.conv.{module + 1}"
        mix = (
            reader.floats(f"{name}.weight", (channels, channels, 1, 1)).to(reader.dtype),
            reader.vector(f"{name}.bias", channels).to(reader.dtype),
        )
    return Halving(weight.to(reader.dtype), bias.to(reader.dtype), mix)


def _layer(reader: TensorReader, config: ConformerConfig, name: str) -> ConformerLayer:
    hidden, inner, heads = config.hidden_size, config.intermediate_size, (config.heads, config.head_dim)
    attention, conv = f"{name}self_attn.", f"{name}conv."
    parts = [f"{attention}linear_{part}" for part in "qkv"]
    taps, taps_bias = _normed_taps(reader, config, conv)
    return ConformerLayer(
        first_norm=_norm(reader, f"{name}norm_feed_forward1", hidden),
        first_up=_projection(reader, f"{name}feed_forward1.linear1", inner, hidden),
        first_down=_projection(reader, f"{name}feed_forward1.linear2", hidden, inner),
        attention_norm=_norm(reader, f"{name}norm_self_att", hidden),
        qkv=Projection(
            reader.matrix([f"{part}.weight" for part in parts], [hidden] * 3, hidden),
            reader.bias([f"{part}.bias" for part in parts], [hidden] * 3),
        ),
        distance=Projection(reader.matrix([f"{attention}linear_pos.weight"], [hidden], hidden)),
        content_bias=reader.floats(f"{attention}pos_bias_u", heads).to(reader.dtype),
        distance_bias=reader.floats(f"{attention}pos_bias_v", heads).to(reader.dtype),
        out=_projection(reader, f"{attention}linear_out", hidden, hidden),
        conv_norm=_norm(reader, f"{name}norm_conv", hidden),
        widen=_projection(reader, f"{conv}pointwise_conv1", 2 * hidden, hidden),
        taps=taps,
        taps_bias=taps_bias,
        narrow=_projection(reader, f"{conv}pointwise_conv2", hidden, hidden),
        last_norm=_norm(reader, f"{name}norm_feed_forward2", hidden),
        last_up=_projection(reader, f"{name}feed_forward2.linear1", inner, hidden),
        last_down=_projection(reader, f"{name}feed_forward2.linear2", hidden, inner),
        out_norm=_norm(reader, f"{name}norm_out", hidden),
    )


def _normed_taps(reader: TensorReader, config: ConformerConfig, name: str) -> tuple[Tensor, Tensor]:
    """Return the taps and the bias of a depthwise convolution and the batch norm after it."""
    hidden = config.hidden_size
    taps = reader.floats(f"{name}depthwise_conv.weight", (hidden, 1, config.kernel))[:, 0]
    bias = reader.vector(f"{name}depthwise_conv.bias", hidden)
    mean, variance, weight, shift = (
        reader.vector(f"{name}batch_norm.{part}", hidden) for part in ("running_mean", "running_var", "weight", "bias")
    )
    scale = weight * torch.rsqrt(variance + BATCH_NORM_EPS)
    return (taps * scale[:, None]).contiguous(), (bias - mean) * scale + shift


def _projection(reader: TensorReader, name: str, outputs: int, inputs: int) -> Projection:
    return Projection(reader.matrix([f"{name}.weight"], [outputs], inputs), reader.bias([f"{name}.bias"], [outputs]))


def _norm(reader: TensorReader, name: str, size: int) -> LayerNorm:
    return LayerNorm(reader.vector(f"{name}.weight", size), reader.vector(f"{name}.bias", size))
