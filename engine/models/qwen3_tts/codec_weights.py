"""The tensors of a Qwen3-TTS 12 Hz tokenizer's decoder, in the form that decoding needs.

Constant work is done here, in float32 before anything is rounded: codebooks are projected, scales go into the matrix
before them, transposed convolutions become matrices, and the snakes' logarithms are undone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from voxlane.engine.kernels.conv.causal import conv_weight, upsample_matrix
from voxlane.engine.models.loading import Progress, TensorReader
from voxlane.engine.models.qwen3_tts.codec_config import CodecConfig
from voxlane.engine.weights.tensors import WeightFile

NEXT_EPS = 1e-6
"""Of the ConvNeXt blocks' layer norms: the configuration does not name it. Below, likewise:"""
_MIN_USAGE = 1e-5  # a codebook entry that was never used is divided by this
_SNAKE_EPS = 1e-9  # added to what the snake divides by
_FIRST_TAPS, _TAPS = 3, 7
_DILATIONS = (1, 3, 9)

_PREFIX = "decoder."


@dataclass(frozen=True, slots=True)
class Place:
    """Where a stream's state keeps the end of one convolution's input."""

    index: int
    length: int
    channels: int


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix [out, in] and its bias [out], if it has one."""

    weight: Tensor
    bias: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Up:
    """What causal_upsample takes."""

    matrix: Tensor  # [stride * out, taps * in]
    bias: Tensor  # [stride * out]
    stride: int


@dataclass(frozen=True, slots=True)
class Conv:
    """A causal convolution."""

    weight: Tensor  # conv_weight's
    bias: Tensor
    dilation: int
    place: Place


Snake = tuple[Tensor, Tensor]  # frequency and depth of each channel, float32


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of the transformer. `next_norm` is the norm that follows: the next layer's first, or the last."""

    attention_norm: Tensor
    qkv: Matrix
    out: Matrix
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor
    next_norm: Tensor


@dataclass(frozen=True, slots=True)
class Next:
    """An upsampling that keeps the channels, and the ConvNeXt block after it."""

    up: Up
    place: Place
    taps: Tensor  # [channels, 7] float32
    taps_bias: Tensor  # float32
    norm: Tensor
    norm_bias: Tensor
    widen: Matrix
    narrow: Matrix


@dataclass(frozen=True, slots=True)
class Unit:
    """A residual unit: a dilated convolution, and one that sees a single step."""

    snake: Snake
    conv: Conv
    point_snake: Snake
    point: Tensor  # [channels, channels]
    point_bias: Tensor


@dataclass(frozen=True, slots=True)
class Stage:
    """An upsampling that halves the channels, and the residual units after it."""

    snake: Snake
    place: Place
    up: Up
    units: list[Unit]


@dataclass(frozen=True, slots=True)
class CodecWeights:
    """All of them, in the order of computation."""

    table: Tensor  # [groups * codebook_size, codebook_dim]
    first: Conv
    into: Matrix
    layers: list[Layer]
    out_of: Matrix
    nexts: list[Next]
    middle: Conv
    stages: list[Stage]
    last_snake: Snake
    last: Conv
    tails: list[Place]
    parameters: int


def load_weights(
    weights: WeightFile, config: CodecConfig, dtype: torch.dtype, device: torch.device, progress: Progress | None
) -> CodecWeights:
    """Read the decoder's tensors from a tokenizer's file, or raise TensorError that names the one at fault."""
    names = [name for name in weights.names() if name.startswith(_PREFIX)]  # the rest is the encoder's
    aliases = {name.removeprefix(_PREFIX): name for name in names}
    reader = TensorReader(weights, aliases, "float32", device, progress)
    loaded = read_weights(reader, config, dtype)
    reader.finish(ignored=[f"quantizer.rvq_{part}.input_proj.weight" for part in ("first", "rest")])
    return loaded


