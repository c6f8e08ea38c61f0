"""LFM2-Audio's steps as CUDA graphs: positions to hidden rows, hidden rows to tokens, hidden rows to frames.

A row of a step makes a token, a frame or nothing. So these are three graphs, each for several sizes, and a step
launches those it needs, one after the other. A replay takes a packet from pinned memory and writes what was chosen to
pinned memory: the host does nothing in between.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from voxlane.engine.kernels.attention.pages import new_arrivals
from voxlane.engine.kernels.sampling.sampling import sample
from voxlane.engine.memory.pages import KVCache
from voxlane.engine.models.lfm2_audio.model import Lfm2Audio, PaddedInputs
from voxlane.engine.models.qwen3_tts.predictor import Scratch
from voxlane.engine.runners.cuda.frame_rings import RING, FrameRings
from voxlane.engine.runners.cuda.rows import PACKET, buckets_up_to
from voxlane.engine.runners.cuda.staged_graphs import Size, StagedGraphs, fitting, step_sizes
from voxlane.engine.runners.cuda.staging import StagingBuffer, layout_of


class DialogueGraphs(StagedGraphs[Size]):
    """The backbone over positions of many dialogues; `hidden` is the last position of each row, in their order."""

    def __init__(
        self,
        model: Lfm2Audio,
        cache: KVCache,
        device: torch.device,
        *,
        max_rows: int,
        max_tokens: int,
        context_tokens: int,
    ) -> None:
        """Prepare for steps of at most so many rows and positions."""
        self._model = model
        self._layers = cache.layers
        self._width = -(-context_tokens // cache.block_tokens)
        self._arrivals = new_arrivals(device)
        sizes = step_sizes(max_rows, max_tokens)
        super().__init__({size: self._shapes(size) for size in sizes}, device)
        hidden, most = model.config.hidden_size, max(size.tokens for size in sizes)
        self._clip_rows = torch.zeros((most, hidden), dtype=model.dtype, device=device)
        self.hidden = torch.zeros((max_rows, hidden), dtype=model.dtype, device=device)

    def size(self, tokens: int, rows: int, *, wide: bool) -> Size:
        """Return the smallest step for so many positions of so many rows."""
        return fitting(self._sizes, tokens, rows, wide=wide)

    def packet(self, size: Size) -> StagingBuffer:
        """Return a step's packet, cleared: all its rows are padding."""
        packet = self._packets[size]
        packet.clear("slots", "codes", "clips")
        return packet

    def send_clips(self, rows: Sequence[Tensor]) -> None:
        """Queue rows of clips [n, hidden] for the next step: its positions name them by their order."""
        if rows:
            joined = torch.cat(list(rows))
            self._clip_rows[: len(joined)].copy_(joined)

    def _work(self, size: Size) -> tuple[int, ...]:
        return size.tokens, size.rows

    def _shapes(self, size: Size) -> dict[str, tuple[int, ...]]:
        tokens, rows = (size.tokens,), (size.rows,)
        return {
            **dict.fromkeys(("tokens", "positions", "slots"), tokens),
            "codes": (size.tokens, self._model.config.groups),
            **({"clips": tokens, "wanted": rows} if size.wide else {}),
            "starts": (size.rows + 1,),
            "lengths": rows,
            "tables": (size.rows, self._width),
        }

    def _step(self, size: Size) -> None:
        """Write the rows' last hidden rows to `hidden`."""
        with torch.inference_mode():
            packet = self._packets[size]
            packet.send()
            part = packet.device
            layout = layout_of(part, max_query=0 if size.wide else 1, arrivals=self._arrivals)
            tokens, codes = part["tokens"].long(), part["codes"].long()
            inputs = PaddedInputs(tokens, codes)
            if size.wide:
                inputs = PaddedInputs(tokens, codes, part["clips"].long(), self._clip_rows)
            hidden = self._model.forward_padded(inputs, layout, self._layers)
            self.hidden[: size.rows].copy_(hidden.index_select(0, part["wanted"]) if size.wide else hidden)


class RowGraphs(StagedGraphs[int]):
    """Steps over some hidden rows, by their number."""

    def size(self, rows: int) -> int:
        """Return the smallest step for so many rows."""
        return next(size for size in self._sizes if rows <= size)

    def packet(self, size: int) -> StagingBuffer:
        """Return a step's packet, cleared: all its rows are padding."""
        packet = self._packets[size]
        packet.clear()
        return packet

    def _work(self, size: int) -> tuple[int, ...]:
        return (size,)


class TextGraphs(RowGraphs):
    """The next tokens of some rows; `chosen` holds them in the packet's order."""

    def __init__(self, model: Lfm2Audio, hidden: Tensor, device: torch.device, *, max_rows: int) -> None:
        self._model = model
        self._hidden = hidden
        shapes = {rows: {"places": (rows,), "rules": (rows, PACKET)} for rows in buckets_up_to(max_rows)}
        super().__init__(shapes, device)
        self._tokens = torch.zeros(max_rows, dtype=torch.int32, device=device)
        self._logprobs = torch.zeros(max_rows, device=device)
        self.chosen = torch.zeros(max_rows, dtype=torch.int32, pin_memory=device.type == "cuda")

    def _step(self, size: int) -> None:
        """Choose tokens by the rows' rules."""
        with torch.inference_mode():
            packet = self._packets[size]
            packet.send()
            logits = self._model.logits(self._hidden.index_select(0, packet.device["places"]))
            sample(logits, packet.device["rules"], self._tokens[:size], self._logprobs[:size])
            self.chosen[:size].copy_(self._tokens[:size], non_blocking=True)


class SoundGraphs(RowGraphs):
    """The next frames of some rows, all codes of each; `made` holds them in the packet's order, and so do the rings."""

    def __init__(
        self,
        model: Lfm2Audio,
        hidden: Tensor,
        rings: FrameRings,
        scratch: Scratch,
        device: torch.device,
        *,
        max_rows: int,
    ) -> None:
        self._model = model
        self._hidden = hidden
        self._rings = rings
        self._scratch = scratch
        shapes = {
            rows: {**dict.fromkeys(("places", "streams", "numbers"), (rows,)), "rules": (rows, PACKET)}
            for rows in buckets_up_to(max_rows)
        }
        super().__init__(shapes, device)
        self.made = torch.zeros((max_rows, model.config.groups), dtype=torch.int32, pin_memory=device.type == "cuda")

    def packet(self, size: int) -> StagingBuffer:
        """Return a step's packet, cleared: all its rows are padding, of no stream."""
        packet = super().packet(size)
        packet.host["streams"].fill(self._rings.nobody)
        return packet

    def _step(self, size: int) -> None:
        """Choose all codes of the next frames; frame n of a stream goes to place n % RING of its ring."""
        with torch.inference_mode():
            packet = self._packets[size]
            packet.send()
            part = packet.device
            hidden = self._hidden.index_select(0, part["places"])
            frames = self._model.make_frames(hidden, part["rules"], self._scratch)
            self._rings.frames.index_put_((part["streams"].long(), (part["numbers"] % RING).long()), frames)
            self.made[:size].copy_(frames.to(torch.int32), non_blocking=True)
