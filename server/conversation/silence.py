"""What a silence in a turn means, and when it will mean something else.

It knows one turn and the policies. What follows from a meaning is floor.py's business. Pure: the clock is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from voxlane.server.conversation.turns import Verdict, judge
from voxlane.server.conversation.user_turn import UserSpeech
from voxlane.server.conversation.values import SessionConfig

LAST_WORDS_S = 2.0
"""How long a reply stays on hold for the words of a voice that has stopped: on a busy machine they come late."""

LOOK_S = 0.05
"""How often to look whether sound comes, while its absence may come to mean something."""


@dataclass(slots=True)
class Lull:
    """How long no sound has come, as far as anybody has looked.

    Who stands still hears nothing: when a machine or an event loop goes on after a while, what was said meanwhile is
    still on its way. So the time between two looks counts up to twice what it should be; timers are always a bit late.
    """

    seconds: float = 0.0
    _looked_s: float = 0.0

    def look(self, now: float) -> None:
        """Count the time since the last look."""
        self.seconds += min(now - self._looked_s, 2 * LOOK_S)
        self._looked_s = now


class Meaning(Enum):
    """What is to be made of the sound so far."""

    UNDECIDED = auto()
    PAUSE = auto()  # the turn may be over
    END = auto()  # it is
    MEANT = auto()  # whoever has a reply on hold wants the floor
    WANTS_WORDS = auto()  # that depends on what was said, and it is not known
    NOTHING = auto()  # nobody wants the floor


def meaning(turn: UserSpeech, silence_s: float, spoken_s: float, heard: int, config: SessionConfig) -> Meaning:
    """Return what it means that a turn with so much voice in it has been silent for so long, at sample `heard`."""
    if turn.held:
        verdict = judge(turn.text, turn.confirmed, spoken_s, silence_s, False, config.barge_in)
        if verdict is not Verdict.RELEASE:
            return Meaning.MEANT if verdict is Verdict.COMMIT else Meaning.UNDECIDED
        wordless = turn.confirmed and not turn.text and not turn.understood
        wants_words = wordless and silence_s < LAST_WORDS_S and spoken_s >= config.barge_in.brief_s
        return Meaning.WANTS_WORDS if wants_words else Meaning.NOTHING
    if not turn.confirmed or not turn.silent:
        return Meaning.UNDECIDED
    return Meaning.END if silence_s >= turn.end_wait(config.turns, heard) else Meaning.PAUSE


def turning_points(turn: UserSpeech, heard: int, config: SessionConfig) -> tuple[float, ...]:
    """Return the silences, in seconds, at which the meaning may change or an answer may be prepared."""
    barge = config.barge_in
    ends = (turn.end_wait(config.turns, heard), turn.eager_wait(config.turns, heard))
    return (*ends, barge.release_s, barge.backchannel_release_s, barge.wordless_release_s, LAST_WORDS_S)