class CodecTensors(Protocol):
    """Where tensors come from."""

    parameters: int

    def floats(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return a tensor of this shape as float32."""


def read_weights(reader: CodecTensors, config: CodecConfig, dtype: torch.dtype) -> CodecWeights:
    """Ask `reader` for every tensor of the decoder; matrices, tables and convolutions become `dtype`."""
    return _Loader(reader, config, dtype).all()


class _Loader:
    """Reads tensors in the order of computation, and gives every convolution its place in the state."""

    def __init__(self, reader: CodecTensors, config: CodecConfig, dtype: torch.dtype) -> None:
        self._reader = reader
        self._config = config
        self._dtype = dtype
        self._places: list[Place] = []

    def all(self) -> CodecWeights:
        config, latent, hidden = self._config, self._config.latent_dim, self._config.hidden_size
        count = len(config.rates)
        last_dim = config.decoder_dim >> count
        return CodecWeights(
            table=self._table().to(self._dtype),
            first=self._conv("pre_conv.conv", latent, config.codebook_dim, _FIRST_TAPS),
            into=self._matrix("pre_transformer.input_proj", hidden, latent),
            layers=[self._layer(index) for index in range(config.layers)],
            out_of=self._matrix("pre_transformer.output_proj", latent, hidden),
            nexts=[self._next(f"upsample.{index}.", ratio) for index, ratio in enumerate(config.ratios)],
            middle=self._conv("decoder.0.conv", config.decoder_dim, latent, _TAPS),
            stages=[self._stage(index, rate) for index, rate in enumerate(config.rates)],
            last_snake=self._snake(f"decoder.{count + 1}", last_dim),
            last=self._conv(f"decoder.{count + 2}.conv", 1, last_dim, _TAPS),
            tails=self._places,
            parameters=self._reader.parameters,
        )

    def _table(self) -> Tensor:
        """Return all codebooks, projected."""
        config, half = self._config, self._config.codebook_dim // 2
        tables = []
        for part, groups in (("first", 1), ("rest", config.groups - 1)):
            prefix = f"quantizer.rvq_{part}."
            projection = self._floats(f"{prefix}output_proj.weight", config.codebook_dim, half, 1)[:, :, 0]
            for index in range(groups):
                book = f"{prefix}vq.layers.{index}._codebook."
                total = self._floats(f"{book}embedding_sum", config.codebook_size, half)
                usage = self._floats(f"{book}cluster_usage", config.codebook_size).clamp(min=_MIN_USAGE)
                tables.append(total / usage[:, None] @ projection.T)
        return torch.cat(tables)

    def _layer(self, index: int) -> Layer:
        config, hidden, prefix = self._config, self._config.hidden_size, "pre_transformer."
        name = f"{prefix}layers.{index}."
        q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
        inner, biased = config.intermediate_size, config.attention_bias
        attention_scale = self._floats(f"{name}self_attn_layer_scale.scale", hidden)
        mlp_scale = self._floats(f"{name}mlp_layer_scale.scale", hidden)
        parts = [
            self._pair(f"{name}self_attn.{part}_proj", size, hidden, biased=biased)
            for part, size in zip("qkv", (q, kv, kv), strict=True)
        ]
        out, out_bias = self._pair(f"{name}self_attn.o_proj", hidden, q, biased=biased)
        gate_up = [self._floats(f"{name}mlp.{part}_proj.weight", inner, hidden) for part in ("gate", "up")]
        down = self._floats(f"{name}mlp.down_proj.weight", hidden, inner)
        after = f"{prefix}layers.{index + 1}.input_layernorm" if index + 1 < config.layers else f"{prefix}norm"
        biases = [bias for _, bias in parts if bias is not None]
        return Layer(
            attention_norm=self._floats(f"{name}input_layernorm.weight", hidden),
            qkv=self._as_matrix(torch.cat([weight for weight, _ in parts]), torch.cat(biases) if biases else None),
            out=self._as_matrix(
                out * attention_scale[:, None], None if out_bias is None else out_bias * attention_scale
            ),
            mlp_norm=self._floats(f"{name}post_attention_layernorm.weight", hidden),
            gate_up=torch.cat(gate_up).to(self._dtype),
            down=(down * mlp_scale[:, None]).to(self._dtype),
            next_norm=self._floats(f"{after}.weight", hidden),
        )

    def _next(self, prefix: str, ratio: int) -> Next:
        latent, block = self._config.latent_dim, f"{prefix}1."
        gamma = self._floats(f"{block}gamma", latent)
        narrow, narrow_bias = self._pair(f"{block}pwconv2", latent, 4 * latent)
        assert narrow_bias is not None
        return Next(
            up=self._up(f"{prefix}0.conv", latent, latent, ratio, ratio),
            place=self._place(_TAPS - 1, latent),
            taps=self._floats(f"{block}dwconv.conv.weight", latent, 1, _TAPS)[:, 0].contiguous(),
            taps_bias=self._floats(f"{block}dwconv.conv.bias", latent),
            norm=self._floats(f"{block}norm.weight", latent),
            norm_bias=self._floats(f"{block}norm.bias", latent),
            widen=self._matrix(f"{block}pwconv1", 4 * latent, latent),
            narrow=self._as_matrix(narrow * gamma[:, None], narrow_bias * gamma),
        )

    def _stage(self, index: int, rate: int) -> Stage:
        prefix = f"decoder.{index + 1}.block."
        wide, narrow = self._config.decoder_dim >> index, self._config.decoder_dim >> index + 1
        return Stage(
            snake=self._snake(f"{prefix}0", wide),
            place=self._place(1, wide),
            up=self._up(f"{prefix}1.conv", wide, narrow, rate, 2 * rate),
            units=[self._unit(f"{prefix}{order + 2}.", narrow, dilation) for order, dilation in enumerate(_DILATIONS)],
        )

    def _unit(self, prefix: str, channels: int, dilation: int) -> Unit:
        point = self._floats(f"{prefix}conv2.conv.weight", channels, channels, 1)[:, :, 0]
        return Unit(
            snake=self._snake(f"{prefix}act1", channels),
            conv=self._conv(f"{prefix}conv1.conv", channels, channels, _TAPS, dilation),
            point_snake=self._snake(f"{prefix}act2", channels),
            point=point.to(self._dtype).contiguous(),
            point_bias=self._floats(f"{prefix}conv2.conv.bias", channels).to(self._dtype),
        )

    def _conv(self, name: str, outputs: int, inputs: int, taps: int, dilation: int = 1) -> Conv:
        weight = conv_weight(self._floats(f"{name}.weight", outputs, inputs, taps).to(self._dtype))
        bias = self._floats(f"{name}.bias", outputs).to(self._dtype)
        return Conv(weight, bias, dilation, self._place((taps - 1) * dilation, inputs))

    def _up(self, name: str, inputs: int, outputs: int, stride: int, kernel: int) -> Up:
        matrix = upsample_matrix(self._floats(f"{name}.weight", inputs, outputs, kernel), stride)
        bias = self._floats(f"{name}.bias", outputs).repeat(stride)
        return Up(matrix.to(self._dtype), bias.to(self._dtype), stride)

    def _snake(self, name: str, channels: int) -> Snake:
        frequency = self._floats(f"{name}.alpha", channels).exp()
        return frequency, 1.0 / (self._floats(f"{name}.beta", channels).exp() + _SNAKE_EPS)

    def _matrix(self, name: str, outputs: int, inputs: int) -> Matrix:
        return self._as_matrix(*self._pair(name, outputs, inputs))

    def _pair(self, name: str, outputs: int, inputs: int, *, biased: bool = True) -> tuple[Tensor, Tensor | None]:
        weight = self._floats(f"{name}.weight", outputs, inputs)
        return weight, self._floats(f"{name}.bias", outputs) if biased else None

    def _as_matrix(self, weight: Tensor, bias: Tensor | None) -> Matrix:
        return Matrix(weight.to(self._dtype).contiguous(), None if bias is None else bias.to(self._dtype))

    def _floats(self, name: str, *shape: int) -> Tensor:
        return self._reader.floats(name, shape)

    def _place(self, length: int, channels: int) -> Place:
        self._places.append(Place(len(self._places), length, channels))
        return self._places[-1]
