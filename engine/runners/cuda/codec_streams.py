"""What runners of codec language models share on a CUDA device: the life of a step, and the codec behind it.

All of a step is queued without waiting: the model, all codes of the next frames, then the codec for streams that have a
chunk, as if none of the new frames were an end. When the step is done the host sees which frames are ends: it drops
samples past an end, and decodes the frames that an end leaves undecoded in one more call. A runner has a CUDA stream of
its own and waits for no other model. The same code runs on a CPU, kernel by kernel: the tests compare it with the
host's runners.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from voxlane.engine.models.qwen3_tts.choice import packet_rows
from voxlane.engine.runners.codec_streams import NO_SAMPLES, CodecRunner, CodecStream, Codes, codec_stream
from voxlane.engine.runners.cuda.codec_graphs import CodecGraphs, FramePiece
from voxlane.engine.runners.cuda.device import Stopwatch, watched
from voxlane.engine.runners.cuda.frame_rings import RING, FrameRings
from voxlane.engine.runners.cuda.rows import PACKET
from voxlane.engine.runners.decoder import Outcome
from voxlane.engine.schedule.plan import ModelBatch

Numbers = NDArray[np.int32]
Progress = Callable[[float], None]


@dataclass(slots=True)
class KnownStream:
    """What the device holds of a stream once all queued work is done."""

    number: int  # of the stream
    frames: int  # made
    decoded: int  # frames decoded; -1: the codec's state is another stream's
    first: Numbers  # how first codes are chosen, but for the position
    inner: Numbers


@dataclass(slots=True)
class CodecStep:
    """A step under way."""

    load: ModelBatch
    due: list[int]  # rows that make a frame
    before: dict[int, tuple[int, int]]  # by row: frames made and frames decoded before this step
    watch: Stopwatch
    rest: Stopwatch  # of frames that are decoded once the ends are known
    sounds: dict[int, tuple[int, list[Tensor]]] = field(default_factory=dict)  # by row: frames decoded, their samples
    frames: dict[int, Codes] | None = None  # by row, once it is done
    phases: dict[str, tuple[float, float]] = field(default_factory=dict)


class CudaCodecRunner(CodecRunner):
    """Turns the frames of streams into samples on one device; a subclass makes the frames."""

    overlaps = True
    hears = 64
    """A call of 8 frames takes 0.9 ms, and four streams share one: a step is at most 7 ms longer, and two steps decode
    a clip of 10 s."""

    def _open(self, device: torch.device, rings: FrameRings, *, max_rows: int) -> None:
        """Prepare the codec for streams whose frames are in `rings`; called once, after the host's part is there."""
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._rings = rings
        self._calls = CodecGraphs(self.codec, self.state, rings.frames, max_rows=max_rows)
        self._known: dict[int, KnownStream] = {}  # by slot
        self._watches = itertools.cycle([Stopwatch(device), Stopwatch(device)])  # two steps may be read at once
        self._sound = True  # the last launch has had no fault so far

    def capture(self, progress: Progress = lambda done: None) -> None:
        """Capture every step; before the first run, and never on a device without graphs."""
        torch.cuda.synchronize(self._device)
        pool = torch.cuda.graph_pool_handle()  # shared: one graph runs at a time, and results lie elsewhere
        with self._on_stream():
            self._calls.capture(pool, lambda done: progress(done / 2))
            self._capture(pool, lambda done: progress((1 + done) / 2))

    def launch(self, load: ModelBatch) -> CodecStep:
        """Queue a step on the device; the step before must have been waited for."""
        marks = [time.monotonic()]
        with self._on_stream():
            if not self._sound:  # after a fault the device's state is unknown, and a step may be under way
                self._wait()
                self._known.clear()
                self._leads.clear()
                self._caught.clear()
            self._sound = False
            self._move(load.moves)
            marks.append(time.monotonic())
            ticket = self._launch(load, next(self._watches))
            self._sound = True
        marks.append(time.monotonic())
        ticket.phases = dict(zip(("move", "launch"), itertools.pairwise(marks), strict=True))
        return ticket

    def done(self, ticket: CodecStep) -> bool:
        """Return whether a step is done, and the samples of utterances that ended in it."""
        with watched(self._device):
            if not ticket.watch.done():
                return False
        if ticket.frames is None:
            self._sound = False
            with self._on_stream():
                self._look(ticket)
            self._sound = True
        return ticket.rest.done()

    def wait(self, ticket: CodecStep) -> None:
        """Wait for a step, and for the samples of utterances that ended in it."""
        if "wait" in ticket.phases:
            return
        begin = time.monotonic()
        self._sound = False
        with self._on_stream():
            start_s, stop_s = ticket.watch.wait()
            if ticket.frames is None:
                self._look(ticket)
            rest_s = ticket.rest.wait()
        self._sound = True
        device_s = stop_s - start_s + rest_s[1] - rest_s[0]
        end = time.monotonic()
        ticket.phases |= {"device": (end - device_s, end), "wait": (begin, end)}

    def collect(self, ticket: CodecStep) -> Sequence[Outcome]:
        """Return the outcomes of a step's rows in their order."""
        self.wait(ticket)
        self.phases = ticket.phases
        sounds: dict[int, NDArray[np.float32]] = {}
        for index, (count, pieces) in ticket.sounds.items():
            whole = np.concatenate([piece.numpy() for piece in pieces]) if pieces else NO_SAMPLES
            sounds[index] = whole[: count * self.codec.frame_samples]
        return self._outcomes(ticket, sounds)

    @abstractmethod
    def _capture(self, pool: object, progress: Progress) -> None:
        """Capture the steps of the model on the current stream, in a pool of memory."""

    @abstractmethod
    def _launch(self, load: ModelBatch, watch: Stopwatch) -> CodecStep:
        """Queue a step on the current stream, and its times on `watch`."""

    @abstractmethod
    def _look(self, ticket: CodecStep) -> None:
        """Read what a step that is done has made, and give its frames to `_settle`."""

    @abstractmethod
    def _outcomes(self, ticket: CodecStep, sounds: dict[int, NDArray[np.float32]]) -> list[Outcome]:
        """Return the outcomes of a step that is done; `sounds` are the samples of its rows."""

    # ---- queued on the device

    def _meet(self, stream: CodecStream) -> KnownStream:
        """Send the device what it lacks of a stream; return what it then holds."""
        known, spoken = self._known.get(stream.slot), len(stream.utterance.frames)
        assert stream.slot >= 0, "a stream without a slot has no place on the device"
        if known is None or known.number != stream.number:
            first, inner = (_padded(numbers) for numbers in packet_rows(stream.sampling, stream.seed, 0))
            known = self._known[stream.slot] = KnownStream(stream.number, -1, -1, first, inner)
        if known.frames != spoken:
            known.frames = spoken
            self._tell(stream)
        stream.stale = stream.stale or known.decoded != stream.decoded
        return known

    def _tell(self, stream: CodecStream) -> None:
        """Write to the device what it keeps of a stream."""
        self._rings.tell_last(stream.slot, stream.utterance.frames)

    def _catch_up_known(self, streams: Iterable[tuple[CodecStream, KnownStream]]) -> None:
        """Catch stale streams up as far as a step may; then tell whose codec state is right."""
        pairs = list(streams)
        self._catch_up([stream for stream, _ in pairs])
        for stream, known in pairs:
            known.decoded = -1 if stream.stale else stream.decoded

    def _decode_ahead(self, ticket: CodecStep, due: Iterable[tuple[int, CodecStream, KnownStream]]) -> None:
        """Queue the codec for streams that have a chunk, as if the frame they make now were no end."""
        pieces: list[FramePiece] = []
        owners: list[int] = []
        for index, stream, known in due:
            count = known.frames - stream.decoded - stream.keep
            if count >= stream.chunk:
                pieces.append(FramePiece(stream.slot, stream.slot, known.decoded, count))
                owners.append(index)
                known.decoded += count
        for index, piece, samples in zip(owners, pieces, self._launch_codec(pieces), strict=True):
            ticket.sounds[index] = piece.count, samples

    def _hear(self, pieces: Sequence[tuple[int, list[Codes]]]) -> None:
        """Decode frames for their effect on the slots' states: as many streams in a call as the ring has room for."""
        nobody = self._rings.nobody
        told: list[Codes] = []
        calls: list[FramePiece] = []
        for slot, frames in (*pieces, (nobody, [])):
            if calls and (not frames or len(told) + len(frames) > RING):
                self._rings.tell(nobody, 0, told)
                self._launch_codec(calls)
                told, calls = [], []
            calls.append(FramePiece(slot, nobody, len(told), len(frames)))
            told += frames

    def _launch_codec(self, pieces: list[FramePiece]) -> list[list[Tensor]]:
        return self._calls.launch(pieces) if pieces else []

    # ---- when it is done

    def _settle(self, ticket: CodecStep, frames: dict[int, Codes]) -> None:
        """Take the new frames by row; cut samples past an end, and queue the frames that an end leaves undecoded."""
        ticket.frames = frames
        ticket.rest.start()
        missing: dict[int, FramePiece] = {}
        for index, frame in frames.items():
            if frame[0] != self._end_code or min(frame) < 0:
                continue
            stream, (spoken, decoded) = codec_stream(ticket.load.rows[index]), ticket.before[index]
            sounding, (count, samples) = spoken - decoded, ticket.sounds.get(index, (0, []))
            ticket.sounds[index] = sounding, samples
            if count < sounding:
                missing[index] = FramePiece(stream.slot, stream.slot, decoded + count, sounding - count)
            known = self._known.get(stream.slot)
            if known is not None and known.number == stream.number:  # speech may go on after an end of sound
                known.frames, known.decoded = spoken, spoken if count <= sounding else -1
        for index, samples in zip(missing, self._launch_codec(list(missing.values())), strict=True):
            ticket.sounds[index][1].extend(samples)
        ticket.rest.stop()

    def _wait(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()

    @contextlib.contextmanager
    def _on_stream(self) -> Iterator[None]:
        with watched(self._device), torch.inference_mode(), torch.cuda.stream(self._stream):
            yield


def _padded(numbers: list[int]) -> Numbers:
    return np.array(numbers + [0] * (PACKET - len(numbers)), np.int32)
