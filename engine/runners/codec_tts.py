"""A codec language model's part of a plan: positions of utterances in, frames of codes and their samples out.

A request's `payload` is a `UtteranceStream`; `tokens` only counts its positions. A step computes positions of every
row, makes the next frame of rows that have one due, and decodes frames of those streams that have a chunk of them
together. What a stream sounded like so far is a row of the codec's state, its slot; a stream whose slot holds something
else is caught up first, by hearing all its frames again, a few in a step: until then it makes none, and its last
position is computed again. What clips sound like is kept in rows of their own. It knows codes and samples. Text, words
and listeners are the job's business.

Who writes what: the job takes frames into the utterance and counts what was decoded, when a step's outcome is told; the
engine writes caches, codec state and `UtteranceStream.stale`, when a step is launched.
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
from voxlane.engine.memory.state_rows import Slots
from voxlane.engine.models.qwen3_tts.choice import Choices
from voxlane.engine.models.qwen3_tts.codec import Qwen3TTSCodec
from voxlane.engine.models.qwen3_tts.config import SpeechSampling
from voxlane.engine.models.qwen3_tts.model import Qwen3TTS
from voxlane.engine.models.qwen3_tts.prompt import Codes, Utterance
from voxlane.engine.runners.decoder import Outcome, PagedRunner
from voxlane.engine.schedule.plan import ModelBatch, Row
from voxlane.engine.schedule.request import Payload

MAX_CHUNK = 8
"""Most frames of a stream decoded in one go: 0.64 s."""

LEADS = 8
"""Clips whose state, as speech goes on from them, is kept: to hear ten seconds again takes a device 16 calls of 0.9 ms,
and one core of a CPU 24 s."""

CHUNKS = (MAX_CHUNK, 4, 2)
"""Frames that may be decoded together; one at a time for who has nothing."""

CHUNKS_AHEAD = 2
"""A chunk is at most one part in so many of what the listener has: it comes long before that is over."""

NO_SAMPLES = np.zeros(0, np.float32)


@dataclass(slots=True, eq=False)
class UtteranceStream(Payload):
    """One utterance on its way to a listener: what a talker's request is about."""

    utterance: Utterance
    sampling: SpeechSampling
    seed: int
    lead: tuple[Codes, ...] = ()  # frames of a clip that speech goes on from: heard by the codec, never sent
    slot: int = -1  # its row of the codec's state; below zero: it has none, and may not be in a step
    stale: bool = True  # the slot does not hold what was decoded so far
    decoded: int = 0  # frames whose samples have come
    chunk: int = 1  # frames that are decoded together: once so many are there, all of them are
    keep: int = 0  # newest frames that are not decoded before the next is known, so that an end has sound to go with
    number: int = field(default_factory=itertools.count().__next__)  # who it is: a slot remembers that, not the stream

    @property
    def undecoded(self) -> list[Codes]:
        """Return the frames that nobody has heard."""
        return self.utterance.frames[self.decoded :]

    def makes_frame(self, row: Row) -> bool:
        """Return whether a step over this row makes the next frame."""
        return self.utterance.frame_due(row.start + row.count) and not self.stale

    def due(self, frame: Codes, *, over: bool) -> list[Codes]:
        """Return the frames to be decoded now that `frame` was spoken, or speech is over with it."""
        if over:
            return self.undecoded
        there = [*self.undecoded, frame]
        there = there[: len(there) - self.keep]
        return there if len(there) >= self.chunk else []

    def chunk_for(self, ahead: float) -> int:
        """Return how many frames a listener who has so many gets next.

        Up to a multiple of the size for its slot: streams that began together are not decoded together ever after, all
        in one long step.
        """
        for size in CHUNKS:
            if size * CHUNKS_AHEAD <= ahead:
                return size - (self.decoded + self.slot) % size
        return 1

    def rewind(self, frames: int) -> None:
        """Go back to where so many frames were spoken and decoded; its cache keeps no more than `available` - 1."""
        self.utterance.rewind(frames)
        self.stale = self.stale or self.decoded > frames
        self.decoded = min(self.decoded, frames)

    @property
    def heard(self) -> list[Codes]:
        """Return all frames that lie behind what is decoded next."""
        return [*self.lead, *self.utterance.frames[: self.decoded]]


@dataclass(slots=True)
class FrameOutcome(Outcome):
    """The frame and the samples that a step made for a stream."""

    # None: the prompt is not through, the text was short, or one is due and the slot is not caught up: the same again.
    # An end code first: it is over.
    frame: Codes | None = None
    # Of the frames from `decoded` on; at the end of all of them.
    samples: NDArray[np.float32] = field(default_factory=lambda: NO_SAMPLES)


class Talker(PagedRunner):
    """Runs a talker and its codec on the host."""

    hears = MAX_CHUNK
    """Frames of all streams that are heard again in a step: on a host as much work as so many new ones."""

    def __init__(self, model: Qwen3TTS, codec: Qwen3TTSCodec, cache: KVCache, *, slots: int, max_rows: int) -> None:
        super().__init__(cache)
        self.model = model
        self.codec = codec
        self.slots = Slots(slots)
        # Behind the slots are the clips. The last row is nobody's: what fills a batch up may go there.
        self.state = codec.state(slots + LEADS + 1, MAX_CHUNK)
        self._leads: OrderedDict[bytes, int] = OrderedDict()  # their rows by digest; who was used last is last
        self._caught: dict[int, tuple[int, int]] = {}  # by slot: which stream is caught up, and how far it has heard
        self._scratch = model.predictor.scratch(max_rows)

    def launch(self, load: ModelBatch) -> Any:
        """Carry out the model's part of a plan; outcomes are in the order of its rows."""
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
        """Return the samples of streams that have a chunk of frames together; those of equal length go at once."""
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
        """Have slots that hold something else hear what lies behind the next frame, as much of it as a step may.

        A stream is `stale` until it has heard all of that.
        """
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
        """Return what a slot hears next: no further than a clip, whose state is kept."""
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
        """Let a slot begin anew, after the frames of a clip if they are known; return how many those are."""
        digest = _digest(stream.lead)
        if digest not in self._leads:
            self.state.reset(stream.slot)
            return 0
        self._leads.move_to_end(digest)
        self.state.copy(self._leads[digest], stream.slot)
        return len(stream.lead)

    def _keep_lead(self, slot: int, digest: bytes) -> None:
        """Keep what a slot holds, which has heard a clip and nothing else."""
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
    """Return what a clip is known by: its frames are a person's voice, and leave with who speaks with it."""
    return hashlib.blake2b(np.array(lead, np.int32).tobytes(), digest_size=16).digest()


def stream_of(row: Row) -> UtteranceStream:
    """Return the stream that a row goes on with."""
    assert isinstance(row.request.payload, UtteranceStream)
    return row.request.payload
