"""Silero's detector of speech for many streams at once: one batch does what otherwise is done stream by stream.

A frame of one stream is some thirty short operations, and most of their cost is not arithmetic. Streams say what sound
they have as it comes; when one of them wants an answer, the next frames of all that wait are done with it. A batch's
probabilities are those of codecs/silero.py to 1e-6. It knows samples; what follows from an answer is for others.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from weakref import WeakValueDictionary

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from voxlane.codecs import silero
from voxlane.codecs.silero import FRAME_SAMPLES, HIDDEN, Memory, Network

Samples = NDArray[np.float32]

LEAST, MOST = 4, 32
"""Frames of a batch. Fewer are done one by one; more would hold up who waits between two steps."""


class Ear:
    """The detector of one stream."""

    def __init__(self, ears: Ears) -> None:
        self._ears = ears
        self._rest: Samples = np.zeros(0, np.float32)
        self._expected = self._heard = 0  # samples
        self.memory = Memory()
        self.frames: deque[Samples] = deque()  # that nobody has listened to
        self.known: deque[float] = deque()  # of frames that nobody has asked for

    def expect(self, samples: Samples) -> None:
        """Take sound that will be asked about later, in the same order."""
        joined = np.concatenate([self._rest, samples])
        whole = len(joined) // FRAME_SAMPLES * FRAME_SAMPLES
        self.frames.extend(joined[:whole].reshape(-1, FRAME_SAMPLES))
        self._rest = joined[whole:]
        self._expected += len(samples)

    def __call__(self, samples: Samples) -> list[float]:
        """Return the probability of speech in every frame of 512 samples that this audio completes."""
        before, self._heard = self._heard, self._heard + len(samples)
        if self._heard > self._expected:
            self.expect(samples[self._expected - self._heard :])
        wanted = self._heard // FRAME_SAMPLES - before // FRAME_SAMPLES
        while len(self.known) < wanted:
            self._ears.listen(self)
        return [self.known.popleft() for _ in range(wanted)]


class Ears:
    """The detectors of all streams."""

    def __init__(self) -> None:
        self._network = silero.network()
        self._together = _Together(self._network)
        self._numbers = itertools.count()
        self._open: WeakValueDictionary[int, Ear] = WeakValueDictionary()

    def open(self) -> Ear:
        """Return a detector that has heard nothing."""
        ear = Ear(self)
        self._open[next(self._numbers)] = ear
        return ear

    def listen(self, first: Ear) -> None:
        """Do the next frame of one stream, and of others that have one waiting."""
        others = (ear for ear in self._open.values() if ear.frames and ear is not first)
        ears = [first, *itertools.islice(others, MOST - 1)]
        frames = [ear.frames.popleft() for ear in ears]
        if len(ears) < LEAST:
            found = [
                silero.probability(self._network, frame, ear.memory) for ear, frame in zip(ears, frames, strict=True)
            ]
        else:
            found = self._together(frames, [ear.memory for ear in ears])
        for ear, probability in zip(ears, found, strict=True):
            ear.known.append(probability)


class _Together:
    """Silero's network over a batch: the steps of silero.probability, in its names."""

    def __init__(self, network: Network) -> None:
        self._window = torch.from_numpy(network.window)
        self._convolutions = [
            (torch.from_numpy(weight), torch.from_numpy(bias)) for weight, bias in network.convolutions
        ]
        self._gates = torch.from_numpy(network.gates).T.contiguous()
        self._gates_bias = torch.from_numpy(network.gates_bias)
        self._verdict = torch.from_numpy(network.verdict)
        self._verdict_bias = network.verdict_bias
        self._places = torch.from_numpy(silero.PLACES)

    def __call__(self, frames: Sequence[Samples], memories: Sequence[Memory]) -> list[float]:
        """Return the probability of each frame; its memory goes on by it."""
        with torch.inference_mode():
            before = torch.from_numpy(np.stack([memory.seen[HIDDEN:] for memory in memories]))
            cell = torch.from_numpy(np.stack([memory.cell for memory in memories]))
            seen = torch.cat((self._features(torch.from_numpy(np.stack(frames))), before), dim=1)
            gates = torch.tanh_(torch.addmm(self._gates_bias, seen, self._gates))
            entry, keep, _, out = (gates * 0.5 + 0.5).chunk(4, dim=1)
            cell = cell * keep + entry * gates[:, 2 * HIDDEN : 3 * HIDDEN]
            last = out * torch.tanh(cell)
            verdicts = torch.sigmoid(torch.relu(last) @ self._verdict + self._verdict_bias)
        for memory, new_cell, new_last in zip(memories, cell.numpy(), last.numpy(), strict=True):
            memory.cell[:] = new_cell
            memory.seen[HIDDEN:] = new_last
        return [float(verdict) for verdict in verdicts]

    def _features(self, frames: Tensor) -> Tensor:
        """Return what frames [n, 512] sound like, [n, 128]."""
        count = len(frames)
        windows = frames[:, self._places] * self._window  # [n, 4, 256]
        padded = F.pad(torch.fft.rfft(windows).abs(), (0, 0, 1, 1))  # silence before and after: [n, 6, 129]
        taps = torch.cat((padded[:, :4], padded[:, 1:5], padded[:, 2:]), dim=2)
        wide = F.pad(self._convolve(taps.flatten(0, 1), 0).view(count, 4, -1), (0, 0, 1, 0))  # [n, 5, 128]
        halved = torch.stack((wide[:, :3], wide[:, 2:]), dim=1)  # every other place
        x = self._convolve(halved.view(2 * count, -1), 1).view(count, -1)
        return self._convolve(self._convolve(x, 2), 3)

    def _convolve(self, taps: Tensor, layer: int) -> Tensor:
        weight, bias = self._convolutions[layer]
        return torch.relu_(torch.addmm(bias, taps, weight))
