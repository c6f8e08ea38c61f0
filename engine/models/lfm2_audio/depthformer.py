"""LFM2-Audio's depth transformer: makes the eight codes of a frame from the backbone's hidden row, one after the other.

A matrix makes eight inputs of the hidden row, one for each group. The transformer reads the first and chooses the first
code; reads the second input plus that code's embedding and chooses the second; and so on, with a table and a head for
each group. It keeps nothing after a frame: its keys and values are a scratch block for each row, overwritten each time.
The loop reads nothing back and its shapes depend on the number of rows alone: on CUDA it can be captured as one graph.

A frame whose first code is `end` is the end of sound: `FrameTable` takes it as a frame of `end` in every group.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from voxlane.engine.kernels.attention.pages import Layout
from voxlane.engine.kernels.sampling.code_choice import choose_code
from voxlane.engine.kernels.sampling.sampling import POSITION
from voxlane.engine.models.decoder import DecoderLayers, read_layers
from voxlane.engine.models.lfm2_audio.config import CODES, Lfm2AudioConfig
from voxlane.engine.models.lfm2_audio.depth_tensors import FRAME_TABLE, PREFIX, head_codes, head_name, table_name
from voxlane.engine.models.loading import Mode, TensorReader, Weight
from voxlane.engine.models.qwen3_tts.predictor import Scratch

Choose = Callable[[Tensor, int], Tensor]


class Depthformer:
    """A loaded depth transformer."""

    end = CODES

    def __init__(
        self,
        groups: int,
        layers: DecoderLayers,
        into: tuple[Weight, Tensor],
        heads: list[Weight],
        table: Tensor,
        device: torch.device,
    ) -> None:
        self.groups = groups
        self.layers = layers
        self._into = into  # [groups * dim, backbone's hidden], and its bias
        self._heads = heads
        self._table = table  # the codes of each group but the last
        self._steps = torch.arange(groups, dtype=torch.int32, device=device)

    @classmethod
    def read(cls, reader: TensorReader, config: Lfm2AudioConfig, mode: Mode) -> Depthformer:
        """Read the transformer; `reader` is over depth_tensors."""
        groups, dim = config.groups, config.depth.hidden_size
        layers = read_layers(reader, config.depth, mode, PREFIX, groups)
        weight = reader.matrix(["depth_linear.weight"], [groups * dim], config.hidden_size)
        into = weight, reader.bias(["depth_linear.bias"], [groups * dim])
        heads = [reader.matrix([head_name(group)], [head_codes(group)], dim) for group in range(groups)]
        table = reader.table([table_name(group) for group in range(groups - 1)], [CODES + 1] * (groups - 1), dim)
        return cls(groups, layers, into, heads, table, reader.device)

    def scratch(self, rows: int) -> Scratch:
        """Return room for frames of up to `rows` rows at a time."""
        return Scratch(self.layers, self.groups, rows, self._steps.device, first=1)

    def complete(self, hidden: Tensor, frames: Tensor, packet: Tensor, scratch: Scratch) -> None:
        """Write the codes of `frames` [rows, groups] int64 from the backbone's `hidden` [rows, hidden].

        `packet` [rows, columns] int32 is sampling's; a row's position in it is that of its first code, and its other
        codes are drawn at the positions that follow. -1 where a code's logits are not finite.
        """
        packets = packet[None].repeat(self.groups, 1, 1)
        packets[:, :, POSITION] += self._steps[:, None]
        inputs = self._inputs(hidden)
        x = inputs[0]
        for group, layout in enumerate(scratch.layouts(len(hidden))):
            logits = self._logits(x, group, layout, scratch)
            if group + 1 == self.groups:
                choose_code(logits, packets[group], frames[:, group])
            else:
                x = torch.empty_like(x)
                choose_code(logits, packets[group], frames[:, group], None, x, self._table, group * (CODES + 1))
                x += inputs[group + 1]

    def unroll(self, hidden: Tensor, choose: Choose, scratch: Scratch) -> Tensor:
        """Return whole frames [rows, groups] int64; `choose` makes a code of each row of a group's logits."""
        codes: list[Tensor] = []
        inputs = self._inputs(hidden)
        x = inputs[0]
        for group, layout in enumerate(scratch.layouts(len(hidden))):
            codes.append(choose(self._logits(x, group, layout, scratch), group))
            if group + 1 < self.groups:
                rows = F.embedding(codes[-1].clamp(min=0) + group * (CODES + 1), self._table)
                x = inputs[group + 1] + rows.to(torch.float32)
        return torch.stack(codes, dim=1)

    def _inputs(self, hidden: Tensor) -> Tensor:
        """Return the groups' inputs [groups, rows, dim] float32."""
        made = self.layers.project(hidden.to(self.layers.dtype), *self._into).to(torch.float32)
        return made.view(len(hidden), self.groups, -1).transpose(0, 1).contiguous()

    def _logits(self, x: Tensor, group: int, layout: Layout, scratch: Scratch) -> Tensor:
        """Run an inner step over `x` [rows, dim]; return the logits of its group."""
        return self.layers.logits_of(self.layers.run(x, layout, scratch.pages), self._heads[group])


class FrameTable:
    """The backbone's input for frames: the sum of the rows of their codes."""

    def __init__(self, table: Tensor, groups: int) -> None:
        self._table = table  # [groups * (CODES + 1), hidden]
        self._offsets = torch.arange(groups, device=table.device) * (CODES + 1)

    @classmethod
    def read(cls, reader: TensorReader, config: Lfm2AudioConfig) -> FrameTable:
        """Read the table; `reader` is over depth_tensors."""
        return cls(reader.table([FRAME_TABLE], [config.groups * (CODES + 1)], config.hidden_size), config.groups)

    def embed(self, frames: Tensor) -> Tensor:
        """Return the rows [N, hidden] float32 of `frames` [N, groups] int64; a first code of CODES counts for all."""
        ended = frames[:, :1] == CODES
        codes = torch.where(ended, CODES, frames.clamp(min=0)) + self._offsets
        return F.embedding(codes, self._table).to(torch.float32).sum(dim=1)
