"""How loud a room and the person in it are, from the levels of 10 ms frames in dB of full scale. Pure.

Three levels are followed: the noise floor, the loudness of the person, and the loudness of what else goes on in the
room (the bed), such as a television. From them follow the gain that a faint person needs and the level that a frame
must reach to count as the person's.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf

import numpy as np

FRAMES_A_SECOND = 100


@dataclass(frozen=True, slots=True)
class RoomPolicy:
    """How a person is told from the room. All values are dB."""

    assumed: float = -20.0  # the person's loudness before their first turn
    near: float = 8.0  # a voice at most this far below the person's loudness is the person's
    soft: float = 13.0  # so is one this far below it, if it is above the bed: they lean back
    same: float = 5.0  # so is a voice at most this far below that of a second person in the conversation
    fall: float = 0.5  # the loudness of the person falls by at most so much in a second of their speech
    bed_margin: float = 9.0  # a frame passes the closed gate if it is this far above the bed
    bed_keep: float = 6.0  # a frame passes the open gate if it is this far above the bed; a voice is above it, too
    hides: float = 2.0  # the bed hides no frame that is at most this far below the person's loudness: closed gate
    hides_open: float = 4.0  # the same for the open gate and for a voice
    bed_least: float = 6.0  # what is less than this above the noise floor is no bed but noise
    bed_range: float = 30.0  # a sound further than this below the person's loudness is no bed
    stands_out: float = 10.0  # a stranger's voice is this far above what went on before
    # Gain
    gain_most: float = 30.0
    gain_to: float = -30.0  # a person at this level or above is not amplified
    vowels: float = 15.0  # how much louder a voice may become after its first frames
    noise_to: float = -52.0  # the noise floor is not amplified above this level


class Extremes:
    """The quietest and the loudest moment of the last 2.5 s.

    Speech has gaps and stays above the quietest; a steady hum becomes it.
    """

    BLOCK_FRAMES, BLOCKS = 25, 10
    SMOOTHING = 0.3
    AT_FIRST = -30.0  # dB; the most that `quietest` can be in the first 2.5 s: the person may speak at once

    def __init__(self) -> None:
        self._low: deque[float] = deque(maxlen=self.BLOCKS)
        self._high: deque[float] = deque(maxlen=self.BLOCKS)
        self._smooth = self._lowest = 0.0
        self._highest = -inf
        self._frames = 0
        self.quietest = self.AT_FIRST
        self.loudest = -inf

    def feed(self, level: float) -> bool:
        """Add the level of the next frame; return whether a block is complete, which happens every 0.25 s."""
        self._smooth = smooth = self._smooth + (self.SMOOTHING if self._smooth else 1.0) * (level - self._smooth)
        if smooth < self._lowest:
            self._lowest = smooth
            if smooth < self.quietest:
                self.quietest = smooth
        if level > self._highest:
            self._highest = level
            if level > self.loudest:
                self.loudest = level
        self._frames += 1
        if self._frames < self.BLOCK_FRAMES:
            return False
        self._low.append(self._lowest)
        self._high.append(self._highest)
        self._frames, self._lowest, self._highest = 0, self._smooth, -inf
        self.quietest = min(self._low) if len(self._low) == self.BLOCKS else min(self.AT_FIRST, *self._low)
        self.loudest = max(self._high)
        return True


class LoudLevel:
    """The level that a fifth of the last frames exceed. Of speech, that is about the level of its vowels."""

    SHARE = 0.8
    EVERY = 25  # frames from one estimate to the next

    def __init__(self, seconds: float, least_s: float) -> None:
        """Look at the last `seconds` of frames; know nothing before there are `least_s` of them."""
        self._ring = np.zeros(round(seconds * FRAMES_A_SECOND))
        self._least = round(least_s * FRAMES_A_SECOND)
        self._count = 0  # frames so far
        self.level = -inf  # dB; -inf: not known

    @property
    def known(self) -> bool:
        """Whether enough frames have come."""
        return self.level > -inf

    @property
    def frames(self) -> list[float]:
        """The levels of the last frames, in no order."""
        return [float(level) for level in self._ring[: self._count]]

    def feed(self, level: float) -> bool:
        """Add the level of the next frame; return whether there is a new estimate."""
        count = self._count
        self._ring[count % len(self._ring)] = level
        self._count = count = count + 1
        if count % self.EVERY or count < self._least:
            return False
        last = self._ring[:count]
        place = int(self.SHARE * len(last))
        self.level = float(np.partition(last, place)[place])
        return True


class Room:
    """The levels of one microphone's room. What follows from them is computed when one of them changes."""

    def __init__(self, policy: RoomPolicy | None = None) -> None:
        self._policy = policy or RoomPolicy()
        self._range = Extremes()
        self._person = LoudLevel(5.0, 0.5)
        self._bed = LoudLevel(8.0, 2.0)
        self._second = inf  # the loudness of another voice that has taken part
        self.gain = 0.0  # dB, for the detectors
        self.knows_person = False
        self.has_bed = False  # more than noise goes on beside the person
        self.bar = self.open_bar = -inf  # the level of a frame that the bed does not explain: closed gate, open gate
        self.near = -inf  # a voice of this level or above is as loud as the person's
        self.soft = -inf  # a voice below this level is softer than those that take part
        self.faintest = -inf  # a voice below this level is not the person's

    @property
    def noise(self) -> float:
        """The noise floor."""
        return self._range.quietest

    @property
    def person(self) -> float:
        """The loudness of the person: of the louder part of their frames."""
        return self._person.level if self.knows_person else self._policy.assumed

    @property
    def bed(self) -> float:
        """The loudness of what else goes on; -inf if there is only noise, or if the person is not known."""
        return self._bed.level if self.has_bed else -inf

    @property
    def loudest(self) -> float:
        """The loudest frame of the last 2.5 s."""
        return self._range.loudest

    def stands_out(self, level: float) -> bool:
        """Return whether a voice is known to be far louder than what went on for 8 s."""
        return self._bed.known and level >= self._bed.level + self._policy.stands_out

    @property
    def turn_gain(self) -> float:
        """The gain for a turn that begins now, in dB. Vowels are louder than the beginning of a first turn."""
        return self._gain(self._range.loudest + self._policy.vowels)

    def feed(self, level: float) -> None:
        """Add the level of the next frame."""
        louder = level > self._range.loudest
        if self._range.feed(level):
            self._settle()
        elif louder and self.gain:
            self.gain = self._gain(level)

    def learn_person(self, level: float) -> None:
        """Add the level of a frame that is the person's voice."""
        before = self._person.level
        if not self._person.feed(level):
            return
        step = self._policy.fall * LoudLevel.EVERY / FRAMES_A_SECOND
        self._person.level = max(self._person.level, before - step)
        self.knows_person = True
        self._settle()

    def learn_bed(self, level: float) -> None:
        """Add the level of a frame in which the person does not speak."""
        if self._bed.feed(level):
            self._settle()

    def admit(self, level: float) -> None:
        """Note that a voice of this loudness takes part in the conversation, too."""
        self._second = level
        self._bed = LoudLevel(8.0, 2.0)  # what was heard of that voice is no bed
        self._settle()

    def _gain(self, loudest: float) -> float:
        """Return the gain for the person, or for the loudest recent sound if the person is not known."""
        policy = self._policy
        reference = self._person.level if self.knows_person else loudest
        return max(0.0, min(policy.gain_most, policy.gain_to - reference, policy.noise_to - self.noise))

    def _settle(self) -> None:
        """Compute what follows from the levels."""
        policy, person, bed = self._policy, self._person.level, self._bed.level
        self.gain = self._gain(self._range.loudest)
        if not self.knows_person:
            return
        self.has_bed = bed > max(self.noise + policy.bed_least, person - policy.bed_range)
        self.bar = min(bed + policy.bed_margin, person - policy.hides) if self.has_bed else -inf
        self.open_bar = min(bed + policy.bed_keep, person - policy.hides_open) if self.has_bed else -inf
        self.near = person - policy.near
        self.soft = min(self.near, self._second - policy.same)
        above_bed = min(bed + policy.bed_margin, person - policy.hides_open) if self.has_bed else -inf
        self.faintest = max(min(person - policy.soft, self._second - policy.same), above_bed)
