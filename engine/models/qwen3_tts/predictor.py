"""The code predictor of Qwen3-TTS: a small decoder that fills in the rest of a frame, one code after the other.

The talker chooses the first code of a frame. The predictor reads the talker's hidden row and that code, and chooses the
second; reads the second and chooses the third; and so on, with a table and a head for each group. It keeps nothing
after a frame: its keys and values are a scratch block for each row, overwritten every time. The loop reads nothing back
and its shapes depend on the number of rows alone: on CUDA it can be captured as one graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from voxlane.engine.kernels.attention.pages import Layout, new_arrivals
from voxlane.engine.kernels.sampling.code_choice import choose_code
from voxlane.engine.kernels.sampling.sampling import POSITION
from voxlane.engine.memory.pages import KVCache
from voxlane.engine.models.decoder import DecoderLayers, read_layers
from voxlane.engine.models.loading import Mode, TensorReader, Weight
from voxlane.engine.models.qwen3_tts.config import Qwen3TTSConfig

Choose = Callable[[Tensor, int], Tensor]

BLOCK_TOKENS = 16
"""A frame of 16 codes fills a block: the hidden row and 15 codes are read, the last is not."""


@dataclass(frozen=True, slots=True)
class _Projection:
    """From the talker's width to the predictor's, where they differ."""

    weight: Weight
    bias: Tensor


class CodePredictor:
    """A loaded predictor."""

    def __init__(
        self,
        config: Qwen3TTSConfig,
        layers: DecoderLayers,
        heads: list[Weight],
        table: Tensor,
        projection: _Projection | None,
        device: torch.device,
    ) -> None:
        self.groups = config.groups
        self.layers = layers
        self._heads = heads  # of groups 1, 2, …: [codes, hidden] each
        self._projection = projection
        self.table = table  # the talker's codes, then those of each group but the last: what the inner steps read
        first, codes = config.talker.vocab_size, config.codes
        self._offsets = [0, *(first + codes * index for index in range(config.groups - 1))]  # of a group in the table
        self._steps = torch.arange(config.groups, dtype=torch.int32, device=device)

    @classmethod
    def read(cls, reader: TensorReader, config: Qwen3TTSConfig, mode: Mode, table: Tensor) -> CodePredictor:
        """Read the predictor; `table` holds all groups' embeddings in the talker's width."""
        prefix = "talker.code_predictor."
        hidden, wide = config.predictor.hidden_size, config.talker.hidden_size
        layers = read_layers(reader, config.predictor, mode, f"{prefix}model.", config.groups)
        heads = [
            reader.matrix([f"{prefix}lm_head.{index}.weight"], [config.codes], hidden)
            for index in range(config.groups - 1)
        ]
        projection = None
        if hidden != wide:
            name = f"{prefix}small_to_mtp_projection"
            projection = _Projection(
                reader.matrix([f"{name}.weight"], [hidden], wide), reader.bias([f"{name}.bias"], [hidden])
            )
            # Projected here once: in the loop a code costs a lookup and no product.
            table = layers.project(table.to(layers.dtype), projection.weight, projection.bias).to(table.dtype)
        return cls(config, layers, heads, table, projection, reader.device)

    def scratch(self, rows: int) -> Scratch:
        """Return room for frames of up to `rows` rows at a time."""
        return Scratch(self.layers, self.groups, rows, self._steps.device)

    def open(self, hidden: Tensor) -> Tensor:
        """Return the input of the first inner step, [rows, 2, hidden] float32, with the talker's hidden rows filled in.

        The caller writes the second of each row's two: the first code's row of `table`.
        """
        x = torch.empty((len(hidden), 2, self.layers.config.hidden_size), device=hidden.device)
        x[:, 0] = self._project(hidden)
        return x

    def complete(self, x: Tensor, frames: Tensor, packet: Tensor, scratch: Scratch) -> None:
        """Write the codes of frames [rows, groups] int64 that follow their first, from what `open` has begun.

        `packet` [rows, columns] int32 is sampling's; a row's position in it is that of its first code, and its other
        codes are drawn at the positions that follow. -1 where a code's logits are not finite.
        """
        packets = packet[None].repeat(self.groups, 1, 1)
        packets[:, :, POSITION] += self._steps[:, None]
        x = x.flatten(0, 1)
        for group, layout in enumerate(scratch.layouts(len(frames)), start=1):
            logits = self._logits(x, group, layout, scratch)
            if group + 1 == self.groups:
                choose_code(logits, packets[group], frames[:, group])
            else:
                x = x.new_empty((len(frames), x.shape[1]))
                choose_code(logits, packets[group], frames[:, group], None, x, self.table, self._offsets[group])

    def unroll(self, hidden: Tensor, first: Tensor, choose: Choose, scratch: Scratch) -> Tensor:
        """Return whole frames [rows, groups] int64; `choose` makes a code of each row of a group's logits."""
        codes, opened = [first], self.open(hidden)
        opened[:, 1] = self._embed(first, 0)
        x = opened.flatten(0, 1)
        for group, layout in enumerate(scratch.layouts(len(hidden)), start=1):
            codes.append(choose(self._logits(x, group, layout, scratch), group))
            if group + 1 < self.groups:
                x = self._embed(codes[-1], group)
        return torch.stack(codes, dim=1)

    def _logits(self, x: Tensor, group: int, layout: Layout, scratch: Scratch) -> Tensor:
        """Run an inner step over `x`, of which the first has two rows each; return the logits of a group."""
        out = self.layers.run(x, layout, scratch.pages)
        return self.layers.logits_of(out[1::2].contiguous() if group == 1 else out, self._heads[group - 1])

    def _project(self, hidden: Tensor) -> Tensor:
        if self._projection is None:
            return hidden.to(torch.float32)
        return self.layers.project(hidden, self._projection.weight, self._projection.bias).to(torch.float32)

    def _embed(self, codes: Tensor, group: int) -> Tensor:
        return F.embedding(codes.clamp(min=0) + self._offsets[group], self.table).to(torch.float32)


