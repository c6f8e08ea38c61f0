"""hibari's network in torch: phonemes in, spectra and pitch out, several clauses at once.

The file's 8-bit matrices are dequantised, and rows between them are not rounded, so this is nearer to the network as it
was trained than the file's own graph, which rounds to 8 bits before every matrix.

Clauses lie end to end on a line, at each of the network's rates: phonemes, beats of 25 ms, frames of 12.5 ms. Between
two clauses, and at both ends, are three places of silence, so that sound may ring out and dense convolutions, which
reach three places far, read zeros as they do around a single clause. Such a place counts as one beat: the line of beats
has the same gaps. Operations that reach further, attention above all, see their own clause only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from voxlane.engine.kernels.conv.depthwise import Depthwise, depthwise_norm
from voxlane.engine.kernels.linear.fused import fused_linear
from voxlane.engine.kernels.norm.layer_norm import add_layer_norm, layer_norm
from voxlane.engine.kernels.vocoder.segments import segment_attention
from voxlane.engine.kernels.vocoder.vocoder import Places
from voxlane.engine.models.hibari.weights import read_weights

GAP = 3
"""Places around a clause: the reach of a dense convolution over seven."""

FRAMES_PER_BEAT = 2

MAX_BEATS = 400
"""Most beats of one phoneme, 10 s: the result of an exponential must not set the memory without a limit."""

ROWS = 6
ID, INSIDE, FIRST, LAST, SPEED, NOISE = range(ROWS)
"""Rows of a line: phoneme; whether there is one; first and last place of its clause, where a gap is divided between its
neighbours; the bits of the clause's speed; the first row of its noise."""

_HEADS = 2
_EPS = 1e-5
_PITCH_HZ = 100.0


@dataclass(frozen=True, slots=True)
class NetworkClause:
    """One clause as the network takes it."""

    ids: Sequence[int]
    speed: float
    noise_row: int


def line_length(utterances: Sequence[NetworkClause]) -> int:
    """Return how many places clauses take on a line."""
    return GAP + sum(len(one.ids) + GAP for one in utterances)


def write_line(utterances: Sequence[NetworkClause], line: NDArray[np.int32]) -> list[int]:
    """Lay clauses out on a line [ROWS, places], at least line_length of them; return where each begins."""
    line[ID], line[INSIDE] = 0, 0
    begins, at, taken = [], GAP, 0
    for one in utterances:
        end = at + len(one.ids)
        line[ID, at:end], line[INSIDE, at:end] = one.ids, 1
        owned = slice(taken, end + 1)
        line[FIRST, owned], line[LAST, owned], line[NOISE, owned] = at, end - 1, one.noise_row
        line[SPEED, owned] = np.float32(one.speed).view(np.int32)
        begins.append(at)
        at, taken = end + GAP, end + 1
    line[FIRST:, taken:] = line[FIRST:, taken - 1 : taken]
    return begins


@dataclass(frozen=True, slots=True)
class TextFeatures:
    """What depends on the text alone, for every place of a line."""

    beats: Tensor  # [places] int32, 1 in gaps
    sound: Tensor  # [places, 128], for the spectra
    melody: Tensor  # [places, 192], for pitch and loudness


@dataclass(frozen=True, slots=True)
class Frames:
    """The clause, the spectra and the pitch of every frame of a line."""

    places: Places
    noise: Tensor  # [frames] int32, counted on from the clause's first row
    spectra: Tensor  # [frames, 5 · bins]
    pitch_hz: Tensor  # [frames]


