"""One stream's detector of speech among many that are listened to together: told as sound comes, asked for it later.

It knows samples and frames; who listens, and what follows from an answer, is for others.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from voxlane.codecs.silero import FRAME_SAMPLES, HIDDEN

Samples = NDArray[np.float32]


class VoiceDetector(Protocol):
    """Who listens to the frames of all streams."""

    def expect(self, ear: VadStream) -> None:
        """Note that a stream has a frame to listen to."""

    def attend(self) -> None:
        """Take the answers that have come, and see to it that others will."""

    def listen(self, ear: VadStream) -> None:
        """Wait for the answer to a stream's next frame."""


class VadStream:
    """The detector of one stream."""

    def __init__(self, ears: VoiceDetector) -> None:
        self._ears = ears
        self._rest: Samples = np.zeros(0, np.float32)
        self._expected = self._heard = 0  # samples
        self.memory: Samples = np.zeros(2 * HIDDEN, np.float32)  # its last answer, and the cell behind it
        self.frames: deque[Samples] = deque()  # that nobody has listened to
        self.known: deque[float] = deque()  # of frames that nobody has asked for
        self.listening = False  # a frame of it is with somebody who will answer later

    def expect(self, samples: Samples) -> None:
        """Take sound that will be asked about later, in the same order."""
        joined = np.concatenate([self._rest, samples]) if len(self._rest) else samples
        whole = len(joined) // FRAME_SAMPLES * FRAME_SAMPLES
        self.frames.extend(joined[:whole].reshape(-1, FRAME_SAMPLES))
        self._rest = joined[whole:]
        self._expected += len(samples)
        if whole:
            self._ears.expect(self)

    @property
    def ready_samples(self) -> int:
        """How many samples of what was expected can be asked about and nobody has to wait for the answer."""
        self._ears.attend()
        if not self.known and (self.frames or self.listening):
            return 0
        certain = (self._heard // FRAME_SAMPLES + len(self.known) + 1) * FRAME_SAMPLES - 1
        return min(certain, self._expected) - self._heard

    def __call__(self, samples: Samples) -> list[float]:
        """Return the probability of speech in every frame of 512 samples that this audio completes."""
        before, self._heard = self._heard, self._heard + len(samples)
        if self._heard > self._expected:
            self.expect(samples[self._expected - self._heard :])
        wanted = self._heard // FRAME_SAMPLES - before // FRAME_SAMPLES
        while len(self.known) < wanted:
            self._ears.listen(self)
        return [self.known.popleft() for _ in range(wanted)]
