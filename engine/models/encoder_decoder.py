"""What Moonshine and Whisper share: a transformer that encodes sound, and one that writes tokens and attends to it.

One implementation for both: pre-norm layers, self-attention over pages, cross-attention over pages of the same cache,
feed-forward with or without a gate. Each architecture's own file turns sound into rows. moonshine.py describes the
interface for a runner.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from voxlane.engine.kernels.attention.clip import clip_attention
from voxlane.engine.kernels.attention.paged import gather, paged_attention
from voxlane.engine.kernels.attention.pages import Layout, Pages
from voxlane.engine.kernels.attention.rope import rope_write
from voxlane.engine.kernels.linear.linear import embed, linear
from voxlane.engine.kernels.norm.activation import silu_mul
from voxlane.engine.kernels.norm.layer_norm import add_layer_norm, gelu, layer_norm
from voxlane.engine.models.clips import ENCODER_BLOCK, ClipPlaces, JoinedSound
from voxlane.engine.models.loading import Weight
from voxlane.engine.models.recognition import Cross, Encoded, SpeechModel
from voxlane.engine.models.spec import AttentionLayer, ModelSpec
from voxlane.engine.models.spelling import Spelling

EPS = 1e-5
"""Of every layer norm in both architectures: torch's default, which their configurations do not name."""

Observer = Callable[[int, Tensor], None]  # (layer, cross-attention's queries [T, heads, head_dim])


@dataclass(frozen=True, slots=True)
class Projection:
    """A matrix and its bias."""

    weight: Weight  # [out, in]
    bias: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)

    def dense(self) -> tuple[Tensor, Tensor | None]:
        """Return both as tensors, which they are on a GPU."""
        assert isinstance(self.weight, Tensor), "packed weights are for CPUs"
        return self.weight, self.bias


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """A layer norm."""

    weight: Tensor  # [hidden]
    bias: Tensor | None = None


@dataclass(frozen=True, slots=True)
class EncoderLayer:
    """One layer that attends to the whole clip."""

    attention_norm: LayerNorm
    qkv: Projection  # [3 * heads * head_dim, hidden], query and key rows in the order rope_write turns them
    out: Projection
    mlp_norm: LayerNorm
    up: Projection  # [intermediate, hidden]; gated: [2 * intermediate, hidden], the gate first
    down: Projection


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """One layer that attends to the tokens so far and to the whole clip."""

    attention_norm: LayerNorm
    qkv: Projection
    out: Projection
    cross_norm: LayerNorm
    cross_q: Projection
    cross_kv: Projection  # [2 * heads * head_dim, hidden], keys first
    cross_out: Projection
    mlp_norm: LayerNorm
    up: Projection
    down: Projection


@dataclass(frozen=True, slots=True)
class EncoderDecoderWeights:
    """The numbers and weights of both halves."""

    heads: int
    head_dim: int
    encoder: list[EncoderLayer]
    encoder_norm: LayerNorm
    decoder: list[DecoderLayer]
    decoder_norm: LayerNorm
    embedding: Weight
    head: Weight
    cos: Tensor  # [positions, head_dim / 2], for both halves; ones where positions are learned
    sin: Tensor
    gated_decoder: bool  # silu(gate) * up instead of gelu(up)
    positions: Tensor | None = None  # [context, hidden], added to the embedding: Whisper's learned ones
    dtype: torch.dtype = torch.float32  # of rows between kernels; residuals are float32


