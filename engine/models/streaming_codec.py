"""What streaming codecs share: the state of their streams, and the loop that turns frames of codes into samples.

    state = codec.state(streams, max_frames)        one row per stream, all zero: every stream is at its beginning
    codec.decode(codes, state, rows) -> samples     the next frames of the streams `rows`: any number, any mixture
    state.reset(row), state.copy(source, target)    begin again; copy a stream's state to another row

A stream's state is its row of `state` and nothing else: the ends of the inputs of every convolution, and the last keys
and values of every layer in a ring. So nothing is decoded twice, and samples depend neither on how frames are cut into
calls nor on other streams (but for the rounding of products of another shape). decode reads no tensor on the host: with
codes, rows and samples at fixed addresses it can be a CUDA graph.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from voxlane.engine.kernels.attention.ring import Moment
from voxlane.engine.kernels.conv.causal import Curve, causal_conv, extend
from voxlane.engine.models.codec_parts import Conv, Place
from voxlane.engine.models.rotary import Rope

TRIED_FRAMES = 16


@dataclass(frozen=True, slots=True)
class CodecAttention:
    """The sizes of a codec's transformer that its state and its rotation depend on."""

    layers: int
    kv_heads: int
    head_dim: int
    window: int  # positions that a position attends to, itself included
    theta: float
    stride: int = 1  # positions a frame


class CodecState:
    """The states of all streams: a row of numbers and a count of frames each."""

    def __init__(
        self, attention: CodecAttention, tails: list[Place], streams: int, max_frames: int, like: Tensor
    ) -> None:
        self.max_frames = max_frames
        # A call writes all its positions before any attends: the last must not overwrite what the first still needs.
        self.ring = attention.window - 1 + max_frames * attention.stride
        cached = (attention.layers, self.ring, attention.kv_heads, attention.head_dim)
        shapes = [cached, cached, *((tail.length, tail.channels) for tail in tails)]
        sizes = [torch.Size(shape).numel() for shape in shapes]
        self.frames = torch.zeros(streams, dtype=torch.int64, device=like.device)
        self.numbers = torch.zeros(streams, sum(sizes), dtype=like.dtype, device=like.device)
        split = torch.split(self.numbers, sizes, dim=1)
        parts = [part.view(streams, *shape) for part, shape in zip(split, shapes, strict=True)]
        self.keys, self.values = parts[:2]  # [streams, layers, ring, kv_heads, head_dim]
        self.tails = parts[2:]  # [streams, length, channels] each

    @property
    def stream_bytes(self) -> int:
        """Return the memory that one stream takes."""
        return self.numbers[0].nbytes + self.frames[0].nbytes

    def reset(self, row: int) -> None:
        """Reset a stream to its beginning."""
        self.numbers[row].zero_()
        self.frames[row].zero_()

    def copy(self, source: int, target: int) -> None:
        """Copy the state of `source` to `target`."""
        self.numbers[target].copy_(self.numbers[source])
        self.frames[target].copy_(self.frames[source])

    def extend(self, place: Place, x: Tensor, rows: Tensor, curve: Curve | None = None) -> Tensor:
        """Return `x` [B, T, channels], or its snake, with the kept end of earlier input in front; keep its end."""
        return extend(x, self.tails[place.index], rows, curve)


class StreamingCodec(ABC):
    """A loaded decoder; a subclass turns one call's frames into samples."""

    sample_rate: int
    frame_samples: int

    def __init__(
        self, attention: CodecAttention, table: Tensor, groups: int, codebook_size: int, tails: list[Place]
    ) -> None:
        """Use `table` [groups * codebook_size, width], all codebooks one after the other."""
        self.groups = groups
        self.dtype = table.dtype
        self._attention = attention
        self.codebook_size = codebook_size
        self._table = table
        self._tails = tails
        self._first_codes = torch.arange(groups, device=table.device) * codebook_size
        # float64: after hours of sound an angle is still right.
        self._frequencies = Rope(attention.theta).frequencies(attention.head_dim).to(table.device, torch.float64)

    def stays_finite(self) -> bool:
        """Return whether random frames decode to finite samples: numbers may overflow float16."""
        random, device = torch.Generator().manual_seed(0), self._table.device
        codes = torch.randint(self.codebook_size, (1, TRIED_FRAMES, self.groups), generator=random).to(device)
        with torch.inference_mode():
            samples = self.decode(codes, self.state(1, TRIED_FRAMES), torch.zeros(1, dtype=torch.int64, device=device))
        return bool(samples.isfinite().all())

    def state(self, streams: int, max_frames: int = 1) -> CodecState:
        """Return states for so many streams; a call of more than `max_frames` runs in pieces."""
        if streams < 1 or max_frames < 1:
            raise ValueError(f"a state of {streams} streams and {max_frames} frames a call is none")
        return CodecState(self._attention, self._tails, streams, max_frames, self._table)

    def decode(self, codes: Tensor, state: CodecState, rows: Tensor) -> Tensor:
        """Return the samples [B, frames * frame_samples] float32, -1 to 1, of `codes` [B, frames, groups] int64.

        `rows` [B] int64 are the streams they continue, each at most once; padding rows may share one unused stream.
        Codes must be below codebook_size: on a CPU that is checked.
        """
        if codes.ndim != 3 or codes.shape[2] != self.groups or not codes.numel() or rows.shape != codes.shape[:1]:
            raise ValueError(
                f"codes {tuple(codes.shape)} and rows {tuple(rows.shape)}: [B, frames, {self.groups}], [B]"
            )
        if codes.is_cpu and not 0 <= int(codes.min()) <= int(codes.max()) < self.codebook_size:
            raise ValueError(f"a code is outside 0 to {self.codebook_size - 1}")
        pieces = [self._decode(piece, state, rows) for piece in torch.split(codes, state.max_frames, dim=1)]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)

    @abstractmethod
    def _decode(self, codes: Tensor, state: CodecState, rows: Tensor) -> Tensor:
        """Return the samples of at most the state's `max_frames` frames."""

    def _moment(self, frames: int, state: CodecState, rows: Tensor) -> Moment:
        """Return the positions of the next `frames` frames, and count the frames as decoded."""
        begin = state.frames.index_select(0, rows)
        state.frames.index_copy_(0, rows, begin + frames)
        first, count = begin * self._attention.stride, frames * self._attention.stride
        positions = first[:, None] + torch.arange(count, device=rows.device)  # [B, positions]
        angles = positions[:, :, None] * self._frequencies
        return Moment(rows, first, angles.cos().to(torch.float32), angles.sin().to(torch.float32))


def run_conv(
    x: Tensor, conv: Conv, state: CodecState, rows: Tensor, before: Curve | None = None, after: Curve | None = None
) -> Tensor:
    """Run a convolution over the next inputs `x` [B, T, in] of streams, and snakes before and after it."""
    return causal_conv(state.extend(conv.place, x, rows, before), conv.weight, conv.bias, conv.dilation, after)
