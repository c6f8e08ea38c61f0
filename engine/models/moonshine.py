"""Moonshine: speech recognition whose cost grows with the length of the clip.

Raw 16 kHz samples go through three convolutions (41.7 states a second) and a rotary transformer; a decoder with gated
feed-forwards writes the words.

How a runner uses this or Whisper (the same names in both). Two kinds of work fit into one step:

    encode   a request's clip, whole, once per look at it
             states = model.states(samples)        how many cache slots the scheduler must find: ceil(states / block)
                                                   blocks in a table of their own, beside the request's token table
             encoded = model.encode(clips)         several requests' clips in one call
             model.write_cross(encoded.states, slots, pages)
    decode   tokens, as for a chat model, in the same pages: prompts and single tokens of many requests in one call
             model.forward(tokens, layout, Cross(lengths, block_tables), pages) -> hidden;  model.logits(hidden)

A row may decode in the step that encodes it: encode first, then forward. Pausing keeps both tables; swapping moves both
tables' blocks; recomputing encodes again. A clip that has grown is encoded again as a whole, and the tokens after the
prompt are dropped with it, because every state depends on the whole clip.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from voxlane.engine.kernels.conv.conv import columns, conv, conv_together, flatten, output_length
from voxlane.engine.kernels.norm.layer_norm import gelu, tanh
from voxlane.engine.models.clips import JoinedSound
from voxlane.engine.models.encoder_decoder import (
    EPS,
    DecoderLayer,
    EncoderDecoder,
    EncoderDecoderWeights,
    EncoderLayer,
    LayerNorm,
    Projection,
)
from voxlane.engine.models.loading import Mode, Progress, TensorReader
from voxlane.engine.models.rotary import Rope
from voxlane.engine.models.settings import Settings
from voxlane.engine.models.spelling import Spelling
from voxlane.engine.weights.tensors import Blocks, WeightFile

SAMPLE_RATE = 16_000
_CONVOLUTIONS = ((127, 64), (7, 3), (3, 2))  # (kernel, stride)
SAMPLES_PER_STATE = 64 * 3 * 2
MIN_SAMPLES = 127 + 64 * (7 + 3 * 2 - 1)
"""895: samples of one state. A shorter clip is padded with silence."""
MAX_SAMPLES = 64 * SAMPLE_RATE
"""It was trained on clips of 4 to 30 s and still works at 60 s; attention's cost grows with the square."""