class EncoderDecoder(SpeechModel):
    """A loaded speech recogniser: the part that Moonshine and Whisper have in common."""

    def __init__(
        self,
        transformer: EncoderDecoderWeights,
        spelling: Spelling,
        *,
        intermediate_size: int,
        vocab_size: int,
        context_tokens: int,
        parameters: int,
    ) -> None:
        super().__init__(spelling)
        self._parts = transformer
        self._scale = float(transformer.head_dim) ** -0.5
        layer = AttentionLayer(transformer.heads, transformer.heads, transformer.head_dim, self._scale)
        self.spec = ModelSpec(
            layers=(layer,) * len(transformer.decoder),
            hidden_size=len(transformer.decoder_norm.weight),
            intermediate_size=intermediate_size,
            vocab_size=vocab_size,
            context_tokens=context_tokens,
            parameters=parameters,
            activation="silu" if transformer.gated_decoder else "gelu",
        )
        self.vocab_size = vocab_size
        self.context_tokens = context_tokens
        self.parameters = parameters
        self.hidden_size = self.spec.hidden_size
        self.dtype = transformer.dtype
        self.device = transformer.cos.device

    def write_cross(self, states: Tensor, slots: Tensor, pages: list[Pages]) -> None:
        """Write the cross-attention keys and values of encoder states [S, hidden] to their slots [S] (int32)."""
        parts = self._parts
        # Position 0 has no rotation: its cosines are 1.
        origin = torch.zeros(len(states), dtype=torch.int32, device=states.device)
        places = Layout(origin, slots, origin[:1], origin[:1], origin[:1, None])
        for layer, page in zip(parts.decoder, pages, strict=True):
            kv = layer.cross_kv(states)
            rope_write(kv, 0, parts.heads, parts.head_dim, parts.cos, parts.sin, places, page)

    def forward(self, tokens: Tensor, layout: Layout, cross: Cross, pages: list[Pages]) -> Tensor:
        """Run `tokens` [T] int64, write their keys and values into `pages`; return normed hidden rows [T, hidden].

        Row r of `cross` belongs to row r of `layout`; write_cross must have filled its slots.
        """
        return self._forward(tokens, layout, cross, pages, None)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [N, vocab] float32 of hidden rows [N, hidden] that forward returned."""
        head = self._parts.head
        if isinstance(head, Tensor) and hidden.dtype is torch.bfloat16:  # float32: rounding would make the best equal
            return torch.mm(hidden, head.t(), out_dtype=torch.float32)
        return linear(hidden, head)

    def encode(self, clips: Sequence[Tensor]) -> Encoded:
        """Return the encoder states of clips [samples] of float32 at 16 kHz, each of at most `max_samples`."""
        rows = self.stem(clips)
        lengths = [len(clip) for clip in rows]
        # Keys and values of one layer; the next layer overwrites them. On a CPU one block holds one clip.
        block = ENCODER_BLOCK if self.device.type == "cuda" else max(lengths)
        places = ClipPlaces.of(lengths, block)
        joined = torch.cat(rows) if len(rows) > 1 else rows[0].clone()
        return Encoded(self.encode_rows(joined, places.layout(joined.device), places.blocks, block), lengths)

    def stem(self, clips: Sequence[Tensor]) -> list[Tensor]:
        """Return the input of the encoder's layers for each clip, [length, hidden] float32."""
        raise NotImplementedError

    def join(self, samples: Sequence[int]) -> JoinedSound:
        """Return how clips of so many samples are joined for `stem_joined`."""
        raise NotImplementedError

    def joined_samples(self, rows: int, clips: int) -> int:
        """Return the most samples that so many clips of so many states together are joined to."""
        raise NotImplementedError

    def stem_parts(self, rows: int, clips: int) -> dict[str, tuple[int, ...]]:
        """Return the largest shapes of the numbers that `stem_joined` takes beside the sound."""
        return {}

    def stem_joined(self, sound: Tensor, parts: Mapping[str, Tensor]) -> Tensor:
        """Do stem's work for joined clips: [rows, hidden], one clip's after the other's.

        On a GPU a launch costs more than some silence. Padding of the numbers is 0, of owners -1.
        """
        raise NotImplementedError

    def cross_weights(
        self, tokens: Tensor, layout: Layout, cross: Cross, pages: list[Pages], heads: Sequence[tuple[int, int]]
    ) -> list[Tensor]:
        """Return each row's attention weights of the (layer, head) pairs in `heads`: [heads, tokens, encoder states].

        The tokens must be whole sequences from position 0. They are run again in their own slots, which get the same
        keys and values again.
        """
        starts, lengths = layout.query_starts.tolist(), cross.lengths.tolist()
        found: list[dict[tuple[int, int], Tensor]] = [{} for _ in lengths]

        def observe(layer: int, q: Tensor) -> None:
            wanted = [head for at, head in heads if at == layer]
            for row, (first, last) in enumerate(itertools.pairwise(starts)) if wanted else ():
                k = gather(pages[layer], cross.block_tables[row], lengths[row], "k")[wanted]  # [wanted, states, D]
                scores = torch.einsum("thd,hsd->hts", q[first:last, wanted].float(), k) * self._scale
                if cross.thinned_from is not None:
                    scores[..., int(cross.thinned_from[row]) :] += math.log(cross.thinned)
                for head, weights in zip(wanted, torch.softmax(scores, dim=-1), strict=True):
                    found[row][layer, head] = weights

        self._forward(tokens, layout, cross, pages, observe)
        return [torch.stack([row[pair] for pair in heads]) for row in found]

    def _forward(
        self, tokens: Tensor, layout: Layout, cross: Cross, pages: list[Pages], observe: Observer | None
    ) -> Tensor:
        parts = self._parts
        heads, head_dim, scale = parts.heads, parts.head_dim, self._scale
        cross_layout = replace(
            layout,
            context_lengths=cross.lengths,
            block_tables=cross.block_tables,
            thinned_from=cross.thinned_from,
            thinned=cross.thinned,
        )
        residual = embed(tokens, parts.embedding).to(torch.float32)
        if parts.positions is not None:
            residual = residual + parts.positions[layout.positions.long()]
        norms = [layer.attention_norm for layer in parts.decoder[1:]] + [parts.decoder_norm]
        x = _norm(residual, parts.decoder[0].attention_norm, parts.dtype)
        for index, (layer, page, next_norm) in enumerate(zip(parts.decoder, pages, norms, strict=True)):
            q = rope_write(layer.qkv(x), heads, heads, head_dim, parts.cos, parts.sin, layout, page)
            x, residual = _add_norm(layer.out(paged_attention(q, page, layout, scale)), residual, layer.cross_norm)
            q = layer.cross_q(x).view(-1, heads, head_dim)
            if observe is not None:
                observe(index, q)
            seen = paged_attention(q, page, cross_layout, scale, causal=False)
            x, residual = _add_norm(layer.cross_out(seen), residual, layer.mlp_norm)
            inner = layer.up(x)
            x = layer.down(silu_mul(inner) if parts.gated_decoder else gelu(inner))
            x, residual = _add_norm(x, residual, next_norm)
        return x

    def encode_rows(self, rows: Tensor, layout: Layout, blocks: int, block: int) -> Tensor:
        """Run the encoder's layers over rows [T, hidden], which it overwrites; return the states [T, hidden].

        The layout is ClipPlaces', in `blocks` blocks of `block` rows.
        """
        parts = self._parts
        heads, head_dim = parts.heads, parts.head_dim
        page = None
        if not (self.fixed_window and rows.is_cuda):  # clips of equal length need no pages there
            shape = (blocks, heads, block, head_dim)
            page = Pages(*(torch.empty(shape, dtype=parts.dtype, device=rows.device) for _ in range(2)))

        def attend(qkv: Tensor) -> Tensor:
            if page is None:
                return clip_attention(qkv, heads, self.states(self.max_samples), self._scale)
            q = rope_write(qkv, heads, heads, head_dim, parts.cos, parts.sin, layout, page)
            return paged_attention(q, page, layout, self._scale, causal=False)

        return run_encoder(parts.encoder, parts.encoder_norm, rows, attend, parts.dtype)


