"""A voice over a reply: does the reply go on, is it lowered, or does it stop, until there is a verdict?

`judge` in barge_in.py gives the verdict, from words that come half a second after the first sound. This module decides
what the person hears of the reply until then, from the sound and the words so far: a murmur only lowers the reply, and
the reply comes back as soon as the murmur is over; a voice that is loud, goes on or says more than a murmur stops it.
Pure.

Measured with 100 murmurs of ten synthetic voices (benchmarks/support/ears/backchannels.py): strong sound of 0.36 s at
the median, 0.47 s at the 90th percentile. The reply was lowered for 440 ms at the median and stood still for none;
with `hold = "pause"` it stood still for 820 ms.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from voxlane.server.conversation.turns.phrases import leaves_floor, spell
from voxlane.server.conversation.turns.policies import BargePolicy

DUCK_GAIN = 0.178
"""The gain of a lowered reply: -15 dB. It can be followed, and the person's own voice is clearly above it."""

LONG = 2.0
"""Words are known half a second late. A voice this many times longer than a brief one goes on after its "okay"."""


class Playing(Enum):
    """How a reply is played while a voice is heard."""

    FULL = "full"
    DUCKED = "ducked"  # lowered; it goes on, so it is heard
    HELD = "held"  # it stands still


@dataclass(frozen=True, slots=True)
class VoiceSoFar:
    """What is known of a voice that has no verdict yet."""

    spoken_s: float  # its strong sound: without pauses and faint endings
    faded_s: float  # since its last strong sound
    excess_db: float  # its loudness above the person's usual one
    text: str = ""


@dataclass(slots=True)
class Overlap:
    """The account of one voice over a reply."""

    epoch: int  # of the reply
    hold_ms: float  # milliseconds of sound from the voice's first to the moment the reply was lowered or held
    onset_s: float
    ducked_s: float = 0.0
    muted_s: float = 0.0
    _playing: Playing = Playing.FULL
    _looked_s: float = 0.0

    def observe(self, playing: Playing, now: float) -> None:
        """Count the time since the last look; from now on the reply is played like this."""
        match self._playing:
            case Playing.DUCKED:
                self.ducked_s += now - self._looked_s
            case Playing.HELD:
                self.muted_s += now - self._looked_s
            case Playing.FULL:
                pass
        self._playing, self._looked_s = playing, now


def playing(voice: VoiceSoFar, policy: BargePolicy, *, held: bool = False) -> Playing:
    """Return how the reply is played now that a voice is heard that has no verdict yet; `held`: it stands still."""
    if policy.hold == "pause":
        return Playing.HELD
    words = bool(spell(voice.text))
    harmless = words and leaves_floor(voice.text, policy.language)
    if voice.faded_s >= policy.duck_release_s and (harmless or voice.spoken_s < policy.brief_s):
        return Playing.FULL
    if harmless and voice.spoken_s < LONG * policy.brief_s:
        return Playing.DUCKED
    takes_over = held or words or voice.spoken_s >= policy.brief_s or voice.excess_db >= policy.loud_db
    return Playing.HELD if takes_over else Playing.DUCKED
