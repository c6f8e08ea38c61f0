"""One stream's view of a voice detector that batches the frames of many streams: audio goes in now, answers come later.

The server's ear also runs Silero, on other frames: behind its gate, every other frame within speech, a fresh state for
each voice. With segments cut by its answers, edges move by up to 0.35 s, and 6 of 12 clips (four recordings: plain,
20 dB softer, in noise) get another transcript. The engine's own detector takes 3 to 4 % of the CPU time of a live
transcription, so it stays.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from voxlane.codecs.silero import FRAME_SAMPLES, HIDDEN

Samples = NDArray[np.float32]


class VoiceDetector(Protocol):
    """Runs the frames of all streams."""

    def expect(self, ear: VadStream) -> None:
        """Note that a stream has a frame to run."""

    def hurry(self) -> None:
        """Start the next batch as soon as the device is free."""

    def leave(self, ear: VadStream) -> None:
        """Forget a stream."""

    def attend(self) -> None:
        """Take the probabilities that are ready, and start the next batch if there is one."""

    def listen(self, ear: VadStream) -> None:
        """Wait for the probability of a stream's next frame."""


class VadStream:
    """The detector's input, output and state for one stream."""

    def __init__(self, ears: VoiceDetector) -> None:
        self._ears = ears
        self._rest: Samples = np.zeros(0, np.float32)
        self._expected = 0  # samples passed to expect()
        self._heard = 0  # samples whose probabilities were asked for
        self.memory: Samples = np.zeros(2 * HIDDEN, np.float32)  # the network's last output, then its cell
        self.frames: deque[Samples] = deque()  # frames that no batch has taken
        self.known: deque[float] = deque()  # probabilities that were not asked for yet
        self.listening = False  # a frame of this stream is in the running batch

    def expect(self, samples: Samples) -> None:
        """Take audio whose probabilities will be asked for later, in the same order."""
        joined = np.concatenate([self._rest, samples]) if len(self._rest) else samples
        whole = len(joined) // FRAME_SAMPLES * FRAME_SAMPLES
        self.frames.extend(joined[:whole].reshape(-1, FRAME_SAMPLES))
        self._rest = joined[whole:]
        self._expected += len(samples)
        if whole:
            self._ears.expect(self)

    def hurry(self) -> None:
        """Have the frames run as soon as the device is free: a person waits for the words."""
        if self.frames:
            self._ears.hurry()

    def close(self) -> None:
        """Drop what was not run."""
        self.frames.clear()
        self._ears.leave(self)

    @property
    def silent(self) -> bool:
        """Whether frames have no answer yet, not even the first of them."""
        if self.known or not (self.frames or self.listening):
            return False
        self._ears.attend()
        return not self.known

    @property
    def ready_samples(self) -> int:
        """Return how many of the expected samples have their probabilities ready."""
        if self.silent:
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
