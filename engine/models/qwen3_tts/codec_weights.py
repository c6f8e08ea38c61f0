"""The tensors of a Qwen3-TTS 12 Hz tokenizer's decoder, in the form that decoding needs.

What codec_parts.py says of constant work holds here too; and the snakes' logarithms are undone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from voxlane.engine.models.codec_parts import CodecLoader, CodecTensors, Conv, Matrix, Place, Up
from voxlane.engine.models.loading import Progress, TensorReader
from voxlane.engine.models.qwen3_tts.codec_config import CodecConfig
from voxlane.engine.weights.tensors import WeightFile

NEXT_EPS = 1e-6
"""Of the ConvNeXt blocks' layer norms: the configuration does not name it. Below, likewise:"""
_SNAKE_EPS = 1e-9  # added to what the snake divides by
_FIRST_TAPS, _TAPS = 3, 7
_DILATIONS = (1, 3, 9)

_PREFIX = "decoder."


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


def read_weights(reader: CodecTensors, config: CodecConfig, dtype: torch.dtype) -> CodecWeights:
    """Ask `reader` for every tensor of the decoder; matrices, tables and convolutions become `dtype`."""
    return _Loader(reader, config, dtype).all()


class _Loader(CodecLoader):
    """Reads the tensors of the 12 Hz tokenizer's decoder."""

    def __init__(self, reader: CodecTensors, config: CodecConfig, dtype: torch.dtype) -> None:
        super().__init__(reader, dtype)
        self._config = config

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
            books = (f"{prefix}vq.layers.{index}._codebook." for index in range(groups))
            names = ((f"{book}embedding_sum", f"{book}cluster_usage") for book in books)
            tables.append(self._books(names, projection, config.codebook_size, half))
        return torch.cat(tables)

    def _layer(self, index: int) -> Layer:
        config, hidden, prefix = self._config, self._config.hidden_size, "pre_transformer."
        name = f"{prefix}layers.{index}."
        q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
        inner, biased = config.intermediate_size, config.attention_bias
        attention_scale = self._floats(f"{name}self_attn_layer_scale.scale", hidden)
        mlp_scale = self._floats(f"{name}mlp_layer_scale.scale", hidden)
        out, out_bias = self._pair(f"{name}self_attn.o_proj", hidden, q, biased=biased)
        gate_up = [self._floats(f"{name}mlp.{part}_proj.weight", inner, hidden) for part in ("gate", "up")]
        down = self._floats(f"{name}mlp.down_proj.weight", hidden, inner)
        after = f"{prefix}layers.{index + 1}.input_layernorm" if index + 1 < config.layers else f"{prefix}norm"
        return Layer(
            attention_norm=self._floats(f"{name}input_layernorm.weight", hidden),
            qkv=self._qkv(f"{name}self_attn", q, kv, hidden, biased=biased),
            out=self._scaled(attention_scale, out, out_bias),
            mlp_norm=self._floats(f"{name}post_attention_layernorm.weight", hidden),
            gate_up=torch.cat(gate_up).to(self._dtype),
            down=(down * mlp_scale[:, None]).to(self._dtype),
            next_norm=self._floats(f"{after}.weight", hidden),
        )

    def _next(self, prefix: str, ratio: int) -> Next:
        latent, block = self._config.latent_dim, f"{prefix}1."
        gamma = self._floats(f"{block}gamma", latent)
        return Next(
            up=self._up(f"{prefix}0.conv", latent, latent, ratio, ratio),
            place=self._place(_TAPS - 1, latent),
            taps=self._floats(f"{block}dwconv.conv.weight", latent, 1, _TAPS)[:, 0].contiguous(),
            taps_bias=self._floats(f"{block}dwconv.conv.bias", latent),
            norm=self._floats(f"{block}norm.weight", latent),
            norm_bias=self._floats(f"{block}norm.bias", latent),
            widen=self._matrix(f"{block}pwconv1", 4 * latent, latent),
            narrow=self._scaled(gamma, *self._pair(f"{block}pwconv2", latent, 4 * latent)),
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
        point, point_bias = self._point(f"{prefix}conv2.conv", channels, channels)
        return Unit(
            snake=self._snake(f"{prefix}act1", channels),
            conv=self._conv(f"{prefix}conv1.conv", channels, channels, _TAPS, dilation),
            point_snake=self._snake(f"{prefix}act2", channels),
            point=point,
            point_bias=point_bias,
        )

    def _snake(self, name: str, channels: int) -> Snake:
        frequency = self._floats(f"{name}.alpha", channels).exp()
        return frequency, 1.0 / (self._floats(f"{name}.beta", channels).exp() + _SNAKE_EPS)
