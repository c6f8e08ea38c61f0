"""What a planted agent hears: when a sound began, whether it is a turn, and for how long there is silence. Pure.

A frame of 10 ms is loud if it is 12 dB above the floor, which is the quietest of the last five seconds. Three loud
frames in a row are a sound. An agent has no recogniser: a sound is a turn if it goes on for longer than a murmur does,
is mostly loud, and has a pitch in some of its frames. A cough and a keyboard have none. The agent's own echo is not
heard.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from voxlane_lab.agents.own_echo import OwnEcho
from voxlane_lab.values import USER_RATE, Pcm

FRAME = USER_RATE // 100
QUIETEST_DB = -55.0  # no frame below is loud, however quiet the line is
ABOVE_FLOOR_DB = 12.0
FLOOR_FRAMES = 500  # the floor is the quietest of so many frames: people breathe more often
RUN_FRAMES = 3  # fewer loud frames in a row are a click
TURN_S = 0.78  # from the first loud sample of a turn to its last, at least; "mhm" and most other murmurs are shorter
LOUD_S = 0.5  # so much of a turn is loud
PITCHED_S = 0.12  # so much of a turn has a pitch
BREAK_S = 0.6  # so much silence ends a sound

PITCH_FRAMES = 3  # a pitch is looked for in so many frames
PITCH_LAGS = (USER_RATE // 400, USER_RATE // 70)  # periods of 400 Hz to 70 Hz
PITCHED = 0.65  # correlation of a frame with itself one period later

NOTHING: Pcm = np.zeros(0, np.int16)


class Ears:
    """Hears the microphone, in samples at USER_RATE."""

    def __init__(self) -> None:
        self.heard = 0  # samples so far
        self.onset: int | None = None  # the first loud sample of the sound that is heard; None: silence
        self.last = 0  # the sample behind the last loud one
        self.sounds = 0  # how many sounds there were
        self._loud = 0  # loud samples of the sound
        self._pitched = 0  # those with a pitch
        self._run = 0  # loud frames in a row
        self._levels: deque[float] = deque(maxlen=FLOOR_FRAMES)
        self._rest: Pcm = np.zeros(0, np.int16)
        self._echo = OwnEcho()
        self._window: NDArray[np.float64] = np.zeros(PITCH_FRAMES * FRAME)  # the newest frames

    @property
    def is_turn(self) -> bool:
        """Whether the sound is long enough for a turn."""
        return (
            self.onset is not None
            and self.last - self.onset >= round(TURN_S * USER_RATE)
            and self._loud >= round(LOUD_S * USER_RATE)
            and self._pitched >= round(PITCHED_S * USER_RATE)
        )

    @property
    def silence_s(self) -> float:
        """Seconds since the last loud sample."""
        return (self.heard - self.last) / USER_RATE

    @property
    def since_onset_s(self) -> float:
        """Seconds since the sound began; 0: there is none."""
        return 0.0 if self.onset is None else (self.heard + len(self._rest) - self.onset) / USER_RATE

    def push(self, pcm: Pcm, own: Pcm = NOTHING) -> None:
        """Hear the next sound, while the agent's own sound was played."""
        self._echo.push(pcm, own)
        sound = np.concatenate([self._rest, pcm])
        whole = len(sound) // FRAME * FRAME
        self._rest = sound[whole:]
        frames = sound[:whole].reshape(-1, FRAME).astype(np.float64)
        levels_db = 10 * np.log10((frames**2).mean(axis=1) / 32768**2 + 1e-12)
        echo = bool((levels_db > QUIETEST_DB).any()) and self._echo.is_echo()
        for frame, level_db in zip(frames, levels_db.tolist(), strict=True):
            self._window = np.concatenate([self._window[FRAME:], frame])
            self._hear(level_db, echo=echo)

    def forget(self) -> None:
        """Begin anew: what is heard next is another sound."""
        self.onset = None
        self._loud = self._pitched = 0

    def _hear(self, level_db: float, *, echo: bool) -> None:
        self.heard += FRAME
        self._levels.append(level_db)
        loud = not echo and level_db > max(QUIETEST_DB, min(self._levels) + ABOVE_FLOOR_DB)
        self._run = self._run + 1 if loud else 0
        if self._run >= RUN_FRAMES:
            self._take(FRAME * (RUN_FRAMES if self._run == RUN_FRAMES else 1))
        elif self.onset is not None and not self.is_turn and self.silence_s >= BREAK_S:
            self.forget()

    def _take(self, samples: int) -> None:
        if self.onset is None:
            self.onset = self.heard - samples
            self.sounds += 1
        self._loud += samples
        self.last = self.heard
        if self._pitched < PITCHED_S * USER_RATE and _pitched(self._window):
            self._pitched += FRAME


def _pitched(window: NDArray[np.float64]) -> bool:
    """Return whether a sound repeats itself as a voice does."""
    size = len(window)
    spectrum = np.fft.rfft(window, 2 * size)
    same = np.fft.irfft(np.abs(spectrum) ** 2)
    shortest, longest = PITCH_LAGS
    lags = np.arange(shortest, longest)
    return bool((same[lags] * size / (size - lags)).max() > PITCHED * same[0])
