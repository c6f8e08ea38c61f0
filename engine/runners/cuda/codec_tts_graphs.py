"""Frames of a codec language model as CUDA graphs: one for each number of rows, and some for steps with prompts.

A replay takes a packet from pinned memory, runs the talker over ragged rows, chooses all codes of a frame for each row
that has one due, and writes them to pinned memory: the host does nothing in between. The rest of a frame's input stays
on the device, by stream: the last frames, the first codes used so far, and the cloned voice. So the next step may be
launched before the host has read the codes of this one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from voxlane.engine.kernels.attention.pages import new_arrivals
from voxlane.engine.kernels.sampling.sampling import POSITION
from voxlane.engine.memory.pages import KVCache
from voxlane.engine.models.qwen3_tts.choice import Choices
from voxlane.engine.models.qwen3_tts.model import Inputs, Qwen3TTS
from voxlane.engine.models.qwen3_tts.predictor import Scratch
from voxlane.engine.runners.cuda.frame_rings import RING, FrameRings
from voxlane.engine.runners.cuda.rows import PACKET
from voxlane.engine.runners.cuda.staged_graphs import Size, StagedGraphs, fitting, step_sizes
from voxlane.engine.runners.cuda.staging import StagingBuffer, layout_of


class Streams(FrameRings):
    """What the device keeps of every stream, by slot; the last slot is for rows that pad a step."""

    def __init__(self, slots: int, model: Qwen3TTS, device: torch.device) -> None:
        config = model.config
        super().__init__(slots, config.groups, device)
        self.said = torch.zeros((slots + 1, config.talker.vocab_size), dtype=torch.bool, device=device)  # first codes
        self.voices = torch.zeros((slots + 1, config.talker.hidden_size), device=device)  # padding: silence

    def set(self, slot: int, frames: Sequence[Sequence[int]], voice: Tensor | None) -> None:
        """Fill a slot with all frames of a stream, and its cloned voice if it has one; queued, not awaited."""
        self.said[slot].zero_()
        if frames:
            first = torch.tensor([frame[0] for frame in frames])
            self.said[slot].index_fill_(0, self._queued(first), value=True)
        self.tell_last(slot, frames)
        if voice is not None:
            self.voices[slot].copy_(voice if voice.is_cuda else self._queued(voice), non_blocking=True)


class FrameGraphs(StagedGraphs[Size]):
    """Steps over the rows of many streams."""

    def __init__(
        self,
        model: Qwen3TTS,
        cache: KVCache,
        streams: Streams,
        scratch: Scratch,
        device: torch.device,
        *,
        max_rows: int,
        max_tokens: int,
        context_tokens: int,
    ) -> None:
        """Prepare for steps of at most so many rows and tokens."""
        self._model = model
        self._pages = cache.pages
        self._streams = streams
        self._width = -(-context_tokens // cache.block_tokens)
        self._scratch = scratch
        self._arrivals = new_arrivals(device)
        super().__init__({size: self._shapes(size) for size in step_sizes(max_rows, max_tokens)}, device)
        self.made = torch.zeros((max_rows, model.config.groups), dtype=torch.int32, pin_memory=device.type == "cuda")

    def size(self, tokens: int, rows: int, *, wide: bool) -> Size:
        """Return the smallest step for so many tokens of so many rows."""
        return fitting(self._sizes, tokens, rows, wide=wide)

    def packet(self, size: Size) -> StagingBuffer:
        """Return a step's packet, cleared: all its rows are padding."""
        packet = self._packets[size]
        packet.clear("slots")
        for name in {"streams", "voices"} & packet.host.keys():
            packet.host[name].fill(self._streams.nobody)
        packet.host["penalty"].view(np.float32).fill(1.0)
        return packet

    def _work(self, size: Size) -> tuple[int, ...]:
        return size.tokens, size.rows

    def _shapes(self, size: Size) -> dict[str, tuple[int, ...]]:
        tokens, rows = (size.tokens,), (size.rows,)
        prompt = {"voices": tokens, "codes": (size.tokens, self._model.config.groups), "wanted": rows}
        return {
            **dict.fromkeys(("text", "positions", "slots"), tokens),
            **(prompt if size.wide else {}),
            "starts": (size.rows + 1,),
            **dict.fromkeys(("lengths", "streams", "penalty"), rows),
            **dict.fromkeys(("first", "inner"), (size.rows, PACKET)),
            "tables": (size.rows, self._width),
        }

    def _step(self, size: Size) -> None:
        """Write the rows' frames to `made`."""
        with torch.inference_mode():
            packet = self._packets[size]
            packet.send()
            part = packet.device
            layout = layout_of(
                part,
                max_query=0 if size.wide else 1,
                arrivals=self._arrivals,
            )
            streams, first = part["streams"].long(), part["first"]
            number = first[:, POSITION] // self._model.config.groups  # of the frame to be made
            inputs = self._prompt_inputs(part) if size.wide else self._frame_inputs(part, streams, number)
            hidden = self._model.forward(inputs, layout, self._pages)
            if size.wide:
                hidden = hidden.index_select(0, part["wanted"])
            known = self._streams
            penalty = part["penalty"].view(torch.float32)
            choices = Choices(known.said, penalty, first, part["inner"], streams)
            frames = self._model.frames(hidden, choices, self._scratch)
            known.frames.index_put_((streams, (number % RING).long()), frames)
            self.made[: size.rows].copy_(frames.to(torch.int32), non_blocking=True)

    def _frame_inputs(self, part: dict[str, Tensor], streams: Tensor, number: Tensor) -> Inputs:
        """Return the input of rows of one token: the codes of the frame before."""
        return Inputs(part["text"].long(), self._streams.frames[streams, ((number - 1) % RING).long()])

    def _prompt_inputs(self, part: dict[str, Tensor]) -> Inputs:
        """Return the input of prompts: each token has its own codes, and a voice, which for most is silence."""
        voices = self._streams.voices.index_select(0, part["voices"])
        return Inputs(part["text"].long(), part["codes"].long(), torch.arange(len(voices), device=self._device), voices)
