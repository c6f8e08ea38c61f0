"""Qwen3-ASR's audio tower: clips of sound in, rows for a text decoder out, 13 of them a second.

A log-mel spectrogram is cut into chunks of a second; three convolutions see one chunk, a transformer eight of them. On
a GPU all chunks of a batch run together, and all that varies is numbers, so that it can be a graph; on a CPU they run
one by one, so that a clip's bits do not depend on the clips beside it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.backends import cudnn

from voxlane.engine.audio.mel import HOP, WINDOW, log_powers, scaled
from voxlane.engine.kernels.attention.paged import paged_attention
from voxlane.engine.kernels.attention.pages import Layout, Pages
from voxlane.engine.kernels.attention.rope import rope_write
from voxlane.engine.kernels.linear.linear import linear
from voxlane.engine.kernels.norm.layer_norm import gelu
from voxlane.engine.models.clips import JoinedSound
from voxlane.engine.models.encoder_decoder import EncoderLayer, LayerNorm, Projection, run_encoder
from voxlane.engine.models.loading import TensorReader
from voxlane.engine.models.qwen3_asr.config import CHUNK_STATES, MIN_SAMPLES, TowerConfig

MAX_TIMESCALE = 10_000.0
KERNEL, STRIDE = 3, 2  # of all three convolutions, in both directions

TOGETHER = 64
"""Chunks that a GPU's convolutions take at once: the first one's output is 200 MB in bfloat16."""


@dataclass(frozen=True, slots=True)
class _Weights:
    convolutions: list[Projection]  # [channels, 3 * 3 * channels before], windows by bin, frame, channel
    stem_out: Projection  # [hidden, bands * channels]
    positions: Tensor  # [CHUNK_STATES, hidden]
    layers: list[EncoderLayer]
    last_norm: LayerNorm
    inner: Projection  # [hidden, hidden]
    outer: Projection  # [output, hidden]
    still: tuple[Tensor, Tensor]  # cosines and sines without rotation, [states of a window, head_dim / 2]


class AudioTower:
    """A loaded audio tower."""

    def __init__(self, config: TowerConfig, weights: _Weights, dtype: torch.dtype) -> None:
        self.config = config
        self._weights = weights
        self._dtype = dtype
        self.device = weights.positions.device
        self._scale = float(config.head_dim) ** -0.5

    @classmethod
    def read(cls, reader: TensorReader, config: TowerConfig) -> AudioTower:
        """Read the tower's tensors, by the library's names and flattened by `flat`."""
        hidden, channels = config.hidden_size, config.channels
        sizes = ((1, 1), (2, channels), (3, channels))
        cos = torch.ones(config.window_states, config.head_dim // 2, device=reader.device)
        projector = "multi_modal_projector.linear_"
        weights = _Weights(
            [_projection(reader, f"audio_tower.conv2d{n}", channels, KERNEL**2 * inputs) for n, inputs in sizes],
            Projection(reader.matrix(["audio_tower.conv_out.weight"], [hidden], config.bands * channels)),
            _sinusoids(CHUNK_STATES, hidden).to(reader.device),
            [_layer(reader, config, f"audio_tower.layers.{index}.") for index in range(config.layers)],
            _norm(reader, "audio_tower.ln_post", hidden),
            _projection(reader, f"{projector}1", hidden, hidden),
            _projection(reader, f"{projector}2", config.output_size, hidden),
            (cos, torch.zeros_like(cos)),
        )
        return cls(config, weights, reader.dtype)

    def pieces(self, states: Sequence[int]) -> list[int]:
        """Return how the states of clips are cut into windows that do not attend to each other."""
        window = self.config.window_states
        return [min(window, count - first) for count in states for first in range(0, count, window)]

    def join(self, samples: Sequence[int]) -> JoinedSound:
        """Return how clips of so many samples are joined: end to end, each padded to the shortest length."""
        config = self.config
        lengths = [max(count, MIN_SAMPLES) for count in samples]
        starts = list(itertools.accumulate(lengths, initial=0))
        chunks = [-(-config.frames(length) // config.chunk_frames) for length in lengths]
        firsts = list(itertools.accumulate(chunks, initial=0))
        picked = [
            first * CHUNK_STATES + np.arange(config.states(length))
            for first, length in zip(firsts, lengths, strict=False)
        ]
        numbers = {
            "owners": np.repeat(np.arange(len(lengths)), chunks),
            "chunk_starts": np.repeat(starts[:-1], chunks),
            "chunk_lengths": np.repeat(lengths, chunks),
            "chunk_places": np.concatenate([np.arange(count) for count in chunks]),
            "picked": np.concatenate(picked),
        }
        return JoinedSound(starts[:-1], starts[-1], {name: part.astype(np.int32) for name, part in numbers.items()})

    def joined_samples(self, rows: int, clips: int) -> int:
        """Return the most samples that so many clips of so many states together are joined to."""
        return HOP * (STRIDE**3 * rows + clips)  # a state is at most 8 frames, and a clip may end in part of one

    def stem_parts(self, rows: int, clips: int) -> dict[str, tuple[int, ...]]:
        """Return the largest shapes of the numbers that `stem_joined` takes beside the sound."""
        chunks = rows // CHUNK_STATES + clips
        per_chunk = ("owners", "chunk_starts", "chunk_lengths", "chunk_places")
        return {**dict.fromkeys(per_chunk, (chunks,)), "picked": (rows,)}

    def stem_joined(self, sound: Tensor, parts: Mapping[str, Tensor]) -> Tensor:
        """Return the layers' input for joined clips: [rows, hidden] float32, one clip's after the other's."""
        weights, picked = self._weights, parts["picked"].long()
        mels = self._mels(sound, parts)
        if mels.is_cuda:
            firsts = range(0, len(mels), TOGETHER)
            some = [self._convolve_together(mels[first : first + TOGETHER].to(self._dtype)) for first in firsts]
            seen = torch.cat(some)
        else:
            seen = torch.cat([self._convolve(chunk) for chunk in mels])
        rows = weights.stem_out(seen[picked])
        return rows.to(torch.float32) + weights.positions[picked % CHUNK_STATES]

    def run(self, rows: Tensor, layout: Layout, blocks: int, block: int) -> Tensor:
        """Run the layers over rows [T, hidden], which it overwrites; return the decoder's input, [T, output].

        The layout is ClipPlaces' of pieces, in `blocks` blocks of `block` rows.
        """
        config, weights = self.config, self._weights
        heads, head_dim = config.heads, config.head_dim
        shape = (blocks, heads, block, head_dim)
        page = Pages(*(torch.empty(shape, dtype=self._dtype, device=rows.device) for _ in range(2)))

        def attend(qkv: Tensor) -> Tensor:
            q = rope_write(qkv, heads, heads, head_dim, *weights.still, layout, page)
            return paged_attention(q, page, layout, self._scale, causal=False)

        seen = run_encoder(weights.layers, weights.last_norm, rows, attend, self._dtype)
        return weights.outer(gelu(weights.inner(seen)))

    def _mels(self, sound: Tensor, parts: Mapping[str, Tensor]) -> Tensor:
        """Return every chunk's spectrogram [chunks, frames, bins], zeros after the end of its clip."""
        config, device = self.config, sound.device
        frames, half = config.chunk_frames, WINDOW // 2
        starts, lengths, places, owners = (
            parts[name].long()[:, None] for name in ("chunk_starts", "chunk_lengths", "chunk_places", "owners")
        )
        first = places * frames * HOP - half
        at = first + torch.arange((frames - 1) * HOP + WINDOW, device=device)  # [chunks, samples]
        # Both ends of a clip are mirrored; frames beyond the clip are not used.
        at = torch.where(at < lengths, at.abs(), 2 * (lengths - 1) - at).clamp(min=0)
        mel = log_powers(sound[(starts + at).clamp(max=len(sound) - 1)], config.mel_bins)
        there = places * frames + torch.arange(frames, device=device) < lengths // HOP  # [chunks, frames]
        peaks = mel.amax(dim=2).masked_fill(~there, -math.inf).amax(dim=1)
        loudest = torch.where(owners == owners.T, peaks, -math.inf).amax(dim=1)
        return torch.where(there[:, :, None], scaled(mel, loudest[:, None, None]), 0.0)

    def _convolve(self, chunk: Tensor) -> Tensor:
        """Return a chunk [frames, bins] after the convolutions, as products over windows: [13, bands * channels]."""
        x = chunk.T[:, :, None]  # [bins, frames, channels]
        for convolution in self._weights.convolutions:
            padded = F.pad(x, (0, 0, 1, 1, 1, 1))
            high, wide = -(-x.shape[0] // STRIDE), -(-x.shape[1] // STRIDE)
            windows = padded.unfold(0, KERNEL, STRIDE).unfold(1, KERNEL, STRIDE)  # [high, wide, channels, 3, 3]
            rows = windows.permute(0, 1, 3, 4, 2).reshape(high * wide, -1)
            x = gelu(linear(rows, convolution.weight, convolution.bias)).view(high, wide, -1)
        return x.transpose(0, 1).flatten(1)

    def _convolve_together(self, chunks: Tensor) -> Tensor:
        """Do _convolve's work for several chunks [chunks, frames, bins]: [chunks * 13, bands * channels]."""
        x = chunks.transpose(1, 2)[:, None]  # [chunks, channels, bins, frames]
        for convolution in self._weights.convolutions:
            matrix, bias = convolution.dense()
            weight = matrix.view(len(matrix), KERNEL, KERNEL, -1).permute(0, 3, 1, 2)  # channels last in memory
            with cudnn.flags(enabled=True, allow_tf32=False):  # no TF32: float32 means float32
                x = F.gelu(F.conv2d(x, weight, bias, STRIDE, padding=1))
        return x.permute(0, 3, 2, 1).flatten(2).flatten(0, 1)


def flat(name: str, tensor: Tensor) -> Tensor:
    """Return a tensor of the tower in the layout of products over windows: channels last."""
    if ".conv2d" in name and tensor.ndim == 4:
        return tensor.permute(0, 2, 3, 1).reshape(len(tensor), -1)
    return tensor


def by_band(tensor: Tensor, bands: int) -> Tensor:
    """Return the matrix after the convolutions with its columns by band, then channel."""
    if tensor.ndim != 2 or tensor.shape[1] % bands:
        return tensor  # the reader refuses its shape
    return tensor.view(len(tensor), -1, bands).transpose(1, 2).reshape(len(tensor), -1)


def _sinusoids(length: int, width: int) -> Tensor:
    """Return sines and cosines [length, width] of positions, from one radian a position to one in 10,000."""
    step = math.log(MAX_TIMESCALE) / (width // 2 - 1)
    angles = torch.arange(length)[:, None] * torch.exp(-step * torch.arange(width // 2).float())
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def _layer(reader: TensorReader, config: TowerConfig, prefix: str) -> EncoderLayer:
    hidden, inner = config.hidden_size, config.intermediate_size
    names = [f"{prefix}self_attn.{part}_proj" for part in "qkv"]
    qkv = reader.matrix([f"{name}.weight" for name in names], [hidden] * 3, hidden)
    return EncoderLayer(
        attention_norm=_norm(reader, f"{prefix}self_attn_layer_norm", hidden),
        qkv=Projection(qkv, reader.bias([f"{name}.bias" for name in names], [hidden] * 3)),
        out=_projection(reader, f"{prefix}self_attn.out_proj", hidden, hidden),
        mlp_norm=_norm(reader, f"{prefix}final_layer_norm", hidden),
        up=_projection(reader, f"{prefix}fc1", inner, hidden),
        down=_projection(reader, f"{prefix}fc2", hidden, inner),
    )


def _projection(reader: TensorReader, name: str, outputs: int, inputs: int) -> Projection:
    return Projection(reader.matrix([f"{name}.weight"], [outputs], inputs), reader.bias([f"{name}.bias"], [outputs]))


def _norm(reader: TensorReader, name: str, size: int) -> LayerNorm:
    return LayerNorm(reader.vector(f"{name}.weight", size), reader.vector(f"{name}.bias", size))
