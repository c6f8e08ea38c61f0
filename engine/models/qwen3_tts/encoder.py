"""The encoder of Qwen3-TTS's 12 Hz tokenizer: a clip of speech to the frames of codes that a talker imitates.

Convolutions shorten the clip a thousandfold, a transformer runs over the rest, and each frame becomes codes: one for
what is said, each other one for the residual of those before it. A clip is encoded once and its frames kept, so plain
torch in float32 is fast enough.

The convolutions take the clip piece by piece, and each keeps the end of its input: a minute of sound at 64 channels
would otherwise be 370 MB for one layer's input alone. Nothing looks ahead, so the pieces do not change the result.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from voxlane.engine.models.loading import Progress, TensorReader
from voxlane.engine.models.qwen3_tts.encoder_config import EncoderConfig
from voxlane.engine.models.rotary import Rope
from voxlane.engine.weights.tensors import WeightFile

PIECE_FRAMES = 8
"""How much of a clip the convolutions take at once: two thirds of a second, 16 MB at the widest."""

_PREFIX = "encoder."
_MIN_USAGE = 1e-5  # a codebook entry that was never used is divided by this
_HALVING_TAPS = 4  # of the last convolution, which halves the rate
_QUANTISER = re.compile(
    r"quantizer\.(semantic|acoustic)_residual_vector_quantizer\."
    r"(?:(output_proj\.weight)|layers\.(\d{1,3})\.codebook\.(initialized|embed_sum|cluster_usage))"
)


class Qwen3TTSEncoder:
    """A loaded encoder."""

    def __init__(self, config: EncoderConfig, weights: dict[str, Tensor]) -> None:
        self.config = config
        self.sample_rate = config.sample_rate
        self.frame_samples = config.frame_samples
        self._weights = weights

    @classmethod
    def load(cls, weights: WeightFile, progress: Progress | None = None) -> Qwen3TTSEncoder:
        """Read an encoder, or raise ModelError with one line that names the config key or tensor at fault."""
        config = EncoderConfig.from_dict(weights.config)
        names = [name for name in weights.names() if name.startswith(_PREFIX)]  # the rest is the decoder's
        aliases = {name.removeprefix(_PREFIX): name for name in names}
        reader = TensorReader(weights, aliases, "float32", torch.device("cpu"), progress)
        loaded = read_weights(reader, config)
        reader.finish(ignored=[name for name in aliases if _is_spare(name, config)])
        return cls(config, loaded)

    def encode(self, samples: Tensor, check: Callable[[], None] = lambda: None) -> Tensor:
        """Return the codes [frames, groups] int64 of a clip [samples] float32, within -1 and 1; any length but none.

        `check` is called before each piece of the work, some tenths of a second, and may raise to give it up.
        """
        if samples.ndim != 1 or not len(samples):
            raise ValueError(f"samples {tuple(samples.shape)}: one dimension of at least one is needed")
        return self._quantise(self.vectors(samples, check))

    def vectors(self, samples: Tensor, check: Callable[[], None] = lambda: None) -> Tensor:
        """Return the rows that are quantised, [frames, hidden]."""
        tails: dict[str, Tensor] = {}
        found: list[Tensor] = []
        pieces = torch.split(samples.to(torch.float32)[None, None], PIECE_FRAMES * self.frame_samples, dim=2)
        for piece in pieces:
            check()
            found.append(self._shorten(piece, tails))
        check()
        x = self._transform(torch.cat(found, dim=2)[0].T)
        margin = _HALVING_TAPS - 2
        x = F.pad(x.T[None], (margin, len(x) % 2), mode="replicate")
        return F.conv1d(x, self._weights["downsample.conv.weight"], stride=2)[0].T

    def _shorten(self, x: Tensor, tails: dict[str, Tensor]) -> Tensor:
        """Return the next outputs [1, hidden, n] of the convolutions; only the last piece may end within a frame."""
        config, index = self.config, 1
        x = self._conv("encoder.layers.0", x, tails)
        for ratio in config.ratios:
            for order in range(config.residual_layers):
                x = self._residual(f"encoder.layers.{index}.", x, config.dilation_growth**order, tails)
                index += 1
            x = self._conv(f"encoder.layers.{index + 1}", F.elu(x), tails, stride=ratio)
            index += 2
        return self._conv(f"encoder.layers.{index + 1}", F.elu(x), tails)

    def _residual(self, name: str, x: Tensor, dilation: int, tails: dict[str, Tensor]) -> Tensor:
        inner = self._conv(f"{name}block.1", F.elu(x), tails, dilation=dilation)
        inner = self._conv(f"{name}block.3", F.elu(inner), tails)
        return inner + (self._conv(f"{name}shortcut", x, tails) if self.config.shortcut else x)

    def _conv(self, name: str, x: Tensor, tails: dict[str, Tensor], *, stride: int = 1, dilation: int = 1) -> Tensor:
        """Return a causal convolution of the new input, and keep its end for the next piece."""
        weight = self._weights[f"{name}.conv.weight"]
        length = (weight.shape[2] - 1) * dilation + 1 - stride
        before = tails.get(name)
        whole = F.pad(x, (length, 0)) if before is None else torch.cat((before, x), dim=2)
        tails[name] = whole[:, :, whole.shape[2] - length :]
        if rest := -x.shape[2] % stride:
            whole = F.pad(whole, (0, rest))
        return F.conv1d(whole, weight, self._weights[f"{name}.conv.bias"], stride=stride, dilation=dilation)

    def _transform(self, x: Tensor) -> Tensor:
        """Run the transformer over `x` [positions, hidden]."""
        config = self.config
        angles = Rope(config.theta).tables(config.head_dim, len(x))
        for index in range(config.layers):
            name = f"encoder_transformer.layers.{index}."
            seen = self._attend(f"{name}self_attn.", self._norm(f"{name}input_layernorm", x), *angles)
            x = x + self._weights[f"{name}self_attn_layer_scale.scale"] * seen
            inner = F.linear(self._norm(f"{name}post_attention_layernorm", x), self._weights[f"{name}mlp.fc1.weight"])
            inner = F.linear(F.gelu(inner), self._weights[f"{name}mlp.fc2.weight"])
            x = x + self._weights[f"{name}mlp_layer_scale.scale"] * inner
        return x

    def _norm(self, name: str, x: Tensor) -> Tensor:
        weight, bias = self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]
        return F.layer_norm(x, weight.shape, weight, bias, self.config.norm_eps)

    def _attend(self, name: str, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        config = self.config
        q, k, v = (self._linear(f"{name}{part}_proj", x).view(len(x), -1, config.head_dim) for part in "qkv")
        q, k = (_rotate(part, cos[:, None], sin[:, None]) for part in (q, k))
        q, k, v = (part.transpose(0, 1)[None] for part in (q, k, v))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=config.heads != config.kv_heads)
        return self._linear(f"{name}o_proj", seen[0].transpose(0, 1).reshape(len(x), -1))

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self._weights[f"{name}.weight"], self._weights.get(f"{name}.bias"))

    def _quantise(self, x: Tensor) -> Tensor:
        """Return the codes of `x` [frames, hidden]: the nearest entry of a book, then of the next to the residual."""
        codes = []
        for part, groups in (("semantic", 1), ("acoustic", self.config.groups - 1)):
            rest = F.linear(x, self._weights[f"{part}.projection"]) if self.config.projected else x
            for index in range(groups):
                book = self._weights[f"{part}.{index}"]
                codes.append(torch.cdist(rest[None], book[None])[0].argmin(dim=1))
                rest = rest - book[codes[-1]]
        return torch.stack(codes, dim=1)


class EncoderTensors(Protocol):
    """Where tensors come from."""

    def floats(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return a tensor of this shape as float32."""


