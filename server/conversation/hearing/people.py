"""Whose voice an ear hears: that of the conversation's person, or another in the room. Pure.

A voice about as loud as the person was so far is the person's. So is a softer one (they lean back) unless its spectrum
is not theirs or it is no louder than what goes on in the room anyway. Any other voice is a stranger's (stranger.py).
Before the person has spoken, every voice is the person's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf, log10

from voxlane.server.conversation.hearing.loudness import LoudLevel, Room, RoomPolicy
from voxlane.server.conversation.hearing.portrait import Portrait
from voxlane.server.conversation.hearing.stranger import Stance, Stranger

RATE = 16_000
FRAME_SAMPLES = 160

_VOICE_FRAMES = 24  # frames whose mean loudness is that of a voice


@dataclass(frozen=True, slots=True)
class PeoplePolicy:
    """When a voice is a stranger's, and when a stranger is heard. Seconds of sound."""

    soft_s: float = 3.0  # a voice that is softer than the person's for longer counts as the room's
    look_s: float = 1.0  # a soft voice is compared with the portrait for so long
    look_db: float = 4.0  # a voice is another than the portrait's from this distance on
    glance_s: float = 0.35  # from here on a soft voice is compared
    glance_db: float = 3.3  # a voice that comes nearer is the portrait's, however short it is
    # A stranger opens a turn when it has spoken for a time between these two, and then waits.
    stranger_least_s: float = 0.5
    stranger_most_s: float = 7.0
    stranger_wait_s: float = 0.7


class People:
    """The person, the room and a stranger, as one ear knows them. Times are samples of its stream."""

    def __init__(self, policy: PeoplePolicy | None, room: RoomPolicy | None, last_second: Callable[[], bytes]) -> None:
        """Begin before the first voice; `last_second` returns the last second of sound."""
        self.room = Room(room)
        self.policy = policy or PeoplePolicy()
        self.foreign = False  # the voice since the gate opened is not the person's
        self.hesitates = False  # it is soft, and the portrait is still to be asked
        self.stranger: Stranger | None = None
        self._last_second = last_second
        self._levels: deque[float] = deque(maxlen=_VOICE_FRAMES)  # of the last frames since the gate opened
        self._loudest = -inf  # the loudest that the voice was since then
        self._voice = LoudLevel(1.0, 0.5)  # the loudness of the confirmed voice
        self._soft_from: int | None = None  # where that became softer than the person's
        self._portrait = Portrait()
        self._unseen = 0  # frames of the person since the portrait was last drawn

    @property
    def level(self) -> float:
        """The loudness of the last frames since the gate opened, in dB."""
        power = 0.0  # not `sum`, which rounds otherwise from Python 3.12 on: the native ear adds like this
        for level in self._levels:
            power += 10 ** (level / 10)
        return 10 * log10(power / max(1, len(self._levels)) + 1e-12)

    @property
    def voice_level(self) -> float:
        """The loudness of the last confirmed voice; of the last frames if it was short."""
        return self._voice.level if self._voice.known else self.level

    def begin(self) -> None:
        """Note that the gate has opened."""
        self.foreign = self.hesitates = False
        self._levels.clear()
        self._loudest = -inf

    def confirm(self) -> None:
        """Note that the voice is speech, or goes on after a pause."""
        self.foreign = self.hesitates = False
        self._soft_from = None
        self._voice = LoudLevel(1.0, 0.5)

    def hear(self, level: float) -> None:
        """Take the level of a frame in which the person does not speak."""
        self._levels.append(level)
        self.room.learn_bed(level)

    def hear_voice(self, level: float, at: int, *, learns: bool) -> None:
        """Take the level of a frame of confirmed speech that ends at `at`; `learns`: it shows what the person is."""
        room = self.room
        self._levels.append(level)
        self._voice.feed(level)
        loudness = self._voice.level if self._voice.known else level
        if loudness >= room.soft:
            self._soft_from = None
            if learns and loudness >= room.near:
                room.learn_person(level)
                self._draw()
        elif self._soft_from is None:
            self._soft_from = at
        elif at - self._soft_from >= self.policy.soft_s * RATE:
            room.learn_bed(level)
        elif at - self._soft_from == RATE:
            self._look_at_soft_voice(at)

    def admits(self, began: int, opened: int, at: int, *, guarded: bool) -> bool:
        """Return whether the voice that began there is the person's, as far as is known at sample `at`."""
        room, level = self.room, self.level
        self._loudest = max(self._loudest, level)
        if (level if room.has_bed else self._loudest) >= room.faintest:
            if self._loudest >= room.soft or not self._portrait.ready or self._is_like(at - opened):
                return True
            if self.hesitates:
                return False
        if not self.foreign and self.stranger is None and room.stands_out(self._loudest) and not guarded:
            policy = self.policy
            limits = (policy.stranger_least_s, policy.stranger_most_s, policy.stranger_wait_s)
            self.stranger = Stranger(began, at, self._loudest, *(round(limit * RATE) for limit in limits))
        self.foreign = True
        return False

    def _is_like(self, lasted: int) -> bool:
        """Return whether a voice that has lasted so long is like the portrait; it hesitates before it says no."""
        policy = self.policy
        self.hesitates = lasted < policy.look_s * RATE
        if lasted < policy.glance_s * RATE:
            return False
        return self._portrait.distance(self._last_second()) < (policy.glance_db if self.hesitates else policy.look_db)

    def follow(self, stranger: Stranger, level: float, margin: float, at: int) -> bool:
        """Give the stranger the next frame; return whether it waits for an answer."""
        stance = stranger.feed(level, self.room.noise + margin, at)
        if stance is not Stance.SPEAKS:
            self.stranger = None
        if stance is Stance.WAITS:
            self.room.admit(stranger.level)
        return stance is Stance.WAITS

    def _draw(self) -> None:
        """Add every second of the person's voice to the portrait."""
        self._unseen += 1
        if self._unseen == RATE // FRAME_SAMPLES:
            self._unseen = 0
            self._portrait.learn(self._last_second())

    def _look_at_soft_voice(self, at: int) -> None:
        """Compare a voice that has become soft with the portrait: another voice is the room's."""
        if not self._portrait.ready:
            return
        if self._portrait.distance(self._last_second()) < self.policy.look_db:
            self._soft_from = at  # ask again after another second
            return
        self._soft_from = at - round(self.policy.soft_s * RATE)
        for level in self._voice.frames:
            self.room.learn_bed(level)
