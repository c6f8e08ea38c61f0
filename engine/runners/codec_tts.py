"""Runs a codec language model's part of a plan: positions of utterances in, frames of codes and their samples out.

A request's `payload` is a `UtteranceStream`; `tokens` only counts its positions. A step computes positions of every
row, makes the next frame of each row that has one due, and decodes the frames of each stream that has a chunk of them
(codec_streams.py).
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from voxlane.engine.memory.pages import KVCache
from voxlane.engine.models.qwen3_tts.choice import Choices
from voxlane.engine.models.qwen3_tts.codec import Qwen3TTSCodec
from voxlane.engine.models.qwen3_tts.model import Qwen3TTS
from voxlane.engine.models.qwen3_tts.prompt import Codes, Utterance
from voxlane.engine.runners.codec_streams import NO_SAMPLES, CodecRunner, CodecStream
from voxlane.engine.runners.decoder import Outcome
from voxlane.engine.schedule.plan import ModelBatch, Row


@dataclass(slots=True, eq=False)
class UtteranceStream(CodecStream):
    """What the talker needs of a request: one utterance on its way to a listener."""

    utterance: Utterance


@dataclass(slots=True)
class FrameOutcome(Outcome):
    """The frame and the samples that a step made for a stream."""

    # None: the prompt is not computed, text is missing, or the slot is behind and the position is computed again.
    # If the first code is the end code, the utterance is over.
    frame: Codes | None = None
    # Samples of frames from `decoded` on; at the end of all of them.
    samples: NDArray[np.float32] = field(default_factory=lambda: NO_SAMPLES)


class CodecTTS(CodecRunner):
    """Runs a talker and its codec on the host."""

    def __init__(self, model: Qwen3TTS, codec: Qwen3TTSCodec, cache: KVCache, *, slots: int, max_rows: int) -> None:
        super().__init__(codec, cache, slots=slots, end_code=model.end_code)
        self.model = model
        self._scratch = model.predictor.scratch(max_rows)

    def launch(self, load: ModelBatch) -> Any:
        """Run the model's part of a plan; return outcomes in the order of its rows."""
        marks = [time.monotonic()]
        self._move(load.moves)
        marks.append(time.monotonic())
        with torch.inference_mode():
            _, layout = self._layout(load.rows)
            ranges = [(stream_of(row).utterance, row.start, row.start + row.count) for row in load.rows]
            hidden = self.model.forward(self.model.inputs(ranges), layout, self.cache.pages)
            marks.append(time.monotonic())
            self._catch_up([stream_of(row) for row in load.rows])
            marks.append(time.monotonic())
            frames = self._frames(load.rows, hidden)
            marks.append(time.monotonic())
            sounds = self._decode(load.rows, frames)
        marks.append(time.monotonic())
        self.phases = dict(zip(("move", "forward", "hear", "sample", "codec"), itertools.pairwise(marks), strict=True))
        return [self._outcome(frames.get(index), sounds.get(index)) for index in range(len(load.rows))]

    def _frames(self, rows: list[Row], hidden: Tensor) -> dict[int, Codes]:
        """Return the next frame of every row that has one due."""
        ends = itertools.accumulate(row.count for row in rows)
        due = [
            (index, end - 1)
            for index, (row, end) in enumerate(zip(rows, ends, strict=True))
            if stream_of(row).makes_frame(row)
        ]
        if not due:
            return {}
        streams = [stream_of(rows[index]) for index, _ in due]
        choices = Choices.of(
            self.model.config, [(stream.utterance, stream.sampling, stream.seed) for stream in streams]
        )
        codes = self.model.frames(hidden[torch.tensor([place for _, place in due])], choices, self._scratch)
        return {index: tuple(frame) for (index, _), frame in zip(due, codes.tolist(), strict=True)}

    def _outcome(self, frame: Codes | None, samples: NDArray[np.float32] | None) -> Outcome:
        if (frame is not None and min(frame) < 0) or (samples is not None and not np.isfinite(samples).all()):
            return Outcome(failed=True)
        return FrameOutcome(frame, NO_SAMPLES if samples is None else samples)


def stream_of(row: Row) -> UtteranceStream:
    """Return the stream that a row goes on with."""
    assert isinstance(row.request.payload, UtteranceStream)
    return row.request.payload
