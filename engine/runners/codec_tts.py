"""Runs a codec language model's part of a plan: positions of utterances in, frames of codes and their samples out.

A request's `payload` is a `UtteranceStream`; `tokens` only counts its positions. A step computes positions of every
row, makes the next frame of each row that has one due, and decodes the frames of each stream that has a chunk of them.
The codec's state of a stream is one row, its slot. If the slot holds the state of another stream, the runner decodes
all frames of the stream again, a few in each step; until that is done the stream makes no frame and computes its last
position again. The states of cloned clips are kept in rows of their own.

The job adds frames to the utterance and counts decoded frames when it takes a step's outcome. The runner writes caches,
codec state and `UtteranceStream.stale` when a step is launched.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from voxlane.engine.memory.pages import KVCache
from voxlane.engine.memory.state_rows import StateRows
from voxlane.engine.models.qwen3_tts.choice import Choices
from voxlane.engine.models.qwen3_tts.codec import Qwen3TTSCodec
from voxlane.engine.models.qwen3_tts.config import SpeechSampling
from voxlane.engine.models.qwen3_tts.model import Qwen3TTS
from voxlane.engine.models.qwen3_tts.prompt import Codes, Utterance
from voxlane.engine.runners.decoder import Outcome, PagedRunner
from voxlane.engine.schedule.plan import ModelBatch, Row
from voxlane.engine.schedule.request import Payload

MAX_CHUNK = 8
"""Most frames of a stream decoded in one call: 0.64 s."""

LEADS = 8
"""Cloned clips whose codec state is kept: to decode ten seconds again takes a device 16 calls of 0.9 ms, and one core
of a CPU 24 s."""

CHUNKS = (MAX_CHUNK, 4, 2)
"""Frames that may be decoded together; a listener without audio gets one at a time."""

CHUNKS_AHEAD = 2
"""A chunk is at most this part of the audio the listener has, so that it comes long before that is over."""

NO_SAMPLES = np.zeros(0, np.float32)


@dataclass(slots=True, eq=False)
class UtteranceStream(Payload):
    """What the talker needs of a request: one utterance on its way to a listener."""

    utterance: Utterance
    sampling: SpeechSampling
    seed: int
    lead: tuple[Codes, ...] = ()  # frames of a cloned clip: decoded first, never sent
    slot: int = -1  # its row of the codec's state; -1: none, and it may not be in a step
    stale: bool = True  # the slot does not hold the state after its decoded frames
    decoded: int = 0  # frames that were decoded
    chunk: int = 1  # frames are decoded once so many are there
    keep: int = 0  # newest frames that wait for the next one, so that the end comes with sound
    number: int = field(default_factory=itertools.count().__next__)  # its identity, which a slot remembers

    @property
    def undecoded(self) -> list[Codes]:
        """Return the frames that were not decoded."""
        return self.utterance.frames[self.decoded :]

    def makes_frame(self, row: Row) -> bool:
        """Return whether a step over this row makes the next frame."""
        return self.utterance.frame_due(row.start + row.count) and not self.stale

    def due(self, frame: Codes, *, over: bool) -> list[Codes]:
        """Return the frames to decode now that `frame` was made, or that it has ended the utterance."""
        if over:
            return self.undecoded
        there = [*self.undecoded, frame]
        there = there[: len(there) - self.keep]
        return there if len(there) >= self.chunk else []

    def chunk_for(self, ahead: float) -> int:
        """Return how many frames the listener gets next, if it is so many ahead.

        Chunks end at multiples of their size plus the slot: streams that began together are decoded in different steps.
        """
        for size in CHUNKS:
            if size * CHUNKS_AHEAD <= ahead:
                return size - (self.decoded + self.slot) % size
        return 1

    def rewind(self, frames: int) -> None:
        """Go back to where so many frames were made and decoded; the cache may keep `available` - 1 positions."""
        self.utterance.rewind(frames)
        self.stale = self.stale or self.decoded > frames
        self.decoded = min(self.decoded, frames)

    @property
    def heard(self) -> list[Codes]:
        """Return all frames before the next one to decode."""
        return [*self.lead, *self.utterance.frames[: self.decoded]]


@dataclass(slots=True)
class FrameOutcome(Outcome):
    """The frame and the samples that a step made for a stream."""

    # None: the prompt is not computed, text is missing, or the slot is behind and the position is computed again.
    # If the first code is the end code, the utterance is over.
    frame: Codes | None = None
    # Samples of frames from `decoded` on; at the end of all of them.
    samples: NDArray[np.float32] = field(default_factory=lambda: NO_SAMPLES)


class CodecTTS(PagedRunner):
    """Runs a talker and its codec on the host."""

    hears = MAX_CHUNK
    """Frames of all streams that a step may decode again: on a host as much work as so many new ones."""

    def __init__(self, model: Qwen3TTS, codec: Qwen3TTSCodec, cache: KVCache, *, slots: int, max_rows: int) -> None:
        super().__init__(cache)
        self.model = model
        self.codec = codec
        self.slots = StateRows(slots)
        # After the slots come the rows of clips. No stream owns the last row: padding of a batch uses it.
        self.state = codec.state(slots + LEADS + 1, MAX_CHUNK)
        self._leads: OrderedDict[bytes, int] = OrderedDict()  # rows of clips by digest; the last was used last
        self._caught: dict[int, tuple[int, int]] = {}  # by slot: the stream being caught up, its decoded frames
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

    def _decode(self, rows: list[Row], frames: dict[int, Codes]) -> dict[int, NDArray[np.float32]]:
        """Return the samples of streams that have a chunk of frames; chunks of equal length go in one call."""
        alike: dict[int, list[tuple[int, list[Codes]]]] = defaultdict(list)
        for index, frame in frames.items():
            if min(frame) < 0:
                continue
            if chunk := stream_of(rows[index]).due(frame, over=frame[0] == self.model.end_code):
                alike[len(chunk)].append((index, chunk))
        found: dict[int, NDArray[np.float32]] = {}
        for chunks in alike.values():
            streams = [stream_of(rows[index]) for index, _ in chunks]
            slots = torch.tensor([stream.slot for stream in streams])
            samples = self.codec.decode(torch.tensor([chunk for _, chunk in chunks]), self.state, slots)
            found |= {index: own.numpy() for (index, _), own in zip(chunks, samples, strict=True)}
        return found

    def _catch_up(self, streams: Sequence[UtteranceStream]) -> None:
        """Decode the earlier frames of stale streams again, as many as a step may; then they are no longer stale."""
        behind, left = [stream for stream in streams if stream.stale], self.hears
        for stream in behind:
            who, count = self._caught.get(stream.slot, (-1, 0))
            if who != stream.number or count > len(stream.heard):
                self._caught[stream.slot] = stream.number, self._lead_in(stream)
        while left > 0:
            some: list[tuple[UtteranceStream, list[Codes]]] = []
            for stream in behind:
                frames = self._unheard(stream)[:left]
                left -= len(frames)
                some += [(stream, frames)] if frames else []
            if not some:
                break
            self._hear([(stream.slot, frames) for stream, frames in some])
            for stream, frames in some:
                self._has_heard(stream, len(frames))
        for stream in behind:
            if self._caught[stream.slot][1] == len(stream.heard):
                stream.stale = False
                del self._caught[stream.slot]

    def _unheard(self, stream: UtteranceStream) -> list[Codes]:
        """Return the frames that a slot decodes next; they stop at the end of a clip, whose state is kept."""
        count, clip = self._caught[stream.slot][1], len(stream.lead)
        return stream.heard[count : min(count + MAX_CHUNK, clip if count < clip else len(stream.heard))]

    def _has_heard(self, stream: UtteranceStream, frames: int) -> None:
        number, count = self._caught[stream.slot]
        count += frames
        self._caught[stream.slot] = number, count
        if count == len(stream.lead) and (digest := _digest(stream.lead)) not in self._leads:
            self._keep_lead(stream.slot, digest)

    def _hear(self, pieces: Sequence[tuple[int, list[Codes]]]) -> None:
        """Decode frames for their effect on the states of slots."""
        for slot, frames in pieces:
            self.codec.decode(torch.tensor([frames]), self.state, torch.tensor([slot]))

    def _lead_in(self, stream: UtteranceStream) -> int:
        """Reset a slot, or copy the kept state of the stream's clip into it; return how many frames it holds."""
        digest = _digest(stream.lead)
        if digest not in self._leads:
            self.state.reset(stream.slot)
            return 0
        self._leads.move_to_end(digest)
        self.state.copy(self._leads[digest], stream.slot)
        return len(stream.lead)

    def _keep_lead(self, slot: int, digest: bytes) -> None:
        """Keep the state of a slot that has decoded a clip and nothing else."""
        if len(self._leads) == LEADS:
            self._leads.popitem(last=False)
        taken = self._leads.values()
        place = next(row for row in range(self.slots.count, self.slots.count + LEADS) if row not in taken)
        self.state.copy(slot, place)
        self._leads[digest] = place

    def _outcome(self, frame: Codes | None, samples: NDArray[np.float32] | None) -> Outcome:
        if (frame is not None and min(frame) < 0) or (samples is not None and not np.isfinite(samples).all()):
            return Outcome(failed=True)
        return FrameOutcome(frame, NO_SAMPLES if samples is None else samples)


def _digest(lead: tuple[Codes, ...]) -> bytes:
    """Return a clip's key. The frames are a person's voice: they are not kept longer than the streams that use it."""
    return hashlib.blake2b(np.array(lead, np.int32).tobytes(), digest_size=16).digest()


def stream_of(row: Row) -> UtteranceStream:
    """Return the stream that a row goes on with."""
    assert isinstance(row.request.payload, UtteranceStream)
    return row.request.payload