def read_weights(reader: EncoderTensors, config: EncoderConfig) -> dict[str, Tensor]:
    """Ask `reader` for every tensor of the encoder."""
    return _Loader(reader, config).all()


class _Loader:
    """Reads the encoder's tensors, under their own names; codebooks as they are looked up."""

    def __init__(self, reader: EncoderTensors, config: EncoderConfig) -> None:
        self._reader = reader
        self._config = config
        self._weights: dict[str, Tensor] = {}

    def all(self) -> dict[str, Tensor]:
        config = self._config
        self._convolutions()
        for index in range(config.layers):
            self._layer(f"encoder_transformer.layers.{index}.")
        self._take("downsample.conv.weight", config.hidden_size, config.hidden_size, _HALVING_TAPS)
        self._books("semantic", 1)
        self._books("acoustic", config.groups - 1)
        return self._weights

    def _convolutions(self) -> None:
        config, width, index = self._config, self._config.filters, 1
        self._conv("encoder.layers.0", width, 1, config.kernel)
        for ratio in config.ratios:
            for _ in range(config.residual_layers):
                name, inner = f"encoder.layers.{index}.", width // config.compress
                self._conv(f"{name}block.1", inner, width, config.residual_kernel)
                self._conv(f"{name}block.3", width, inner, 1)
                if config.shortcut:
                    self._conv(f"{name}shortcut", width, width, 1)
                index += 1
            self._conv(f"encoder.layers.{index + 1}", 2 * width, width, 2 * ratio)
            width, index = 2 * width, index + 2
        self._conv(f"encoder.layers.{index + 1}", config.hidden_size, width, config.last_kernel)

    def _layer(self, name: str) -> None:
        config, hidden, inner = self._config, self._config.hidden_size, self._config.intermediate_size
        q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
        for part, out, inputs in (("q", q, hidden), ("k", kv, hidden), ("v", kv, hidden), ("o", hidden, q)):
            self._take(f"{name}self_attn.{part}_proj.weight", out, inputs)
            if config.attention_bias:
                self._take(f"{name}self_attn.{part}_proj.bias", out)
        self._take(f"{name}mlp.fc1.weight", inner, hidden)
        self._take(f"{name}mlp.fc2.weight", hidden, inner)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            self._take(f"{name}{norm}.weight", hidden)
            self._take(f"{name}{norm}.bias", hidden)
        for scale in ("self_attn_layer_scale", "mlp_layer_scale"):
            self._take(f"{name}{scale}.scale", hidden)

    def _books(self, part: str, groups: int) -> None:
        config, prefix = self._config, f"quantizer.{part}_residual_vector_quantizer."
        if config.projected:
            projection = self._reader.floats(f"{prefix}input_proj.weight", (config.codebook_dim, config.hidden_size, 1))
            self._weights[f"{part}.projection"] = projection[:, :, 0].contiguous()
        for index in range(groups):
            book = f"{prefix}layers.{index}.codebook."
            total = self._reader.floats(f"{book}embed_sum", (config.codebook_size, config.codebook_dim))
            usage = self._reader.floats(f"{book}cluster_usage", (config.codebook_size,)).clamp(min=_MIN_USAGE)
            self._weights[f"{part}.{index}"] = total / usage[:, None]

    def _conv(self, name: str, outputs: int, inputs: int, taps: int) -> None:
        self._take(f"{name}.conv.weight", outputs, inputs, taps)
        self._take(f"{name}.conv.bias", outputs)

    def _take(self, name: str, *shape: int) -> None:
        self._weights[name] = self._reader.floats(name, shape)


def _is_spare(name: str, config: EncoderConfig) -> bool:
    """Return whether a tensor is for decoding, for training, or for unused codes."""
    found = _QUANTISER.fullmatch(name)
    if not found:
        return False
    part, back, number, what = found.groups()
    if back:
        return config.projected
    unused = range(config.groups - 1, config.quantisers - 1) if part == "acoustic" else range(0)
    return what == "initialized" or int(number) in unused


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