@dataclass(frozen=True, slots=True)
class MoonshineConfig:
    """The numbers of one checkpoint."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    encoder_layers: int
    decoder_layers: int
    heads: int
    context_tokens: int
    rotary_dim: int  # leading dimensions of a head that rotate, in neighbouring pairs
    theta: float
    start_token: int
    eos_token: int
    tied: bool

    @property
    def head_dim(self) -> int:
        """Dimensions of one head."""
        return self.hidden_size // self.heads

    @classmethod
    def from_dict(cls, values: dict[str, object]) -> MoonshineConfig:
        """Read Hugging Face's config.json, or raise ModelConfigError that names the key."""
        settings = Settings(values)
        hidden = settings.integer("hidden_size", 288, maximum=1 << 16)
        heads = settings.integer("decoder_num_attention_heads", 8, maximum=256)
        for key in ("encoder_num_attention_heads", "encoder_num_key_value_heads", "decoder_num_key_value_heads"):
            if settings.integer(key, heads) != heads:
                raise settings.refuse(key, f"must be decoder_num_attention_heads, {heads}")
        if hidden % heads or hidden // heads % 4 or hidden // heads > 256:
            raise settings.refuse("hidden_size", f"{heads} heads of a multiple of 4 up to 256 are needed")
        for key, wanted in (("encoder_hidden_act", "gelu"), ("decoder_hidden_act", "silu")):
            if settings.text(key, wanted) != wanted:
                raise settings.refuse(key, f"only {wanted!r} is supported")
        if settings.flag("attention_bias", default=False):
            raise settings.refuse("attention_bias", "is not supported")
        rope = settings.section("rope_parameters")
        if rope.text("rope_type", "default") != "default":
            raise rope.refuse("rope_type", "only 'default' is supported")
        theta = rope.number("rope_theta", settings.number("rope_theta", 10000.0))
        part = rope.number("partial_rotary_factor", settings.number("partial_rotary_factor", 0.9))
        if part > 1:
            raise settings.refuse("partial_rotary_factor", f"{part} is more than the whole")
        return cls(
            vocab_size=settings.integer("vocab_size", 32768, maximum=1 << 22),
            hidden_size=hidden,
            intermediate_size=settings.integer("intermediate_size", 1152, maximum=1 << 20),
            encoder_layers=settings.integer("encoder_num_hidden_layers", 6, maximum=256),
            decoder_layers=settings.integer("decoder_num_hidden_layers", 6, maximum=256),
            heads=heads,
            context_tokens=settings.integer("max_position_embeddings", 512, maximum=1 << 20),
            rotary_dim=int(hidden // heads * part) // 2 * 2,
            theta=theta,
            start_token=settings.integer("decoder_start_token_id", 1, minimum=0),
            eos_token=settings.integer("eos_token_id", 2, minimum=0),
            tied=settings.flag("tie_word_embeddings", default=True),
        )


class Moonshine(EncoderDecoder):
    """A loaded Moonshine."""

    sample_rate = SAMPLE_RATE
    samples_per_state = SAMPLES_PER_STATE
    max_samples = MAX_SAMPLES

    def __init__(
        self,
        config: MoonshineConfig,
        mode: Mode,
        transformer: EncoderDecoderWeights,
        convolutions: list[Projection],
        group_norm: LayerNorm,
        spelling: Spelling,
        parameters: int,
    ) -> None:
        super().__init__(
            transformer,
            spelling,
            intermediate_size=config.intermediate_size,
            vocab_size=config.vocab_size,
            context_tokens=config.context_tokens,
            parameters=parameters,
        )
        self.config = config
        self.mode = mode
        self.eos_ids = frozenset({config.eos_token})
        self.alignment_heads = _alignment_heads(config)
        self._convolutions = convolutions
        self._group_norm = group_norm

    @classmethod
    def load(
        cls,
        weights: WeightFile,
        spelling: Spelling,
        mode: Mode = "packed",
        progress: Progress | None = None,
        device: str | torch.device = "cpu",
    ) -> Moonshine:
        """Read a model, or raise ModelError with one line that names the config key or tensor at fault."""
        config = MoonshineConfig.from_dict(weights.config)
        names = weights.names()
        aliases = {name: name for name in names if not name.endswith("rotary_emb.inv_freq")}
        reader = TensorReader(_Rearranged(weights, config), aliases, mode, torch.device(device), progress)
        hidden = config.hidden_size
        convolutions = [
            Projection(reader.matrix(["model.encoder.conv1.weight"], [hidden], 127)),
            _projection(reader, "model.encoder.conv2", 2 * hidden, columns(7, hidden)),
            _projection(reader, "model.encoder.conv3", hidden, columns(3, 2 * hidden)),
        ]
        group_norm = LayerNorm(
            reader.vector("model.encoder.groupnorm.weight", hidden),
            reader.vector("model.encoder.groupnorm.bias", hidden),
        )
        transformer = _load_transformer(reader, config, device)
        reader.finish(ignored=["proj_out.weight"] if config.tied else [])
        return cls(config, mode, transformer, convolutions, group_norm, spelling, reader.parameters)

    def prompt_tokens(self, language: str, states: int = 0) -> list[int]:
        """Return what a transcript starts with."""
        return [self.config.start_token]

    def states(self, samples: int) -> int:
        """Return how many encoder states a clip of `samples` becomes."""
        length = max(samples, MIN_SAMPLES)
        for kernel, stride in _CONVOLUTIONS:
            length = output_length(length, kernel, stride)
        return length

    def stem(self, clips: Sequence[Tensor]) -> list[Tensor]:
        """Return the input of the encoder's layers for each clip, [states, hidden] float32.

        Always float32: raw sound has a wider range than the layers' rows.
        """
        if not clips or any(clip.ndim != 1 or len(clip) > MAX_SAMPLES for clip in clips):
            raise ValueError(f"clips of one dimension and at most {MAX_SAMPLES} samples are needed")
        rows = [F.pad(clip, (0, max(0, MIN_SAMPLES - len(clip))))[:, None] for clip in clips]
        first, second, third = self._convolutions
        rows = [self._group(tanh(clip)) for clip in conv(rows, first.weight, None, *_CONVOLUTIONS[0])]
        rows = [gelu(clip) for clip in conv(rows, second.weight, second.bias, *_CONVOLUTIONS[1])]
        return [gelu(clip) for clip in conv(rows, third.weight, third.bias, *_CONVOLUTIONS[2])]

    def join(self, samples: Sequence[int]) -> JoinedSound:
        """Return how clips of so many samples are joined: each begins at a multiple of a state's samples.

        So the windows of all three convolutions begin where they would in the clip alone; others are unused.
        """
        lengths = [max(length, MIN_SAMPLES) for length in samples]
        firsts = list(itertools.accumulate((-(-length // SAMPLES_PER_STATE) for length in lengths), initial=0))
        rows = [output_length(length, *_CONVOLUTIONS[0]) for length in lengths]
        owners = np.full(SAMPLES_PER_STATE // 64 * firsts[-1], -1, dtype=np.int32)
        for clip, (first, count) in enumerate(zip(firsts, rows, strict=False)):
            owners[SAMPLES_PER_STATE // 64 * first :][:count] = clip
        picked = [first + np.arange(self.states(length)) for first, length in zip(firsts, lengths, strict=False)]
        numbers = {
            "owners": owners,
            "picked": np.concatenate(picked).astype(np.int32),
            "heard": np.array(rows, dtype=np.int32),
        }
        starts = [SAMPLES_PER_STATE * first for first in firsts[:-1]]
        return JoinedSound(starts, SAMPLES_PER_STATE * firsts[-1], numbers)

    def joined_samples(self, rows: int, clips: int) -> int:
        """Return the most samples that so many clips of so many states together are joined to."""
        return MIN_SAMPLES + SAMPLES_PER_STATE * (rows + 3 * clips - 1)  # a clip has less than three states more

    def stem_parts(self, rows: int, clips: int) -> dict[str, tuple[int, ...]]:
        """Return the largest shapes of the numbers that `stem_joined` takes beside the sound."""
        windows = output_length(self.joined_samples(rows, clips), *_CONVOLUTIONS[0])
        return {"owners": (windows,), "picked": (rows,), "heard": (clips,)}

    def stem_joined(self, sound: Tensor, parts: Mapping[str, Tensor]) -> Tensor:
        """Do stem's work for joined clips, all at once: [rows, hidden]."""
        first, second, third = (one.dense() for one in self._convolutions)
        x = torch.tanh(conv_together(sound[None, :, None], *first, *_CONVOLUTIONS[0]))
        x = self._group_joined(x[0], parts["owners"], parts["heard"])[None]
        x = F.gelu(conv_together(x, *second, *_CONVOLUTIONS[1]))
        x = F.gelu(conv_together(x, *third, *_CONVOLUTIONS[2]))
        return x[0, parts["picked"].long()]

    def _group_joined(self, x: Tensor, owners: Tensor, heard: Tensor) -> Tensor:
        """Do _group's work for rows [T, channels], whose clips are `owners` [T]; `heard` [clips] is how many each has.

        A NaN stays in its clip: rows of other clips are left out of a sum, not multiplied by zero.
        """
        whose = owners == torch.arange(len(heard), device=x.device)[:, None]  # [clips, T]
        numbers = (heard * x.shape[1]).clamp(min=1)
        places = owners.clamp(min=0).long()
        mean = torch.where(whose, x.sum(dim=1), 0.0).sum(dim=1) / numbers
        apart = x - mean[places, None]
        variance = torch.where(whose, apart.square().sum(dim=1), 0.0).sum(dim=1) / numbers
        gain = torch.rsqrt(variance + EPS)[places, None] * self._group_norm.weight
        assert self._group_norm.bias is not None
        return torch.addcmul(self._group_norm.bias, apart, gain)

    def _group(self, x: Tensor) -> Tensor:
        """Normalise over the whole clip [T, channels] at once, then scale each channel."""
        variance, mean = torch.var_mean(x, correction=0)
        gain = self._group_norm.weight * torch.rsqrt(variance + EPS)
        assert self._group_norm.bias is not None
        return torch.addcmul(self._group_norm.bias - mean * gain, x, gain)


# Of tiny's 48 heads, those whose word times come closest to Whisper tiny.en's: each within 0.04 to 0.12 s on average,
# on 34 s of three recordings. Most other heads of the last two layers are off by 0.1 to 0.2 s.
_TINY_HEADS = ((3, 7), (4, 1), (4, 2), (4, 5), (5, 5))


def _alignment_heads(config: MoonshineConfig) -> tuple[tuple[int, int], ...]:
    """Return the (layer, head) pairs that attend to where a word sounds; for unmeasured models the last third's."""
    if (config.decoder_layers, config.heads, config.hidden_size) == (6, 8, 288):
        return _TINY_HEADS
    first = config.decoder_layers - max(1, config.decoder_layers // 3)
    return tuple((layer, head) for layer in range(first, config.decoder_layers) for head in range(config.heads))


class _Rearranged:
    """A Moonshine file with its rows in the order of our kernels.

    Rotation: the file rotates the neighbours (2i, 2i + 1) of the first `rotary_dim` dimensions and no others;
    rope_write rotates (i, i + half). Queries and keys are moved alike, so their products stay the same. Gate: the file
    has it in the second half of fc1, silu_mul in the first. Convolutions become matrices over windows.
    """

    def __init__(self, weights: WeightFile, config: MoonshineConfig) -> None:
        self._weights = weights
        head, turned = config.head_dim, config.rotary_dim
        still = list(range(turned, head))
        half = len(still) // 2
        order = [*range(0, turned, 2), *still[:half], *range(1, turned, 2), *still[half:]]
        rotary = (torch.arange(config.heads)[:, None] * head + torch.tensor(order)).flatten()
        gate_first = torch.arange(2 * config.intermediate_size).roll(config.intermediate_size)
        self._rows: dict[str, Tensor] = {}
        for side, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
            for index in range(layers):
                prefix = f"model.{side}.layers.{index}."
                self._rows[f"{prefix}self_attn.q_proj.weight"] = rotary
                self._rows[f"{prefix}self_attn.k_proj.weight"] = rotary
                if side == "decoder":
                    self._rows[f"{prefix}mlp.fc1.weight"] = self._rows[f"{prefix}mlp.fc1.bias"] = gate_first

    @property
    def config(self) -> dict[str, object]:
        return self._weights.config

    def names(self) -> list[str]:
        return self._weights.names()

    def tensor(self, name: str) -> Tensor:
        tensor = self._weights.tensor(name)
        if ".conv" in name and tensor.ndim == 3:
            # 127 columns cannot be packed, and should not be: in eight bits of raw sound a hum would hide the voice.
            return tensor[:, 0].contiguous() if name.endswith(".conv1.weight") else flatten(tensor)
        rows = self._rows.get(name)
        return tensor if rows is None or len(rows) != len(tensor) else tensor[rows]

    def blocks(self, name: str) -> Blocks | None:
        if ".conv" in name:
            return None
        blocks, rows = self._weights.blocks(name), self._rows.get(name)
        return blocks if blocks is None or rows is None or len(rows) != blocks.shape[0] else blocks.rows(rows)


def _load_transformer(
    reader: TensorReader, config: MoonshineConfig, device: str | torch.device
) -> EncoderDecoderWeights:
    hidden, vocabulary = config.hidden_size, config.vocab_size
    embedding = reader.matrix(["model.decoder.embed_tokens.weight"], [vocabulary], hidden)
    head = embedding if config.tied else reader.matrix(["proj_out.weight"], [vocabulary], hidden)
    longest = MAX_SAMPLES // SAMPLES_PER_STATE
    cos, sin = Rope(config.theta).tables(config.rotary_dim, max(config.context_tokens, longest))
    still = (config.head_dim - config.rotary_dim) // 2  # pairs that do not rotate
    return EncoderDecoderWeights(
        heads=config.heads,
        head_dim=config.head_dim,
        encoder=[_encoder_layer(reader, config, index) for index in range(config.encoder_layers)],
        encoder_norm=LayerNorm(reader.vector("model.encoder.layer_norm.weight", hidden)),
        decoder=[_decoder_layer(reader, config, index) for index in range(config.decoder_layers)],
        decoder_norm=LayerNorm(reader.vector("model.decoder.norm.weight", hidden)),
        embedding=embedding,
        head=head,
        cos=F.pad(cos, (0, still), value=1.0).contiguous().to(device),
        sin=F.pad(sin, (0, still)).contiguous().to(device),
        gated_decoder=True,
        dtype=reader.dtype,
    )


def _encoder_layer(reader: TensorReader, config: MoonshineConfig, index: int) -> EncoderLayer:
    prefix = f"model.encoder.layers.{index}."
    hidden, inner = config.hidden_size, config.intermediate_size
    return EncoderLayer(
        attention_norm=LayerNorm(reader.vector(f"{prefix}input_layernorm.weight", hidden)),
        qkv=_fused(reader, f"{prefix}self_attn.", "qkv", hidden),
        out=_fused(reader, f"{prefix}self_attn.", "o", hidden),
        mlp_norm=LayerNorm(reader.vector(f"{prefix}post_attention_layernorm.weight", hidden)),
        up=_projection(reader, f"{prefix}mlp.fc1", inner, hidden),
        down=_projection(reader, f"{prefix}mlp.fc2", hidden, inner),
    )


def _decoder_layer(reader: TensorReader, config: MoonshineConfig, index: int) -> DecoderLayer:
    prefix = f"model.decoder.layers.{index}."
    hidden, inner = config.hidden_size, config.intermediate_size
    return DecoderLayer(
        attention_norm=LayerNorm(reader.vector(f"{prefix}input_layernorm.weight", hidden)),
        qkv=_fused(reader, f"{prefix}self_attn.", "qkv", hidden),
        out=_fused(reader, f"{prefix}self_attn.", "o", hidden),
        cross_norm=LayerNorm(reader.vector(f"{prefix}post_attention_layernorm.weight", hidden)),
        cross_q=_fused(reader, f"{prefix}encoder_attn.", "q", hidden),
        cross_kv=_fused(reader, f"{prefix}encoder_attn.", "kv", hidden),
        cross_out=_fused(reader, f"{prefix}encoder_attn.", "o", hidden),
        mlp_norm=LayerNorm(reader.vector(f"{prefix}final_layernorm.weight", hidden)),
        up=_projection(reader, f"{prefix}mlp.fc1", 2 * inner, hidden),
        down=_projection(reader, f"{prefix}mlp.fc2", hidden, inner),
    )


def _fused(reader: TensorReader, prefix: str, parts: str, hidden: int) -> Projection:
    names = [f"{prefix}{part}_proj.weight" for part in parts]
    return Projection(reader.matrix(names, [hidden] * len(names), hidden))


def _projection(reader: TensorReader, name: str, outputs: int, inputs: int) -> Projection:
    return Projection(reader.matrix([f"{name}.weight"], [outputs], inputs), reader.bias([f"{name}.bias"], [outputs]))
