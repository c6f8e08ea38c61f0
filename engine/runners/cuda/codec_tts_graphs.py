"""Frames of a codec language model as CUDA graphs: one for each number of rows, and some for steps with prompts.

A replay takes a packet from pinned memory, runs the talker over ragged rows, chooses all codes of a frame for each row
that has one due, and writes them to pinned memory: the host does nothing in between. The rest of a frame's input stays
on the device, by stream: the last frames, the first codes used so far, and the cloned voice. So the next step may be
launched before the host has read the codes of this one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from voxlane.engine.kernels.attention.pages import new_arrivals
from voxlane.engine.kernels.sampling.sampling import POSITION
from voxlane.engine.memory.pages import KVCache
from voxlane.engine.models.qwen3_tts.choice import Choices
from voxlane.engine.models.qwen3_tts.model import Inputs, Qwen3TTS
from voxlane.engine.models.qwen3_tts.predictor import Scratch
from voxlane.engine.runners.cuda.encoder_decoder_graphs import captured
from voxlane.engine.runners.cuda.rows import PACKET, buckets_up_to
from voxlane.engine.runners.cuda.staging import PacketMemory, StagingBuffer, layout_of

Progress = Callable[[float], None]

PROMPT_SIZES = (
    *((32, 8), (128, 8), (64, 32), (256, 32)),
    *((128, 64), (512, 64), (1024, 64), (2048, 64), (256, 128), (1024, 128)),
)
"""Tokens and rows of steps that read few prompts: a prompt is some ten tokens, with instructions or a clip
a hundred."""

FEWEST_TOKENS = 512
"""Tokens of the smallest step with prompts that has room for all rows; each larger one takes twice as many, up to the
most that a step may have. So no step is launched kernel by kernel, which took a host 54 ms."""

RING = 32
"""Frames of a stream that stay on the device: more than one codec call decodes."""


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a step."""

    tokens: int
    rows: int
    wide: bool  # a row may have more than one token


class Streams:
    """What the device keeps of every stream, by slot; the last slot is for rows that pad a step."""

    def __init__(self, slots: int, model: Qwen3TTS, device: torch.device) -> None:
        config = model.config
        self.slots, self.nobody = slots, slots
        self._device = device
        self.said = torch.zeros((slots + 1, config.talker.vocab_size), dtype=torch.bool, device=device)  # first codes
        self.frames = torch.zeros((slots + 1, RING, config.groups), dtype=torch.int64, device=device)
        self.voices = torch.zeros((slots + 1, config.talker.hidden_size), device=device)  # padding: silence

    def set(self, slot: int, frames: Sequence[Sequence[int]], voice: Tensor | None) -> None:
        """Fill a slot with all frames of a stream, and its cloned voice if it has one; queued, not awaited."""
        self.said[slot].zero_()
        if frames:
            first = torch.tensor([frame[0] for frame in frames])
            self.said[slot].index_fill_(0, self._queued(first), value=True)
        self.tell(slot, max(len(frames) - RING, 0), frames[-RING:])
        if voice is not None:
            self.voices[slot].copy_(voice if voice.is_cuda else self._queued(voice), non_blocking=True)

    def tell(self, slot: int, first: int, frames: Sequence[Sequence[int]]) -> None:
        """Write frames, from number `first` on, where a step would have written them."""
        assert len(frames) <= RING, "more frames than a stream's ring holds"
        if frames:
            places = self._queued(torch.arange(first, first + len(frames)) % RING)
            self.frames[slot].index_copy_(0, places, self._queued(torch.tensor(frames)))

    def _queued(self, numbers: Tensor) -> Tensor:
        # A copy from pinned memory does not wait for queued work.
        return numbers if self._device.type == "cpu" else numbers.pin_memory().to(self._device, non_blocking=True)


class FrameGraphs:
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
        self._device = device
        self._width = -(-context_tokens // cache.block_tokens)
        self._scratch = scratch
        self._arrivals = new_arrivals(device)
        narrow = [Size(rows, rows, wide=False) for rows in buckets_up_to(max_rows)]
        most = max(max_tokens, FEWEST_TOKENS, 2 * max_rows)
        doubled = itertools.takewhile(lambda tokens: tokens < most, (FEWEST_TOKENS << times for times in range(32)))
        sizes = (*PROMPT_SIZES, *((tokens, max_rows) for tokens in (*doubled, most)))
        wide = {Size(min(tokens, most), min(rows, max_rows), wide=True) for tokens, rows in sizes}
        self._sizes = [*narrow, *sorted(wide, key=lambda size: (size.rows, size.tokens))]
        memory = PacketMemory.of(self._shapes(self._sizes[-1]), device)  # shared: one step is under way at a time
        self._packets = {size: StagingBuffer(self._shapes(size), memory) for size in self._sizes}
        self._graphs: dict[Size, torch.cuda.CUDAGraph] = {}
        self.made = torch.zeros((max_rows, model.config.groups), dtype=torch.int32, pin_memory=device.type == "cuda")

    def size(self, tokens: int, rows: int, *, wide: bool) -> Size:
        """Return the smallest step for so many tokens of so many rows."""
        return next(size for size in self._sizes if size.wide is wide and tokens <= size.tokens and rows <= size.rows)

    def packet(self, size: Size) -> StagingBuffer:
        """Return a step's packet, cleared: all its rows are padding."""
        packet = self._packets[size]
        packet.clear("slots")
        for name in {"streams", "voices"} & packet.host.keys():
            packet.host[name].fill(self._streams.nobody)
        packet.host["penalty"].view(np.float32).fill(1.0)
        return packet

    def capture(self, pool: Any, progress: Progress = lambda done: None) -> None:
        """Capture every step on the current stream, in a pool of memory; nothing may be running."""
        sizes = sorted(self._sizes, key=lambda size: (size.tokens, size.rows), reverse=True)  # the largest first
        for number, size in enumerate(sizes):
            self.packet(size)
            self._graphs[size] = captured(partial(self._step, size), pool)
            progress((number + 1) / len(sizes))

    def launch(self, size: Size) -> None:
        """Launch a step after its packet was written; `made` holds its rows' frames when it is done."""
        graph = self._graphs.get(size)
        if graph is None:
            self._step(size)
        else:
            graph.replay()

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
