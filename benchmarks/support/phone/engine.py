"""The engine of support/crowd/ with a voice that can be heard: with silence the server would look for no echo."""

from __future__ import annotations

import numpy as np
from support.crowd import engine as crowd
from support.crowd.engine import ANSWER, RATE, Engine

from voxlane.engine.api import Append, FromEngine, Samples

CHARACTER_SAMPLES = RATE // 10
"""Sound of one character: slow, so that the short answer lasts long enough to be interrupted."""

REPLY_S = sum(map(len, ANSWER)) * CHARACTER_SAMPLES / RATE
"""The length of every reply."""


def _voice(seconds: float = 10.0) -> bytes:
    """Return noise that rises and falls four times a second, as syllables do, at about -23 dB of full scale."""
    chance, time_s = np.random.default_rng(1), np.arange(round(seconds * RATE)) / RATE
    loudness = 0.07 * (1 + np.sin(2 * np.pi * 4 * time_s)) * (np.sin(2 * np.pi * 0.7 * time_s) > -0.8)
    return (32768 * loudness * chance.normal(0, 1, len(time_s))).clip(-32768, 32767).astype("<i2").tobytes()


VOICE = _voice()


class SpeakingEngine(Engine):
    """Says each clause with so much sound as it has characters."""

    def take(self, message: object) -> list[FromEngine]:
        """Return the whole answer to a message."""
        match message:
            case Append(request_id=name, text=text) if text and name in self._tasks:
                offset, count = self._said.get(name, 0), len(text) * CHARACTER_SAMPLES
                self._said[name] = offset + count
                sound = (VOICE * 3)[2 * offset : 2 * (offset + count)]
                return [Samples(name, self._tasks[name].epoch, offset, sound, ())]
            case _:
                return super().take(message)


if __name__ == "__main__":
    crowd.main(SpeakingEngine())
