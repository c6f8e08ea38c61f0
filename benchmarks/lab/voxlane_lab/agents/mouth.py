"""One response being spoken: what was sent, and what the ear has of it. Pure.

Sound is sent in real time, 60 ms ahead of the ear. A client that obeys plays what it gets at once; so the agent knows
what was played without being told.
"""

from __future__ import annotations

from voxlane_lab.agents.voice import AGENT_RATE, AGENT_TICK, AgentClip

LEAD = 3 * AGENT_TICK
"""Samples that are sent ahead."""


class Mouth:
    """Speaks a clip."""

    def __init__(self, response: int, turn: int, clip: AgentClip) -> None:
        self.response = response
        self.turn = turn
        self.clip = clip
        self.sent = 0
        self.silent_ticks = 0  # whole ticks for which the ear has had nothing
        self._queued = 0  # samples that the ear has not played yet
        self._left: int | None = None  # samples that may still be sent; None: all
        self._resumes_in: int | None = None  # ticks

    @property
    def played(self) -> int:
        """How many samples the ear has played."""
        return self.sent - self._queued

    @property
    def all_sent(self) -> bool:
        """Whether nothing is left to send."""
        return self.sent == len(self.clip.pcm)

    @property
    def dry(self) -> bool:
        """Whether the ear has played all that was sent."""
        return not self._queued

    @property
    def quiet(self) -> bool:
        """Whether the response may send no more for now."""
        return self._left == 0

    def listen(self) -> None:
        """Let 20 ms pass: the ear plays."""
        self.silent_ticks = 0 if self._queued else self.silent_ticks + 1
        self._queued = max(0, self._queued - AGENT_TICK)

    def pause(self, seconds: float) -> tuple[int, int]:
        """Let the ear run dry for a time and go on with the next sample; return what must be sent before.

        Pauses are multiples of 20 ms, because the ear plays in ticks. Half a tick of sound before the pause adds 10 ms.
        """
        ticks, rest = divmod(round(seconds * AGENT_RATE), AGENT_TICK)
        piece = self._piece((-rest - self._queued) % AGENT_TICK)
        self._resumes_in = -(-self._queued // AGENT_TICK) + ticks
        return piece

    def be_quiet(self) -> None:
        """Send nothing more until `say_more`."""
        self._left = 0

    def say_more(self, seconds: float) -> None:
        """Send so much of the response, then be quiet."""
        self._left = round(seconds * AGENT_RATE)

    def speak(self) -> tuple[int, int]:
        """Return the samples that are sent now: the first, and the one behind the last."""
        if self._resumes_in is not None:
            self._resumes_in -= 1
            if self._resumes_in >= 0:
                return self.sent, self.sent
            self._resumes_in = None
        samples = LEAD - self._queued
        if self._left is not None:
            samples = min(samples, self._left)
            self._left -= samples
        return self._piece(samples)

    def _piece(self, samples: int) -> tuple[int, int]:
        first = self.sent
        self.sent = min(len(self.clip.pcm), first + samples)
        self._queued += self.sent - first
        return first, self.sent
