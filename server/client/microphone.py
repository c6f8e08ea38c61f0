"""What a client sends of its microphone at once, and which quiet sound may wait. Pure.

A message costs a server more than its sound. While the server only listens, pieces as quiet as the room share messages
of 60 ms. A piece that may be a voice goes out at once, with those that wait.
"""

from __future__ import annotations

import numpy as np

from voxlane.codecs.pcm import decode_pcm16

GATHERED_S = 0.06
"""How much quiet sound shares a message."""

ABOVE, QUIETEST = 4.0, 0.005
"""A voice is 12 dB above the room's noise, and at least -46 dB of full scale."""

FALLING, RISING = 0.5, 0.05
"""How the noise level follows a piece: down by half the way, up by a twentieth, so that a voice hardly moves it."""

_LEAST_NOISE = 1e-5


class QuietGatherer:
    """Gathers the quiet pieces of one microphone in PCM16."""

    def __init__(self, rate: int) -> None:
        self._most_bytes = 2 * round(rate * GATHERED_S)
        self._noise = QUIETEST / ABOVE  # loudness of the room
        self._waiting = b""

    def push(self, pcm: bytes, *, calm: bool) -> bytes:
        """Add a piece; return the sound to send now, b"" while it waits. It may wait only if the server is `calm`."""
        quiet = self._is_quiet(pcm)
        self._waiting += pcm
        return b"" if quiet and calm and len(self._waiting) < self._most_bytes else self.flush()

    def flush(self) -> bytes:
        """Return the sound that waits."""
        waiting, self._waiting = self._waiting, b""
        return waiting

    def _is_quiet(self, pcm: bytes) -> bool:
        """Return whether a piece is as quiet as the room, and learn how loud the room is."""
        if not pcm or len(pcm) % 2:
            return False
        loudness = float(np.sqrt(np.mean(np.square(decode_pcm16(pcm)))))
        quiet = loudness <= max(QUIETEST, ABOVE * self._noise)
        change = loudness - self._noise
        self._noise += FALLING * change if change < 0 else RISING * min(change, self._noise)
        self._noise = max(self._noise, _LEAST_NOISE)
        return quiet
