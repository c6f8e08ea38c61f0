"""The line between the person and the server: delay, jitter, stalls, lost packets, and the loudspeaker's echo. Pure.

The real network comes on top. Messages keep their order, as TCP does: a late one delays those behind it. A lost packet
is 20 ms of silence: a telephone's jitter buffer gives up on it. Everything is drawn from the seed.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from voxlane_lab.rates import RateConverter
from voxlane_lab.scenario import Echo, LineConditions
from voxlane_lab.values import USER_RATE, USER_TICK, Message, Pcm

ROOM_S = 0.03  # how long a small room's response is

Floats = NDArray[np.float32]


class Way:
    """One direction: messages go in with the time, and come out in order when they are due."""

    def __init__(self, conditions: LineConditions, chance: np.random.Generator, *, stalls: bool) -> None:
        self._delay_s = conditions.delay_ms / 1e3
        self._jitter_s = conditions.jitter_ms / 1e3
        self._stall_s = conditions.stall_ms / 1e3 if stalls else 0.0
        self._every_s = conditions.stall_every_s
        self._chance = chance
        self._waiting: deque[tuple[float, Message]] = deque()
        self._last_s = 0.0

    def put(self, message: Message, at_s: float) -> None:
        """Take a message."""
        due_s = at_s + self._delay_s + self._jitter_s * float(self._chance.random())
        if self._stall_s and self._every_s and due_s % self._every_s < self._stall_s:
            due_s += self._stall_s - due_s % self._every_s
        self._last_s = max(self._last_s, due_s)
        self._waiting.append((self._last_s, message))

    def take(self, at_s: float) -> list[tuple[float, Message]]:
        """Return the messages that have come by now, and when."""
        out = []
        while self._waiting and self._waiting[0][0] <= at_s + 1e-9:
            out.append(self._waiting.popleft())
        return out


class PacketLoss:
    """Which packets of 20 ms are lost."""

    def __init__(self, share: float, chance: np.random.Generator) -> None:
        self._share = share
        self._chance = chance

    def lost(self) -> bool:
        """Return whether the next packet is lost."""
        return bool(self._chance.random() < self._share)


class EchoPath:
    """What a microphone hears of the loudspeaker."""

    def __init__(self, echo: Echo | None, rate: int, chance: np.random.Generator) -> None:
        self._converter = RateConverter(rate, USER_RATE)
        self._tail = _tail(echo, chance) if echo is not None else None
        late = round((echo.delay_ms if echo is not None else 0) / 1e3 * USER_RATE)
        ahead = round(self._converter.hold_back_ms / 1e3 * USER_RATE) + 1
        behind = len(self._tail) - 1 if self._tail is not None else 0
        self._sound: Floats = np.zeros(max(late, ahead) + behind, np.float32)  # what may still come back, oldest first

    def hear(self, played: Pcm) -> Floats:
        """Take 20 ms of what the loudspeaker plays; return 20 ms of its echo."""
        if self._tail is None:
            return np.zeros(USER_TICK, np.float32)
        self._sound = np.concatenate([self._sound, self._converter.push(played)])
        window = self._sound[: USER_TICK + len(self._tail) - 1]
        self._sound = self._sound[USER_TICK:]
        return np.convolve(window, self._tail, "valid").astype(np.float32)


def _tail(echo: Echo, chance: np.random.Generator) -> Floats:
    """Return what one sample comes back as: one reflection, or a small room's."""
    tail = np.ones(1)
    if echo.room:
        time_s = np.arange(round(ROOM_S * USER_RATE)) / USER_RATE
        tail = chance.normal(0, 0.5, len(time_s)) * np.exp(-6.9 * time_s / ROOM_S)
        tail[0] = 1.0
        tail /= np.sqrt((tail**2).sum())
    return (tail * 10 ** (echo.level_db / 20)).astype(np.float32)
