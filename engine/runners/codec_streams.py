"""What runners of codec language models share: streams of frames, and the codec's state that makes samples of them.

The codec's state of a stream is one row, its slot. If the slot holds the state of another stream, the runner decodes
all frames of the stream again, a few in each step; until that is done the stream makes no frame and computes its last
position again. The states of cloned clips are kept in rows of their own.

The job adds frames to the utterance and counts decoded frames when it takes a step's outcome. The runner writes caches,
codec state and `CodecStream.stale` when a step is launched.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from voxlane.engine.memory.pages import KVCache
from voxlane.engine.memory.state_rows import StateRows
from voxlane.engine.models.qwen3_tts.config import SpeechSampling
from voxlane.engine.models.streaming_codec import StreamingCodec
from voxlane.engine.runners.decoder import PagedRunner
from voxlane.engine.schedule.plan import Row
from voxlane.engine.schedule.request import Payload

Codes = tuple[int, ...]

MAX_CHUNK = 8
"""Most frames of a stream decoded in one call: 0.64 s."""

LEADS = 8
"""Cloned clips whose codec state is kept: to decode ten seconds again takes a device 16 calls of 0.9 ms, and one core
of a CPU 24 s."""

CHUNKS = (MAX_CHUNK, 4, 2)
"""FrameSource that may be decoded together; a listener without audio gets one at a time."""

CHUNKS_AHEAD = 2
"""A chunk is at most this part of the audio the listener has, so that it comes long before that is over."""

NO_SAMPLES = np.zeros(0, np.float32)


class FrameSource(Protocol):
    """What makes the frames of a stream."""

    @property
    def frames(self) -> list[Codes]:
        """The frames so far, those that are sound."""

    def frame_due(self, position: int) -> bool:
        """Return whether the position after so many makes a frame."""

    def rewind(self, frames: int) -> None:
        """Go back to where so many frames were made."""


@dataclass(slots=True, eq=False)
class CodecStream(Payload):
    """FrameSource on their way to a listener."""

    utterance: FrameSource
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


class CodecRunner(PagedRunner):
    """Turns the frames of streams into samples on the host; a subclass makes the frames."""

    hears = MAX_CHUNK
    """FrameSource of all streams that a step may decode again: on a host as much work as so many new ones."""

    def __init__(self, codec: StreamingCodec, cache: KVCache, *, slots: int, end_code: int) -> None:
        super().__init__(cache)
        self.codec = codec
        self.slots = StateRows(slots)
        # After the slots come the rows of clips. No stream owns the last row: padding of a batch uses it.
        self.state = codec.state(slots + LEADS + 1, MAX_CHUNK)
        self._end_code = end_code
        self._leads: OrderedDict[bytes, int] = OrderedDict()  # rows of clips by digest; the last was used last
        self._caught: dict[int, tuple[int, int]] = {}  # by slot: the stream being caught up, its decoded frames

    def _decode(self, rows: list[Row], frames: dict[int, Codes]) -> dict[int, NDArray[np.float32]]:
        """Return the samples of streams that have a chunk of frames; chunks of equal length go in one call."""
        alike: dict[int, list[tuple[int, list[Codes]]]] = defaultdict(list)
        for index, frame in frames.items():
            if min(frame) < 0:
                continue
            if chunk := codec_stream(rows[index]).due(frame, over=frame[0] == self._end_code):
                alike[len(chunk)].append((index, chunk))
        found: dict[int, NDArray[np.float32]] = {}
        for chunks in alike.values():
            streams = [codec_stream(rows[index]) for index, _ in chunks]
            slots = torch.tensor([stream.slot for stream in streams])
            samples = self.codec.decode(torch.tensor([chunk for _, chunk in chunks]), self.state, slots)
            found |= {index: own.numpy() for (index, _), own in zip(chunks, samples, strict=True)}
        return found

    def _catch_up(self, streams: Sequence[CodecStream]) -> None:
        """Decode the earlier frames of stale streams again, as many as a step may; then they are no longer stale."""
        behind, left = [stream for stream in streams if stream.stale], self.hears
        for stream in behind:
            who, count = self._caught.get(stream.slot, (-1, 0))
            if who != stream.number or count > len(stream.heard):
                self._caught[stream.slot] = stream.number, self._lead_in(stream)
        while left > 0:
            some: list[tuple[CodecStream, list[Codes]]] = []
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

    def _unheard(self, stream: CodecStream) -> list[Codes]:
        """Return the frames that a slot decodes next; they stop at the end of a clip, whose state is kept."""
        count, clip = self._caught[stream.slot][1], len(stream.lead)
        return stream.heard[count : min(count + MAX_CHUNK, clip if count < clip else len(stream.heard))]

    def _has_heard(self, stream: CodecStream, frames: int) -> None:
        number, count = self._caught[stream.slot]
        count += frames
        self._caught[stream.slot] = number, count
        if count == len(stream.lead) and (digest := _digest(stream.lead)) not in self._leads:
            self._keep_lead(stream.slot, digest)

    def _hear(self, pieces: Sequence[tuple[int, list[Codes]]]) -> None:
        """Decode frames for their effect on the states of slots."""
        for slot, frames in pieces:
            self.codec.decode(torch.tensor([frames]), self.state, torch.tensor([slot]))

    def _lead_in(self, stream: CodecStream) -> int:
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


def _digest(lead: tuple[Codes, ...]) -> bytes:
    """Return a clip's key. The frames are a person's voice: they are not kept longer than the streams that use it."""
    return hashlib.blake2b(np.array(lead, np.int32).tobytes(), digest_size=16).digest()


def codec_stream(row: Row) -> CodecStream:
    """Return the stream that a row goes on with."""
    assert isinstance(row.request.payload, CodecStream)
    return row.request.payload