def run_encoder(
    layers: Sequence[EncoderLayer],
    last_norm: LayerNorm,
    rows: Tensor,
    attend: Callable[[Tensor], Tensor],
    dtype: torch.dtype,
) -> Tensor:
    """Run an encoder's layers over rows [T, hidden], which it overwrites; return normed rows of type `dtype`.

    `attend` takes queries, keys and values [T, 3 * hidden] and returns their attention [T, hidden].
    """
    residual = rows
    norms = [layer.attention_norm for layer in layers[1:]] + [last_norm]
    x = _norm(residual, layers[0].attention_norm, dtype)
    for layer, next_norm in zip(layers, norms, strict=True):
        x, residual = _add_norm(layer.out(attend(layer.qkv(x))), residual, layer.mlp_norm)
        x, residual = _add_norm(layer.down(gelu(layer.up(x))), residual, next_norm)
    return x


def log_probabilities(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return the log-probability of each chosen token [N]; a transcript's mean is its confidence."""
    return torch.log_softmax(logits, dim=-1).gather(1, tokens[:, None])[:, 0]


def _norm(x: Tensor, norm: LayerNorm, dtype: torch.dtype) -> Tensor:
    return layer_norm(x, norm.weight, norm.bias, EPS, dtype)


def _add_norm(x: Tensor, residual: Tensor, norm: LayerNorm) -> tuple[Tensor, Tensor]:
    return add_layer_norm(x, residual, norm.weight, norm.bias, EPS)
