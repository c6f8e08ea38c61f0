"""Another voice than the person's: a second person, waiting for an answer, or a television. Pure.

A second person speaks, stops, and waits. A television goes on. So such a voice is heard as a turn if it is silent for
`wait_s` after between `least_s` and `most_s` of speech. Until then it opens no turn and holds no reply.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

FADE = 15.0
"""dB: a frame is the voice's if it is at most this far below its loudness."""


class Stance(Enum):
    """What a stranger does."""

    SPEAKS = "speaks"
    WAITS = "waits"  # for an answer
    NOTHING = "nothing"  # it was too short, or it goes on and on


@dataclass(slots=True)
class Stranger:
    """One voice, followed from its beginning. Times are samples, levels dB of full scale."""

    begin: int
    last: int  # where its last loud frame ended
    level: float
    least: int
    most: int
    wait: int

    def feed(self, level: float, margin: float, at: int) -> Stance:
        """Take the level of the frame that ends at `at`; a frame below `margin` is silence."""
        if level >= max(margin, self.level - FADE):
            self.last = at
        if self.last - self.begin > self.most:
            return Stance.NOTHING
        if at - self.last < self.wait:
            return Stance.SPEAKS
        return Stance.WAITS if self.last - self.begin >= self.least else Stance.NOTHING
