"""The tensors of Mimi's decoder, in the form that decoding needs, from Hugging Face's names or Kyutai's.

A file may hold more codebooks than are used; those of the unused codes are not read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from torch import Tensor

from voxlane.engine.models.codec_parts import CodecLoader, CodecTensors, Conv, Matrix, Place, Up
from voxlane.engine.models.encoder_decoder import LayerNorm
from voxlane.engine.models.lfm2_audio.mimi_config import STRIDE, MimiConfig
from voxlane.engine.models.loading import Progress, TensorReader
from voxlane.engine.weights.tensors import WeightFile

_DECODES = re.compile(r"(decoder|decoder_transformer|upsample|quantizer)\..*")
_QUANTISER = re.compile(
    r"quantizer\.(semantic|acoustic)_residual_vector_quantizer\."
    r"(?:(input_proj)\.weight|layers\.(\d{1,3})\.codebook\.(initialized|embed_sum|cluster_usage))"
)


@dataclass(frozen=True, slots=True)
class MimiLayer:
    """One layer of the transformer; its scales are in `out` and `down`."""

    attention_norm: LayerNorm
    qkv: Matrix
    out: Matrix
    mlp_norm: LayerNorm
    up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class MimiUnit:
    """A residual unit: a dilated convolution, and one that sees a single step."""

    conv: Conv
    point: Tensor  # [channels, channels / compress]
    point_bias: Tensor


@dataclass(frozen=True, slots=True)
class MimiStage:
    """An upsampling that halves the channels, and the residual units after it."""

    place: Place
    up: Up
    units: list[MimiUnit]


@dataclass(frozen=True, slots=True)
class MimiWeights:
    """All of them, in the order of computation."""

    table: Tensor  # [groups * codebook_size, hidden]
    spread_place: Place
    spread: Tensor  # [taps, stride, hidden] float32: from the rate of frames to the transformer's
    layers: list[MimiLayer]
    first: Conv
    stages: list[MimiStage]
    last: Conv
    tails: list[Place]
    parameters: int


def load_mimi(
    weights: WeightFile,
    config: MimiConfig,
    groups: int,
    dtype: torch.dtype,
    device: torch.device,
    progress: Progress | None,
) -> MimiWeights:
    """Read the decoder's tensors under Hugging Face's names, or raise TensorError that names the one at fault."""
    aliases = {name: name for name in weights.names() if _DECODES.fullmatch(name)}  # the rest is the encoder's
    reader = TensorReader(weights, aliases, "float32", device, progress)
    loaded = read_mimi(reader, config, groups, dtype)
    reader.finish(ignored=[name for name in aliases if _is_spare(name, config, groups)])
    return loaded


def read_mimi(reader: CodecTensors, config: MimiConfig, groups: int, dtype: torch.dtype) -> MimiWeights:
    """Ask `reader` for every tensor of the decoder; matrices, tables and convolutions become `dtype`."""
    return _MimiLoader(reader, config, groups, dtype).all()


class _MimiLoader(CodecLoader):
    """Reads the tensors of Mimi's decoder."""

    def __init__(self, reader: CodecTensors, config: MimiConfig, groups: int, dtype: torch.dtype) -> None:
        super().__init__(reader, dtype)
        self._config = config
        self._groups = groups

    def all(self) -> MimiWeights:
        config, hidden, count = self._config, self._config.hidden_size, len(self._config.ratios)
        block = 2 + config.residual_layers  # modules of a stage: a curve, the upsampling, the units
        return MimiWeights(
            table=self._table().to(self._dtype),
            spread_place=self._place(1, hidden),
            spread=self._spread(),
            layers=[self._layer(f"decoder_transformer.layers.{index}.") for index in range(config.layers)],
            first=self._conv("decoder.layers.0.conv", config.filters << count, hidden, config.kernel),
            stages=[self._stage(1 + block * index, index) for index in range(count)],
            last=self._conv(f"decoder.layers.{2 + block * count}.conv", 1, config.filters, config.last_kernel),
            tails=self._places,
            parameters=self._reader.parameters,
        )

    def _table(self) -> Tensor:
        """Return the codebooks of all used codes, projected."""
        config, tables = self._config, []
        for part, groups in (("semantic", 1), ("acoustic", self._groups - 1)):
            prefix, projection = f"quantizer.{part}_residual_vector_quantizer.", None
            if config.projected:
                shape = (config.hidden_size, config.codebook_dim, 1)
                projection = self._floats(f"{prefix}output_proj.weight", *shape)[:, :, 0]
            books = [f"{prefix}layers.{index}.codebook." for index in range(groups)]
            names = ((f"{book}embed_sum", f"{book}cluster_usage") for book in books)
            tables.append(self._books(names, projection, config.codebook_size, config.codebook_dim))
        return torch.cat(tables)

    def _spread(self) -> Tensor:
        """Return the weights of the upsampling of single channels, the oldest input's first."""
        weight = self._floats("upsample.conv.weight", self._config.hidden_size, 1, 2 * STRIDE)[:, 0]
        return weight.view(-1, 2, STRIDE).flip(1).permute(1, 2, 0).contiguous()

    def _layer(self, name: str) -> MimiLayer:
        config, hidden, inner = self._config, self._config.hidden_size, self._config.intermediate_size
        q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
        biased = config.attention_bias
        out = self._pair(f"{name}self_attn.o_proj", hidden, q, biased=biased)
        down = self._floats(f"{name}mlp.fc2.weight", hidden, inner)
        return MimiLayer(
            attention_norm=self._norm(f"{name}input_layernorm"),
            qkv=self._qkv(f"{name}self_attn", q, kv, hidden, biased=biased),
            out=self._scaled(self._floats(f"{name}self_attn_layer_scale.scale", hidden), *out),
            mlp_norm=self._norm(f"{name}post_attention_layernorm"),
            up=self._floats(f"{name}mlp.fc1.weight", inner, hidden).to(self._dtype),
            down=self._scaled(self._floats(f"{name}mlp_layer_scale.scale", hidden), down, None).weight,
        )

    def _norm(self, name: str) -> LayerNorm:
        size = self._config.hidden_size
        return LayerNorm(self._floats(f"{name}.weight", size), self._floats(f"{name}.bias", size))

    def _stage(self, module: int, index: int) -> MimiStage:
        config = self._config
        wide = config.filters << len(config.ratios) - index
        ratio = config.ratios[index]
        return MimiStage(
            place=self._place(1, wide),
            up=self._up(f"decoder.layers.{module + 1}.conv", wide, wide // 2, ratio, 2 * ratio),
            units=[
                self._unit(f"decoder.layers.{module + 2 + order}.block.", wide // 2, config.dilation_growth**order)
                for order in range(config.residual_layers)
            ],
        )

    def _unit(self, name: str, channels: int, dilation: int) -> MimiUnit:
        inner = channels // self._config.compress
        conv = self._conv(f"{name}1.conv", inner, channels, self._config.residual_kernel, dilation)
        return MimiUnit(conv, *self._point(f"{name}3.conv", channels, inner))


def _is_spare(name: str, config: MimiConfig, groups: int) -> bool:
    """Return whether a tensor is for encoding, for training, or for unused codes."""
    found = _QUANTISER.fullmatch(name)
    if not found:
        return False
    part, into, number, what = found.groups()
    if into:
        return config.projected
    unused = range(groups - 1, config.quantisers - 1) if part == "acoustic" else range(0)
    return what == "initialized" or int(number) in unused
