"""The policies of turns: when a turn is over, and when a voice that cuts into a reply takes the floor.

end_of_turn.py and barge_in.py decide by them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

Mode = Literal["auto", "manual", "buffer"]
Eagerness = Literal["low", "medium", "high", "auto"]
Wait = Annotated[float, Meta(ge=0, le=10)]  # in seconds
Probability = Annotated[float, Meta(ge=0, le=1)]
LanguageName = Annotated[str, Meta(max_length=64)]
PHRASES, PHRASE_CHARACTERS = 64, 100
PhraseList = Annotated[tuple[Annotated[str, Meta(max_length=PHRASE_CHARACTERS)], ...], Meta(max_length=PHRASES)]
Holding = Literal["duck", "pause"]


@dataclass(frozen=True, slots=True)
class TurnPolicy:
    """When a turn is over."""

    mode: Mode = "auto"  # manual: the client begins and ends turns; buffer: all sound is a turn that the client ends
    eagerness: Eagerness = "auto"
    min_wait_s: Wait = 0.25  # no shorter silence ends a turn
    max_wait_s: Annotated[float, Meta(ge=0.1, le=30)] = 2.5  # every longer silence ends a turn
    max_turn_s: Annotated[float, Meta(ge=1, le=600)] = 120.0  # a longer turn is ended, even while the person speaks
    # Sound before the onset that is transcribed, too: the gate opens after a soft consonant.
    pre_roll_s: Annotated[float, Meta(ge=0, le=2)] = 0.3
    threshold: Probability = 0.5  # the least speech probability
    # After so much silence behind a reply the assistant speaks again; None: never.
    idle_s: Annotated[float, Meta(ge=1, le=600)] | None = None
    language: LanguageName = "en"


@dataclass(frozen=True, slots=True)
class BargePolicy:
    """When a voice that cuts into a reply takes the floor, and what is heard of the reply until then."""

    hold: Holding = "duck"  # duck: a voice like a murmur lowers the reply; pause: every voice stops it
    stop_phrases: PhraseList | None = None  # phrases that take the floor at once; None: those of the language
    brief_s: Wait = 0.5  # a voice with less strong sound takes the floor only with a word of `Phrasebook.claims`
    lasting_s: Wait = 1.1  # speech this long takes the floor, with or without words
    release_s: Wait = 0.5  # silence after which the reply goes on
    backchannel_release_s: Wait = 0.3  # the same after backchannels
    wordless_release_s: Wait = 0.7  # the same after speech whose words may still come
    at_once: bool = False  # every confirmed voice takes the floor
    # Only with hold = "duck", where a voice that is not brief stops the reply, too
    duck_release_s: Wait = 0.08  # a murmur that is over for this long no longer lowers the reply
    # A voice this many dB above the person's usual loudness stops the reply at once.
    loud_db: Annotated[float, Meta(ge=0, le=60)] = 9.0
    language: LanguageName = "en"
