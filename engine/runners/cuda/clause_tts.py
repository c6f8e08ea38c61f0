"""Runs speech synthesis's part of a plan on a CUDA device: all clauses of a step at once, on a stream of its own.

Two graphs are replayed one after the other without a wait: one reads the phonemes, one makes the sound. Only the device
knows by then how long the sound is, so the host guesses the size of the second graph. It checks the guess when the step
is done; rarely the second graph runs again, larger.

It does not touch a KV cache, so its stream and the others do not wait for each other. The same code runs on a CPU,
kernel by kernel: the tests compare it with ONNX Runtime.

A clause in a batch differs from the same clause alone by rounding: at most 5e-4 of full scale was seen, with the same
times of words. It differs by 1e-2 from the same code on a CPU in float32.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from voxlane.engine.kernels.selfcheck import Agreement, agreement
from voxlane.engine.models.hibari.model import FRAME_SAMPLES, Hibari
from voxlane.engine.models.hibari.network import (
    FRAMES_PER_BEAT,
    GAP,
    ROWS,
    HibariNetwork,
    NetworkClause,
    TextFeatures,
    line_length,
    write_line,
)
from voxlane.engine.models.hibari.noise import first_row
from voxlane.engine.models.hibari.sound import HOP, LAG, Sound
from voxlane.engine.models.synthesis import SILENCE, SynthesisedClause, finish
from voxlane.engine.runners.clause_tts import ClauseOutcome, ClausePayload, clause_of
from voxlane.engine.runners.cuda.device import Stopwatch, watched
from voxlane.engine.runners.decoder import Immediate
from voxlane.engine.schedule.plan import ModelBatch

PLACES = (64, 128, 256, 512, 1024, 2048)
BEATS = (64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
"""Sizes that have graphs: phonemes on a line, and beats of 25 ms. All graphs take 0.4 GiB on the device; more than the
largest, 102 s, takes several passes."""

_CHECKED, _TOLERANCE = "Ready when you are.", 0.1
"""The clause of the check at start, and what its samples may be off, as a part of the loudest: 0.02 is usual."""

Progress = Callable[[float], None]


def guess_beats(utterances: Sequence[NetworkClause]) -> int:
    """Return how many beats clauses take at most: none of 258, at three speeds, took more than 0.98 of it."""
    return GAP + sum(int((2.5 * len(one.ids) + 30) / one.speed) + GAP for one in utterances)


@dataclass(frozen=True, slots=True)
class ClauseSound:
    """One synthesised clause: the beats of its phonemes, and its samples."""

    beats: NDArray[np.int32]
    samples: NDArray[np.float32]


class VoiceGraphs:
    """One voice on a device: its network, the buffers between host and device, and the graphs."""

    def __init__(
        self,
        network: HibariNetwork,
        sound: Sound,
        device: torch.device,
        places: Sequence[int] = PLACES,
        beats: Sequence[int] = BEATS,
    ) -> None:
        pinned = device.type == "cuda"
        most, longest = places[-1], beats[-1]
        self._network, self._sound, self._device = network, sound, device
        self.places, self.beats = tuple(places), tuple(beats)
        self._steps = {"read": self._read, "sound": self._make_sound}
        self._graphs: dict[tuple[str, int], torch.cuda.CUDAGraph] = {}
        self._host_line = torch.zeros((ROWS, most), dtype=torch.int32, pin_memory=pinned)
        self._host_beats = torch.zeros(most, dtype=torch.int32, pin_memory=pinned)
        self._host_samples = torch.zeros(FRAMES_PER_BEAT * longest * HOP, pin_memory=pinned)
        self._line = torch.zeros((ROWS, most), dtype=torch.int32, device=device)
        self._reading = TextFeatures(
            torch.ones(most, dtype=torch.int32, device=device),
            torch.zeros((most, network.sound_width), device=device),
            torch.zeros((most, network.melody_width), device=device),
        )
        self._begins: list[int] = []
        self._size = 0
        write_line([NetworkClause((0, 1, 0), 1.0, 0)], self._host_line.numpy())  # a valid line for the capture

    def fits(self, utterances: Sequence[NetworkClause]) -> bool:
        """Return whether clauses fit into one pass. A single one always does: it may take long, it is not refused."""
        if len(utterances) == 1:
            return True
        return line_length(utterances) <= self.places[-1] and guess_beats(utterances) <= self.beats[-1]

    def capture(self, pool: Any, progress: Progress) -> None:
        """Capture all graphs, on the current stream and in a pool of memory; nothing may be running."""
        wanted = [("read", size) for size in self.places[::-1]] + [("sound", size) for size in self.beats[::-1]]
        for number, (what, size) in enumerate(wanted):
            step = self._steps[what]
            step(size)  # compiles kernels and plans transforms: a capture cannot
            torch.cuda.current_stream().synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=torch.cuda.current_stream()):
                step(size)
            self._graphs[what, size] = graph
            progress((number + 1) / len(wanted))

    def launch(self, utterances: Sequence[NetworkClause]) -> None:
        """Launch clauses that fit into one pass; the launch before must have been read by `land`."""
        self._begins = write_line(utterances, self._host_line.numpy())
        self._run("read", self._bucket(self.places, line_length(utterances)))
        self._size = self._bucket(self.beats, min(guess_beats(utterances), self.beats[-1]))
        self._run("sound", self._size)

    def land(self, utterances: Sequence[NetworkClause], wait: Callable[[], object]) -> list[ClauseSound]:
        """Return the launched clauses; `wait` returns when the device has finished all launches."""
        wait()
        beats = self._host_beats.numpy()
        ends = np.cumsum(beats[: line_length(utterances)])
        samples = self._host_samples
        if ends[-1] > self.beats[-1]:  # no graph and no buffer is large enough
            samples = self._samples(int(ends[-1])).cpu()
        elif ends[-1] > self._size:
            self._run("sound", self._bucket(self.beats, int(ends[-1])))
            wait()
        spoken = []
        for one, begin in zip(utterances, self._begins, strict=True):
            end = begin + len(one.ids)
            start, stop = ((int(ends[place]) * FRAMES_PER_BEAT + LAG) * HOP for place in (begin - 1, end - 1))
            spoken.append(ClauseSound(beats[begin:end].copy(), samples[start:stop].numpy().copy()))
        return spoken

    def _run(self, what: str, size: int) -> None:
        graph = self._graphs.get((what, size))
        if graph is None:
            self._steps[what](size)
        else:
            graph.replay()

    def _bucket(self, sizes: Sequence[int], needed: int) -> int:
        return next(size for size in sizes if size >= needed)

    def _read(self, places: int) -> None:
        with torch.inference_mode():
            self._line.copy_(self._host_line, non_blocking=True)
            reading = self._network.read(self._line[:, :places])
            self._reading.beats[:places].copy_(reading.beats)
            self._reading.sound[:places].copy_(reading.sound)
            self._reading.melody[:places].copy_(reading.melody)
            self._host_beats.copy_(self._reading.beats, non_blocking=True)

    def _make_sound(self, beats: int) -> None:
        samples = self._samples(beats)
        self._host_samples[: len(samples)].copy_(samples, non_blocking=True)

    def _samples(self, beats: int) -> Tensor:
        with torch.inference_mode():
            return self._sound(self._network.frames(self._line, self._reading, beats)).flatten()


def _share(progress: Progress, number: int, count: int, done: float) -> None:
    progress((number + done) / count)


@dataclass(frozen=True, slots=True)
class _Pass:
    """Clauses of one voice that run together, and the rows they came from."""

    speaker: VoiceGraphs
    rows: list[int]
    utterances: list[NetworkClause]


@dataclass(slots=True)
class ClauseStep:
    """A step under way."""

    clauses: list[ClausePayload]
    passes: list[_Pass]  # not finished; the first of them is launched
    watch: Stopwatch | None  # of the launched pass
    speeches: list[SynthesisedClause]
    landed: list[tuple[int, ClauseSound]] = field(default_factory=list)  # rows whose samples are not cut to clauses yet
    device_s: float = 0.0
    phases: dict[str, tuple[float, float]] = field(default_factory=dict)


class CudaClauseTTS(Immediate):
    """Runs hibari's voices on a device; they have no KV cache."""

    overlaps = True

    def __init__(
        self, model: Hibari, device: torch.device, places: Sequence[int] = PLACES, beats: Sequence[int] = BEATS
    ) -> None:
        self.model = model
        self.phases: dict[str, tuple[float, float]] = {}
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        sound = Sound(torch.from_numpy(model.noise).T.contiguous(), device)
        self._speakers = {
            voice: VoiceGraphs(HibariNetwork(model.file(voice), device), sound, device, places, beats)
            for voice in model.voices
        }

    def capture(self, progress: Progress = lambda done: None) -> None:
        """Capture every voice's graphs; nothing may be running on the device."""
        torch.cuda.synchronize(self._device)
        pool, voices = torch.cuda.graph_pool_handle(), len(self._speakers)
        with self._on_stream():
            for number, speaker in enumerate(self._speakers.values()):
                speaker.capture(pool, partial(_share, progress, number, voices))

    def check(self) -> Agreement:
        """Synthesise a clause here and on the CPU; return how far apart the results are."""
        clause = ClausePayload(self.model.prepare(_CHECKED), self.model.default_voice, 1.0, 0)
        reference = CudaClauseTTS(self.model, torch.device("cpu"), places=(64,), beats=(128,))
        got, expected = (voice.collect(voice._begin([clause]))[0].speech for voice in (self, reference))
        if got.words != expected.words or len(got.samples) != len(expected.samples):
            return Agreement("voice", 0.0, _TOLERANCE, "the words are not where they are on the CPU")
        return agreement("voice", [(torch.from_numpy(got.samples), torch.from_numpy(expected.samples), _TOLERANCE)])

    def launch(self, load: ModelBatch) -> ClauseStep:
        """Launch as many of a plan's clauses as fit into one pass."""
        return self._begin([clause_of(row) for row in load.rows])

    def _begin(self, clauses: list[ClausePayload]) -> ClauseStep:
        begin = time.monotonic()
        passes = self._passes(clauses)
        watch = self._launch(passes[0]) if passes else None
        ticket = ClauseStep(clauses, passes, watch, [SILENCE] * len(clauses))
        ticket.phases["launch"] = (begin, time.monotonic())
        return ticket

    def done(self, ticket: ClauseStep) -> bool:
        """Return whether the device has finished the launched pass."""
        with watched(self._device):
            return ticket.watch is None or ticket.watch.done()

    def wait(self, ticket: ClauseStep) -> None:
        """Wait for all clauses; the next pass runs while the host cuts the one before."""
        begin = time.monotonic()
        while ticket.passes:
            assert ticket.watch is not None
            one = ticket.passes.pop(0)
            with self._on_stream():
                spoken = one.speaker.land(one.utterances, self._wait)
                start_s, stop_s = ticket.watch.wait()
            ticket.device_s += stop_s - start_s
            ticket.watch = self._launch(ticket.passes[0]) if ticket.passes else None
            self._cut(ticket)
            ticket.landed = list(zip(one.rows, spoken, strict=True))
            end = time.monotonic()
            ticket.phases |= {"wait": (begin, end), "device": (end - ticket.device_s, end)}

    def collect(self, ticket: ClauseStep) -> list[ClauseOutcome]:
        """Wait for the clauses if they are not done; return their outcomes."""
        self.wait(ticket)
        self._cut(ticket)
        self.phases = ticket.phases
        return [ClauseOutcome(speech) for speech in ticket.speeches]

    def _launch(self, one: _Pass) -> Stopwatch:
        watch = Stopwatch(self._device)
        with self._on_stream():
            watch.start()
            one.speaker.launch(one.utterances)
            watch.stop()
        return watch

    def _cut(self, ticket: ClauseStep) -> None:
        """Cut the samples of the finished pass to clauses."""
        for row, sound in ticket.landed:
            clause = ticket.clauses[row]
            ticket.speeches[row] = finish(
                clause.prepared,
                sound.samples,
                sound.beats.astype(np.float32),
                frame_samples=FRAME_SAMPLES,
                rate=self.model.sample_rate,
                speed=clause.speed,
            )
        ticket.landed = []

    def _passes(self, clauses: Sequence[ClausePayload]) -> list[_Pass]:
        """Divide clauses into passes: by voice, then as many as fit."""
        passes: list[_Pass] = []
        sounding = [row for row, clause in enumerate(clauses) if clause.prepared.ids]
        for row in sorted(sounding, key=lambda row: clauses[row].voice):
            clause, speaker = clauses[row], self._speakers[clauses[row].voice]
            utterance = NetworkClause(clause.prepared.ids, clause.speed, first_row(clause.seed))
            last = passes[-1] if passes else None
            if last is not None and last.speaker is speaker and speaker.fits([*last.utterances, utterance]):
                last.rows.append(row)
                last.utterances.append(utterance)
            else:
                passes.append(_Pass(speaker, [row], [utterance]))
        return passes

    def _wait(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()

    @contextlib.contextmanager
    def _on_stream(self) -> Iterator[None]:
        with watched(self._device), torch.cuda.stream(self._stream):
            yield
