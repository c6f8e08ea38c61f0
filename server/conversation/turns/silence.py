"""Decide what a silence in a turn means, and when its meaning may change.

It looks at one turn and the policies; floor.py acts. Pure: the clock is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from voxlane.server.conversation.turns.barge_in import Verdict, judge
from voxlane.server.conversation.turns.user_turn import UserSpeech
from voxlane.server.conversation.values import SessionConfig

LAST_WORDS_S = 2.0
"""How long a reply stays on hold for the words of a voice that has stopped: a busy engine sends them late."""

LOOK_S = 0.05
"""How often to check for sound while its absence may end a turn."""


@dataclass(slots=True)
class Lull:
    """How long no sound has come, counted from one look to the next.

    After a stall of the machine or the event loop, audio is still in flight. So one look adds at most 2 × LOOK_S of
    silence; twice, since timers are always a bit late.
    """

    seconds: float = 0.0
    _looked_s: float = 0.0

    def observe(self, now: float) -> None:
        """Count the time since the last look."""
        self.seconds += min(now - self._looked_s, 2 * LOOK_S)
        self._looked_s = now


class Meaning(Enum):
    """What the sound so far means."""

    UNDECIDED = auto()
    PAUSE = auto()  # the turn may be over
    END = auto()  # the turn is over
    MEANT = auto()  # the voice that holds the reply takes the floor
    WANTS_WORDS = auto()  # that depends on its words, which are not known
    NOTHING = auto()  # the voice does not take the floor


def meaning(
    turn: UserSpeech,
    silence_s: float,
    spoken_s: float,
    end_wait_s: float,
    config: SessionConfig,
    strong_s: float | None = None,
) -> Meaning:
    """Return what `silence_s` means in a turn with `spoken_s` of voice, `strong_s` of it strong.

    A silence of `end_wait_s` ends the turn.
    """
    if turn.held:
        verdict = judge(turn.text, turn.confirmed, spoken_s, silence_s, False, config.barge_in, strong_s)
        if verdict is not Verdict.RELEASE:
            return Meaning.MEANT if verdict is Verdict.COMMIT else Meaning.UNDECIDED
        wordless = turn.confirmed and not turn.text and not turn.understood
        wants_words = wordless and silence_s < LAST_WORDS_S and spoken_s >= config.barge_in.brief_s
        return Meaning.WANTS_WORDS if wants_words else Meaning.NOTHING
    if not turn.confirmed or not turn.silent:
        return Meaning.UNDECIDED
    return Meaning.END if silence_s >= end_wait_s else Meaning.PAUSE


def turning_points(end_wait_s: float, config: SessionConfig) -> tuple[float, ...]:
    """Return the silences, in seconds, at which the meaning may change; a silence of `end_wait_s` ends the turn."""
    barge = config.barge_in
    return (end_wait_s, barge.release_s, barge.backchannel_release_s, barge.wordless_release_s, LAST_WORDS_S)