class Scratch:
    """Keys and values of the frames in the making, and where each inner step writes them. Row r owns its own blocks."""

    def __init__(self, layers: DecoderLayers, groups: int, rows: int, device: torch.device, first: int = 2) -> None:
        """Make room for `rows` frames of `groups` positions, of which the first inner step reads `first`."""
        self.rows = rows
        self._first = first
        self._groups = groups
        self._width = -(-groups // BLOCK_TOKENS)  # blocks a row
        cache = KVCache(layers.spec.pages, rows * self._width, BLOCK_TOKENS, layers.dtype, device)
        self.pages = cache.pages
        self._device = device
        self._layouts: dict[int, list[Layout]] = {}
        self._arrivals = new_arrivals(device)

    def layouts(self, rows: int) -> list[Layout]:
        """Return the layouts of the inner steps of `rows` rows; the same tensors every time, as a graph needs."""
        if rows > self.rows:
            raise ValueError(f"{rows} rows in a scratch of {self.rows}")
        if rows not in self._layouts:
            self._layouts[rows] = [
                self._layout(rows, 0, self._first),
                *(self._layout(rows, at, 1) for at in range(self._first, self._groups)),
            ]
        return self._layouts[rows]

    def _layout(self, rows: int, start: int, count: int) -> Layout:
        def numbers(*arguments: int) -> Tensor:
            return torch.arange(*arguments, dtype=torch.int32, device=self._device)

        positions = numbers(start, start + count).repeat(rows)
        own = numbers(0, rows).repeat_interleave(count) * (self._width * BLOCK_TOKENS)
        return Layout(
            positions=positions,
            slots=own + positions,
            query_starts=numbers(0, (rows + 1) * count, count),
            context_lengths=torch.full((rows,), start + count, dtype=torch.int32, device=self._device),
            block_tables=numbers(0, rows * self._width).view(rows, self._width),
            max_query=count,
            common_start=start if self._width == 1 else -1,
            arrivals=self._arrivals,
        )
