"""Runs a codec language model's part of a plan on a CUDA device: one graph for frames, others for their samples.

All of a step is queued without waiting: the talker over prompts and frames, all codes of the next frames, then the
codec for streams that have a chunk, as if none of the new frames were an end. When the step is done the host sees which
frames are ends: it drops samples past an end, and decodes the frames that an end leaves undecoded in one more call. It
has a CUDA stream of its own and waits for no other model. The same code runs on a CPU, kernel by kernel: the tests
compare it with the host's Talker.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from voxlane.engine.kernels.sampling.sampling import POSITION
from voxlane.engine.memory.pages import KVCache
from voxlane.engine.models.qwen3_tts.choice import packet_rows
from voxlane.engine.models.qwen3_tts.codec import Qwen3TTSCodec
from voxlane.engine.models.qwen3_tts.model import Qwen3TTS
from voxlane.engine.models.qwen3_tts.prompt import SPEAKER, Codes
from voxlane.engine.runners.codec_streams import LEADS, NO_SAMPLES
from voxlane.engine.runners.codec_tts import CodecTTS, UtteranceStream, stream_of
from voxlane.engine.runners.cuda.codec_graphs import CodecGraphs, FramePiece
from voxlane.engine.runners.cuda.codec_tts_graphs import RING, FrameGraphs, Size, Streams
from voxlane.engine.runners.cuda.device import Stopwatch, watched
from voxlane.engine.runners.cuda.rows import PACKET
from voxlane.engine.runners.cuda.staging import StagingBuffer
from voxlane.engine.runners.decoder import Outcome
from voxlane.engine.schedule.plan import ModelBatch, Row

Numbers = NDArray[np.int32]


@dataclass(slots=True)
class _Known:
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
    due: list[int]  # rows that make a frame; a row's place on the device is its index
    before: dict[int, tuple[int, int]]  # by row: frames made and frames decoded before this step
    sounds: dict[int, tuple[int, list[Tensor]]]  # by row: how many frames this step decodes, and their samples
    watch: Stopwatch
    rest: Stopwatch  # of frames that are decoded once the ends are known
    frames: dict[int, Codes] | None = None  # once it is done
    phases: dict[str, tuple[float, float]] = field(default_factory=dict)


class CudaCodecTTS(CodecTTS):
    """Runs a talker and its codec on one device."""

    overlaps = True
    hears = 64
    """A call of 8 frames takes 0.9 ms, and four streams share one: a step is at most 7 ms longer, and two steps decode
    a clip of 10 s."""

    def __init__(
        self,
        model: Qwen3TTS,
        codec: Qwen3TTSCodec,
        cache: KVCache,
        device: torch.device,
        *,
        slots: int,
        max_rows: int,
        max_tokens: int,
    ) -> None:
        """Prepare for steps of at most so many rows and tokens."""
        super().__init__(model, codec, cache, slots=slots, max_rows=max_rows)
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        context_tokens = min(model.talker.context_tokens, cache.num_blocks * cache.block_tokens)
        self._streams = Streams(slots + LEADS, model, device)
        self._graphs = FrameGraphs(
            model,
            cache,
            self._streams,
            self._scratch,
            device,
            max_rows=max_rows,
            max_tokens=max_tokens,
            context_tokens=context_tokens,
        )
        self._calls = CodecGraphs(codec, self.state, self._streams.frames, max_rows=max_rows)
        self._known: dict[int, _Known] = {}  # by slot
        self._watches = itertools.cycle([Stopwatch(device), Stopwatch(device)])  # two steps may be read at once
        self._sound = True  # the last launch has had no fault so far

    def capture(self, progress: Callable[[float], None] = lambda done: None) -> None:
        """Capture every step; before the first run, and never on a device without graphs."""
        torch.cuda.synchronize(self._device)
        pool = torch.cuda.graph_pool_handle()  # shared: one graph runs at a time, and results lie elsewhere
        with self._on_stream():
            self._calls.capture(pool, lambda done: progress(done / 2))
            self._graphs.capture(pool, lambda done: progress((1 + done) / 2))

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

    def collect(self, ticket: CodecStep) -> list[Outcome]:
        """Return the outcomes of a step's rows in their order."""
        self.wait(ticket)
        assert ticket.frames is not None
        self.phases = ticket.phases
        outcomes = []
        for index in range(len(ticket.load.rows)):
            samples, frame = NO_SAMPLES, ticket.frames.get(index)
            if index in ticket.sounds:
                count, pieces = ticket.sounds[index]
                whole = np.concatenate([piece.numpy() for piece in pieces]) if pieces else NO_SAMPLES
                samples = whole[: count * self.codec.frame_samples]
            outcomes.append(self._outcome(frame, samples))
        return outcomes

    # ---- queued on the device

    def _launch(self, load: ModelBatch, watch: Stopwatch) -> CodecStep:
        rows = load.rows
        streams = [stream_of(row) for row in rows]
        ready = [self._meet(stream) for stream in streams]
        if behind := any(stream.stale for stream in streams):
            watch.start()
            self._catch_up(streams)
        for stream, known in zip(streams, ready, strict=True):
            known.decoded = -1 if stream.stale else stream.decoded
        due = [index for index, row in enumerate(rows) if streams[index].makes_frame(row)]
        plain = set(due)
        wide = any(row.count > 1 or index not in plain or not ready[index].frames for index, row in enumerate(rows))
        size = self._graphs.size(sum(row.count for row in rows), len(rows), wide=wide)
        packet = self._graphs.packet(size)
        self._fill(rows, packet, size)
        self._rule(due, [(streams[index], ready[index]) for index in due], packet)
        if not behind:
            watch.start()  # the device has been idle while the packet was written
        self._graphs.launch(size)
        before = {index: (ready[index].frames, streams[index].decoded) for index in due}
        ticket = CodecStep(load, due, before, {}, watch, Stopwatch(self._device))
        for index in due:
            ready[index].frames += 1
        self._decode_ahead(ticket, [(index, streams[index], ready[index]) for index in due])
        watch.stop()
        return ticket

    def _meet(self, stream: UtteranceStream) -> _Known:
        """Send the device what it lacks of a stream; return what it then holds."""
        utterance, known = stream.utterance, self._known.get(stream.slot)
        assert stream.slot >= 0, "a stream without a slot may not be in a step"
        if known is None or known.number != stream.number:
            first, inner = (_padded(numbers) for numbers in packet_rows(stream.sampling, stream.seed, 0))
            known = self._known[stream.slot] = _Known(stream.number, -1, -1, first, inner)
        if known.frames != utterance.spoken:
            known.frames = utterance.spoken
            self._streams.set(stream.slot, utterance.frames, utterance.speaker)
        stream.stale = stream.stale or known.decoded != stream.decoded
        return known

    def _rule(self, due: list[int], streams: list[tuple[UtteranceStream, _Known]], packet: StagingBuffer) -> None:
        """Write how the next frames of rows are chosen."""
        if not due:
            return
        host, positions = packet.host, [known.frames * self.model.config.groups for _, known in streams]
        host["streams"][due] = [stream.slot for stream, _ in streams]
        host["penalty"].view(np.float32)[due] = [stream.sampling.repetition_penalty for stream, _ in streams]
        first, inner = [known.first for _, known in streams], [known.inner for _, known in streams]
        for name, rules in (("first", first), ("inner", inner)):
            host[name][due] = np.stack(rules)
            host[name][due, POSITION] = positions

    def _fill(self, rows: list[Row], packet: StagingBuffer, size: Size) -> None:
        """Write the rows' positions, slots and inputs."""
        host = packet.host
        text: list[int] = []
        codes: list[Codes] = []
        positions: list[int] = []
        slots: list[int] = []
        starts = [0]
        for index, row in enumerate(rows):
            table, stop = row.request.table, row.start + row.count
            own_text, own_codes = stream_of(row).utterance.rows(row.start, stop)
            text += own_text
            codes += own_codes
            positions += range(row.start, stop)
            slots += table.slots(row.start, stop)
            starts.append(len(text))
            host["tables"][index, : len(table.blocks)] = table.blocks
        tokens, count = len(text), len(rows)
        for name, numbers in (("text", text), ("positions", positions), ("slots", slots)):
            host[name][:tokens] = numbers
        host["starts"][: count + 1], host["starts"][count + 1 :] = starts, tokens
        host["lengths"][:count] = [row.start + row.count for row in rows]
        if size.wide:
            host["codes"][:tokens] = codes
            host["wanted"][:count] = np.array(starts[1:]) - 1
            for row, first in zip(rows, starts, strict=False):
                for place in range(first, first + row.count):
                    if codes[place][0] == SPEAKER:
                        host["voices"][place] = stream_of(row).slot

    def _decode_ahead(self, ticket: CodecStep, due: list[tuple[int, UtteranceStream, _Known]]) -> None:
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
        nobody = self._streams.nobody
        told: list[Codes] = []
        calls: list[FramePiece] = []
        for slot, frames in (*pieces, (nobody, [])):
            if calls and (not frames or len(told) + len(frames) > RING):
                self._streams.tell(nobody, 0, told)
                self._launch_codec(calls)
                told, calls = [], []
            calls.append(FramePiece(slot, nobody, len(told), len(frames)))
            told += frames

    def _launch_codec(self, pieces: list[FramePiece]) -> list[list[Tensor]]:
        return self._calls.launch(pieces) if pieces else []

    # ---- when it is done

    def _look(self, ticket: CodecStep) -> None:
        """Read the new frames; cut the samples of ended utterances, and queue the frames that are not decoded yet."""
        made = self._graphs.made[: len(ticket.load.rows)].tolist()
        ticket.frames = {index: tuple(made[index]) for index in ticket.due}
        ticket.rest.start()
        missing: dict[int, FramePiece] = {}
        for index, frame in ticket.frames.items():
            if frame[0] != self.model.end_code or min(frame) < 0:
                continue
            stream, (spoken, decoded) = stream_of(ticket.load.rows[index]), ticket.before[index]
            sounding, (count, samples) = spoken - decoded, ticket.sounds.get(index, (0, []))
            ticket.sounds[index] = sounding, samples
            if count < sounding:
                missing[index] = FramePiece(stream.slot, stream.slot, decoded + count, sounding - count)
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
