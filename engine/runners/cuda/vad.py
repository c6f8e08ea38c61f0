"""Silero's voice activity detector for many streams on a device: frames are sent as they come, answers are read later.

A frame is a million multiplications: for two hundred streams a third of a core, and next to nothing for a device. A
stream's state is sent with its frames and comes back with the answers.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from voxlane.codecs import silero
from voxlane.codecs.silero import BINS, FRAME_SAMPLES, HIDDEN, WINDOW, SileroNetwork
from voxlane.engine.audio.vad import VadStream
from voxlane.engine.runners.cuda.device import Stopwatch, watched

SIZES = (16, 64, 256)
LONG_SIZES, LONG = (16, 64), 8
"""Streams of a batch, padded to one of these; and the sizes in which each stream may have up to LONG frames."""

ASK_S = 0.0002
"""How often the device is polled: two hundred streams poll in turn, and each time takes some µs."""

GAP_S = 0.01
"""A batch begins no sooner than this after the one before: fewer batches cost the host less, and words come several
times later than that. There is no gap where a stream has ended, has many frames, or more streams wait than a batch
takes."""

_KEPT = 2 * HIDDEN  # numbers of a stream's state
_BACK = 1 + _KEPT  # numbers that a frame returns: the answer, and the state after it

Shape = tuple[int, int]  # streams, and frames of each


class _Together:
    """Silero's network over a batch: the steps of silero.probability, in its names."""

    def __init__(self, network: SileroNetwork, device: torch.device) -> None:
        def there(values: NDArray[Any]) -> Tensor:
            return torch.from_numpy(values).to(device)

        # The Fourier transform as a product: a graph cannot capture every library's.
        turns = np.outer(np.arange(WINDOW), np.arange(BINS)) * (2 * np.pi / WINDOW)
        waves = np.concatenate((np.cos(turns), np.sin(turns)), axis=1) * network.window[:, None]
        self._waves = there(waves.astype(np.float32))  # [256, 2 * 129]
        self._convolutions = [(there(weight), there(bias)) for weight, bias in network.convolutions]
        self._gates = there(network.gates).T.contiguous()
        self._gates_bias = there(network.gates_bias)
        self._verdict = there(network.verdict)
        self._verdict_bias = network.verdict_bias
        self._places = there(silero.PLACES)

    def features(self, frames: Tensor) -> Tensor:
        """Return features [n, 128] of frames [n, 512]."""
        count = len(frames)
        real, imaginary = (frames[:, self._places] @ self._waves).chunk(2, dim=2)
        loud = torch.sqrt(real.square() + imaginary.square())  # [n, 4, 129]
        padded = F.pad(loud, (0, 0, 1, 1))  # padded with silence: [n, 6, 129]
        taps = torch.cat((padded[:, :4], padded[:, 1:5], padded[:, 2:]), dim=2)
        wide = F.pad(self._convolve(taps.flatten(0, 1), 0).view(count, 4, -1), (0, 0, 1, 0))  # [n, 5, 128]
        halved = torch.stack((wide[:, :3], wide[:, 2:]), dim=1)  # every other place
        x = self._convolve(halved.view(2 * count, -1), 1).view(count, -1)
        return self._convolve(self._convolve(x, 2), 3)

    def verdicts(self, features: Tensor, before: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the probabilities [n] for features [n, 128], and the new state: two of [n, 128]."""
        seen = torch.cat((features, before), dim=1)
        gates = torch.tanh_(torch.addmm(self._gates_bias, seen, self._gates))
        entry, keep, _, out = (gates * 0.5 + 0.5).chunk(4, dim=1)
        cell = cell * keep + entry * gates[:, 2 * HIDDEN : 3 * HIDDEN]
        last = out * torch.tanh(cell)
        return torch.sigmoid(torch.relu(last) @ self._verdict + self._verdict_bias), last, cell

    def _convolve(self, taps: Tensor, layer: int) -> Tensor:
        weight, bias = self._convolutions[layer]
        return torch.relu_(torch.addmm(bias, taps, weight))


class DeviceVad:
    """The detectors of all streams; one batch is under way at a time. Probabilities are silero.py's to 1e-5."""

    def __init__(self, device: torch.device, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._device = device
        self._there = _Together(silero.network(), device)
        self._shapes: list[Shape] = [*((size, 1) for size in SIZES), *((size, LONG) for size in LONG_SIZES)]
        most = max(streams * frames for streams, frames in self._shapes)
        pinned = device.type == "cuda"
        self._sent = torch.zeros(most * FRAME_SAMPLES + SIZES[-1] * _KEPT, pin_memory=pinned)
        self._back = torch.zeros(most * _BACK, pin_memory=pinned)
        self._graphs: dict[Shape, torch.cuda.CUDAGraph] = {}
        self._watch = Stopwatch(device)
        self._views: dict[Shape, tuple[NDArray[np.float32], NDArray[np.float32]]] = {}  # of `_parts`
        self._due: dict[VadStream, None] = {}  # streams with frames, in their order
        self._hurried = False  # the next batch does not wait
        self._batch: list[tuple[VadStream, int]] = []  # streams under way, and how many frames of each
        self._shape: Shape = self._shapes[0]
        self._began_s = self._asked_s = -math.inf
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]

    def capture(self) -> None:
        """Capture the batches; never on a device without graphs."""
        torch.cuda.synchronize(self._device)
        pool = torch.cuda.graph_pool_handle()
        with torch.inference_mode(), self._aside():
            for shape in sorted(self._shapes, reverse=True):
                self._run(shape)  # picks products: a capture cannot
                torch.cuda.synchronize(self._device)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=pool, stream=self._stream):
                    self._run(shape)
                self._graphs[shape] = graph
        torch.cuda.synchronize(self._device)

    def open(self) -> VadStream:
        """Return a detector that has heard nothing."""
        return VadStream(self)

    def expect(self, ear: VadStream) -> None:
        """Note that a stream has a frame."""
        self._due[ear] = None
        self._hurried = self._hurried or len(ear.frames) > LONG

    def hurry(self) -> None:
        """Start the next batch as soon as the one under way has ended."""
        self._hurried = True

    def leave(self, ear: VadStream) -> None:
        """Forget a stream; a frame of it may be under way."""
        self._due.pop(ear, None)

    def attend(self) -> None:
        """Read the answers that are ready, and send waiting frames if the device is idle."""
        now = self._clock()
        if now - self._asked_s < ASK_S:
            return
        self._asked_s = now
        if self._batch and self._heard():
            self._take()
        if self._due and not self._batch and (self._hurried or now - self._began_s >= GAP_S):
            self._send()

    def listen(self, first: VadStream) -> None:
        """Wait for the next frame of a stream."""
        known = len(first.known)
        while len(first.known) == known:
            if not self._batch:
                self._send()
            self._take()

    def _send(self) -> None:
        self._began_s = self._clock()
        long = any(len(ear.frames) > 1 for ear in self._due)
        sizes, frames = (LONG_SIZES, LONG) if long else (SIZES, 1)
        ears = list(itertools.islice(self._due, sizes[-1]))
        self._shape = next(size for size in sizes if size >= len(ears)), frames
        if self._shape not in self._views:
            sounds, kept = (part.numpy() for part in self._parts(self._shape))
            self._views[self._shape] = sounds, kept
        sounds, kept = self._views[self._shape]
        self._batch = []
        for row, ear in enumerate(ears):
            count = min(len(ear.frames), frames)
            for place in range(count):
                sounds[row, place] = ear.frames.popleft()
            ear.listening = True
            del self._due[ear]
            if ear.frames:
                self._due[ear] = None  # behind streams that have waited longer
            self._batch.append((ear, count))
        np.stack([ear.memory for ear in ears], out=kept[: len(ears)])
        self._hurried = bool(self._due)
        with watched(self._device), torch.inference_mode(), self._aside():
            graph = self._graphs.get(self._shape)
            if graph is None:
                self._run(self._shape)
            else:
                graph.replay()
            self._watch.stop()

    def _heard(self) -> bool:
        with watched(self._device):
            return self._watch.done()

    def _take(self) -> None:
        """Wait for the batch under way, and give each stream its answers."""
        with watched(self._device):
            self._watch.join()
        streams, frames = self._shape
        answers: NDArray[np.float32] = self._back[: streams * frames * _BACK].view(frames, streams, _BACK).numpy()
        rows = len(self._batch)
        verdicts = answers[:, :rows, 0].T.tolist()
        memories = answers[[count - 1 for _, count in self._batch], range(rows), 1:]  # a copy
        for (ear, count), probabilities, memory in zip(self._batch, verdicts, memories, strict=True):
            ear.known.extend(probabilities[:count])
            ear.memory = memory
            ear.listening = False
        self._batch = []

    def _parts(self, shape: Shape) -> tuple[Tensor, Tensor]:
        """Return the host memory of a batch's frames [streams, frames, 512] and states [streams, 256]."""
        streams, frames = shape
        size = streams * frames * FRAME_SAMPLES
        sounds = self._sent[:size].view(streams, frames, FRAME_SAMPLES)
        return sounds, self._sent[size : size + streams * _KEPT].view(streams, _KEPT)

    def _run(self, shape: Shape) -> None:
        streams, frames = shape
        sounds, kept = (part.to(self._device, non_blocking=True) for part in self._parts(shape))
        last, cell = kept.chunk(2, dim=1)
        features = self._there.features(sounds.reshape(-1, FRAME_SAMPLES)).view(streams, frames, HIDDEN)
        answers = []
        for place in range(frames):
            verdicts, last, cell = self._there.verdicts(features[:, place], last, cell)
            answers.append(torch.cat((verdicts[:, None], last, cell), dim=1))
        back = self._back[: streams * frames * _BACK].view(frames, streams, _BACK)
        back.copy_(torch.stack(answers), non_blocking=True)

    def _aside(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)