@dataclass(frozen=True, slots=True)
class Linear:
    """weight [out, in] and bias [out]."""

    weight: Tensor
    bias: Tensor
    rounded: bool = False

    def __call__(self, x: Tensor, *, gelu: bool = False, residual: Tensor | None = None) -> Tensor:
        """Return x [rows, in] times the matrix, with the activation if wanted, plus the residual if there is one."""
        return fused_linear(x, self.weight, self.bias, gelu=gelu, residual=residual, rounded=self.rounded)

    def around(self, x: Tensor, *, gelu: bool = False) -> Tensor:
        """Return the convolution of x [rows, channels]; its width follows from the matrix's columns."""
        width = self.weight.shape[1] // x.shape[1]
        windows = F.pad(x, (0, 0, width // 2, width // 2)).unfold(0, width, 1)  # [rows, channels, width]
        return self(windows.reshape(len(x), -1), gelu=gelu)


@dataclass(frozen=True, slots=True)
class HibariNorm:
    """A layer norm's weight and bias."""

    weight: Tensor
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Return the rows of x normalised."""
        return layer_norm(x, self.weight, self.bias, _EPS)

    def of_sum(self, x: Tensor, residual: Tensor) -> Tensor:
        """Add x to `residual` in place; return the sum normalised."""
        return add_layer_norm(x, residual, self.weight, self.bias, _EPS)[0]


@dataclass(frozen=True, slots=True)
class Block:
    """A ConvNeXt block; the scale of its last step is part of that step's matrix."""

    depthwise: Depthwise
    widen: Linear
    narrow: Linear

    def __call__(self, x: Tensor, start: Tensor, stop: Tensor) -> Tensor:
        """Run the block over x [rows, channels]; each row reads its neighbours from start to stop."""
        return self.narrow(self.widen(depthwise_norm(x, start, stop, self.depthwise), gelu=True), residual=x)


@dataclass(frozen=True, slots=True)
class SharedTransformer:
    """A layer that runs several times, and the norm after the last."""

    rounds: int
    norm_before: HibariNorm
    into: Linear
    out: Linear
    norm_between: HibariNorm
    widen: Linear
    narrow: Linear
    norm_after: HibariNorm

    def __call__(self, x: Tensor, start: Tensor, stop: Tensor) -> Tensor:
        """Return the rows of x after all rounds, normalised; x is overwritten."""
        y = self.norm_before(x)
        for left in reversed(range(self.rounds)):
            y = self.out(segment_attention(self.into(y), _HEADS, start, stop))
            y = self.norm_between.of_sum(y, x)
            y = self.narrow(self.widen(y, gelu=True))
            y = (self.norm_before if left else self.norm_after).of_sum(y, x)
        return y


@dataclass(frozen=True, slots=True)
class PhonemeEncoder:
    """Phonemes to states."""

    embedding: Tensor
    blocks: tuple[Block, ...]
    transformer: SharedTransformer

    def __call__(self, ids: Tensor, start: Tensor, stop: Tensor) -> Tensor:
        """Return a state for every place."""
        x = F.embedding(ids, self.embedding)
        for block in self.blocks:
            x = block(x, start, stop)
        return self.transformer(x, start, stop)


class HibariNetwork:
    """One voice."""

    def __init__(self, path: Path, device: torch.device) -> None:
        weights = read_weights(path)
        tensors = {name: torch.from_numpy(values).to(device) for name, values in weights.tensors.items()}
        parts = _Parts(tensors, weights.strides)
        self._sound = parts.encoder("m.text", weights.rounds["m.text"])
        self._melody = parts.encoder("pn.text", weights.rounds["pn.text"])
        self._beats = (parts.linear("pn.dur.0"), parts.linear("pn.dur.2"))
        self._melody_in, self._melody_out = parts.linear("pn.pro_in"), parts.linear("pn.pro_out")
        self._melody_blocks = parts.blocks("pn.pro")
        # Rounded to 11 bits on a device, the spectra differ by 0.007 (root mean square; their own is 7), a sixth of the
        # error of the file's 8-bit graph. Durations and pitch are not rounded: their errors add up along a clause.
        self._sound_in, self._sound_out = parts.linear("m.dec_in", rounded=True), parts.linear("m.head", rounded=True)
        self._sound_blocks, self._sound_norm = parts.blocks("m.dec", rounded=True), parts.norm("m.dec_norm")
        self._side: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.sound_width = self._sound.embedding.shape[1]
        self.melody_width = self._melody.embedding.shape[1]
        self.parameters = sum(tensor.numel() for tensor in tensors.values())

    def read(self, line: Tensor) -> TextFeatures:
        """Return the features of a line [ROWS, places], before durations spread them over time."""
        start, stop, within = line[FIRST].contiguous(), line[LAST] + 1, line[INSIDE] != 0
        # The encoders are independent, and neither fills a device: run them at the same time.
        with _beside(self._side):
            sound = self._sound(line[ID], start, stop)
        melody = self._melody(line[ID], start, stop)
        lengths = self._beats[1](self._beats[0].around(melody * within[:, None], gelu=True))[:, 0]
        beats = torch.round((torch.exp(lengths) - 1.0) / line[SPEED].view(torch.float32)).clamp(1, MAX_BEATS)
        if self._side is not None:
            torch.cuda.current_stream().wait_stream(self._side)
        return TextFeatures(torch.where(within, beats, 1.0).to(torch.int32), sound, melody)

    def frames(self, line: Tensor, reading: TextFeatures, beats: int) -> Frames:
        """Return the first `beats` of a line as frames; the rest is left out."""
        ends = torch.cumsum(reading.beats, 0, dtype=torch.int32)
        moment = torch.arange(beats, device=line.device, dtype=torch.int32)
        place = torch.searchsorted(ends, moment, right=True)
        place = place.clamp(max=line.shape[1] - 1)  # [beats]: which place sounds; the last is a gap
        inside = line[INSIDE, place].to(torch.float32)
        first, last = line[FIRST, place], line[LAST, place]
        start, stop = ends[first] - reading.beats[first], ends[last].clamp(max=beats)

        melody = self._melody_in(reading.melody[place])
        for block in self._melody_blocks:
            melody = block(melody, start, stop)
        # Two numbers for each of two frames: [beats, number, frame] -> [frames, number]
        curves = self._melody_out(melody).view(beats, 2, FRAMES_PER_BEAT).transpose(1, 2).reshape(-1, 2)
        pitch_hz, loudness = curves[:, 0] * _PITCH_HZ, curves[:, 1]

        place, inside, start, stop = (
            part[:, None].expand(-1, FRAMES_PER_BEAT).flatten() for part in (place, inside, start, stop)
        )
        start, stop = start * FRAMES_PER_BEAT, stop * FRAMES_PER_BEAT
        curves = torch.stack((torch.log(1.0 + F.relu(pitch_hz)) / 5.0, loudness), dim=1)
        x = self._sound_in.around(torch.cat((reading.sound[place], curves), dim=1) * inside[:, None])
        for block in self._sound_blocks:
            x = block(x, start, stop)
        noise = line[NOISE, place] + torch.arange(len(place), device=line.device, dtype=torch.int32) - start
        return Frames(Places(inside, start, stop), noise, self._sound_out(self._sound_norm(x)), pitch_hz)


@contextlib.contextmanager
def _beside(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Launch work beside what follows, on a stream of its own if there is one."""
    if stream is not None:
        stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield


class _Parts:
    """Layers by the names of their tensors."""

    def __init__(self, tensors: dict[str, Tensor], strides: dict[str, int]) -> None:
        self._tensors, self._strides = tensors, strides

    def linear(self, name: str, *, rounded: bool = False) -> Linear:
        weight = self._tensors[f"{name}.weight"]
        return Linear(weight.reshape(len(weight), -1), self._tensors[f"{name}.bias"], rounded)

    def norm(self, name: str) -> HibariNorm:
        return HibariNorm(self._tensors[f"{name}.weight"], self._tensors[f"{name}.bias"])

    def blocks(self, name: str, *, rounded: bool = False) -> tuple[Block, ...]:
        return tuple(self._block(f"{name}.{index}", rounded) for index in range(self._count(name)))

    def encoder(self, name: str, rounds: int) -> PhonemeEncoder:
        layer, own = f"{name}.attn", f"{name}.attn.self_attn"
        transformer = SharedTransformer(
            rounds,
            self.norm(f"{layer}.norm1"),
            Linear(self._tensors[f"{own}.in_proj_weight"], self._tensors[f"{own}.in_proj_bias"]),
            self.linear(f"{own}.out_proj"),
            self.norm(f"{layer}.norm2"),
            self.linear(f"{layer}.linear1"),
            self.linear(f"{layer}.linear2"),
            self.norm(f"{name}.norm"),
        )
        return PhonemeEncoder(self._tensors[f"{name}.emb.weight"], self.blocks(f"{name}.convs"), transformer)

    def _block(self, name: str, rounded: bool) -> Block:
        scale, norm, narrow = self._tensors[f"{name}.gamma"], self.norm(f"{name}.norm"), self.linear(f"{name}.pw2")
        taps, stride = self._tensors[f"{name}.dw.weight"].squeeze(1), self._strides[f"{name}.dw.weight"]
        return Block(
            Depthwise(taps, stride, self._tensors[f"{name}.dw.bias"], norm.weight, norm.bias, _EPS),
            self.linear(f"{name}.pw1", rounded=rounded),
            Linear(narrow.weight * scale[:, None], narrow.bias * scale, rounded),
        )

    def _count(self, name: str) -> int:
        depth = name.count(".") + 1
        return len({key.split(".")[depth] for key in self._tensors if key.startswith(f"{name}.")})
