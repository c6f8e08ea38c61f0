"""End of turn: how long a silence must last to end a person's turn.

One decision from the words (does the sentence sound complete to the chat model?), the voice (did it fall as at the end
of a sentence?), the pause so far, and the person's habits in this conversation. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from math import exp, inf, log

from voxlane.server.conversation.turns.phrases import ASIDE, phrasebook, spell
from voxlane.server.conversation.turns.policies import Eagerness, TurnPolicy


@dataclass(frozen=True, slots=True)
class PauseEvidence:
    """What is known about a turn when the person pauses."""

    words: str = ""
    fresh: bool = True  # the words are those of all the sound before the pause
    p_words: float | None = None  # the chat model's probability that the words are complete
    p_sound: float | None = None  # the probability that the voice sounds finished
    turn_s: float = 0.0  # length of the turn so far
    pauses: int = 0  # pauses inside the turn after which the person went on
    longest_s: float = 0.0  # the longest of them


class SentenceEnding(Enum):
    """How the words so far end."""

    OPEN = "open"  # in the middle of a sentence or a thought
    NUMBER = "number"  # with digits, as in a telephone number: more may follow
    PLAIN = "plain"
    QUESTION = "question"


# Seconds of silence that end a turn: after a certainly complete sentence, and after a certainly incomplete one. Between
# people, a gap between turns lasts 0.2 s, and few pauses inside a turn last more than 1 s.
_WAITS_S: dict[Eagerness, tuple[float, float]] = {
    "high": (0.25, 1.4),
    "medium": (0.4, 2.0),
    "low": (0.8, 2.5),
    "auto": (0.25, 2.4),  # trusts the evidence most
}

_STALE_S = 1.0
"""The least wait while the words of the last sound are not known: they come within half a second."""

# The log-odds that a turn is over: a constant, then what the words and the voice add per unit of their own log-odds.
# Fitted to sixty turns with pauses and 180 whole ones: first three voices with Moonshine, then two with Whisper.
_BIAS, _BY_WORDS, _BY_SOUND = 0.25, 0.58, 0.8
_MOST = 4.0
"""Log-odds beyond this are no better evidence: both estimates err with confidence at times."""

_HALTING, _HALT_FACTOR, _MOST_HALT_S = 2, 1.3, 1.0
"""After so many pauses in a turn the person searches for words: the next pause may be so much longer than those."""

_STOPPED_S, _STOP_WORDS = 0.8, 6
"""The least wait after "Stop, that's enough." and the like, up to so many words: no answer is awaited, but what the
person wants instead may follow. On a fast machine 16 of 18 such people were cut off before they said it."""

_ENDING_ODDS = {
    SentenceEnding.OPEN: -4.0,
    SentenceEnding.NUMBER: -0.7,
    SentenceEnding.PLAIN: 0.0,
    SentenceEnding.QUESTION: 0.5,  # little: recognisers put question marks behind half a sentence, too
}
"""What the last word adds."""

_SURE, _UNSURE = 0.85, 0.3
"""From this probability on the wait is the shortest; below the other it is the longest."""


@lru_cache(maxsize=256)  # called again and again while a turn is silent
def ending(words: str, language: str = "en") -> SentenceEnding:
    """Return how a transcript ends."""
    book, spelt, last = phrasebook(language), spell(words), ASIDE.sub("", words).rstrip(" \"'”’")
    if not spelt:
        return SentenceEnding.PLAIN
    tails = {" ".join(spelt[-count:]) for count in (1, 2, 3)}
    if tails & book.open and not tails & book.closed:
        return SentenceEnding.OPEN
    sentence = _LAST_SENTENCE.search(last)
    if sentence and "," not in sentence[0] and _begins_with(sentence[0], book.leading):
        return SentenceEnding.OPEN
    if last.endswith(("?", "？")):
        return SentenceEnding.QUESTION
    if last.endswith((",", "-", "–", "—", "...", "…", ":", ";", "、")):
        return SentenceEnding.OPEN
    return SentenceEnding.NUMBER if spelt[-1].isdigit() else SentenceEnding.PLAIN


_LAST_SENTENCE = re.compile(r"[^.?!]*[.?!]*$")


def _begins_with(sentence: str, phrases: frozenset[str]) -> bool:
    spelt = spell(sentence)
    return any(" ".join(spelt[:count]) in phrases for count in (1, 2, 3))


def only_stops(words: str, language: str = "en") -> bool:
    """Return whether the person has only told the assistant to stop."""
    spelt = spell(words)
    if len(spelt) > _STOP_WORDS or ending(words, language) is SentenceEnding.QUESTION:
        return False
    return _begins_with(words, frozenset(phrasebook(language).stop))


def p_over(evidence: PauseEvidence, language: str = "en") -> float:
    """Return the probability that the turn is over, from the words and the voice."""
    odds = _BIAS + _ENDING_ODDS[ending(evidence.words, language)]
    if evidence.p_words is not None:
        odds += _BY_WORDS * _log_odds(evidence.p_words)
    if evidence.p_sound is not None:
        odds += _BY_SOUND * _log_odds(evidence.p_sound)
    return 1 / (1 + exp(-odds))


def _log_odds(probability: float) -> float:
    probability = min(1 - 1e-6, max(1e-6, probability))
    return min(_MOST, max(-_MOST, log(probability / (1 - probability))))


def end_wait_s(evidence: PauseEvidence, policy: TurnPolicy, patience: float = 1.0) -> float:
    """Return how long a silence must last to end the turn: for ever outside auto mode, 0 after `max_turn_s`.

    `patience` lengthens the wait after a sentence that may be incomplete; see `Habits`.
    """
    if evidence.turn_s >= policy.max_turn_s:
        return 0.0
    if policy.mode != "auto":
        return inf
    shortest, longest = _WAITS_S[policy.eagerness]
    doubt = min(1.0, max(0.0, (_SURE - p_over(evidence, policy.language)) / (_SURE - _UNSURE)))
    wait = shortest + (longest - shortest) * doubt**2 * patience
    if not evidence.fresh:
        wait = max(wait, _STALE_S)
    if only_stops(evidence.words, policy.language):
        wait = max(wait, _STOPPED_S)
    if evidence.pauses >= _HALTING:
        wait = max(wait, min(_MOST_HALT_S, evidence.longest_s * _HALT_FACTOR))
    return min(policy.max_wait_s, max(policy.min_wait_s, wait))


def worth_preparing(evidence: PauseEvidence, policy: TurnPolicy) -> bool:
    """Return whether to prepare an answer, spoken only if the turn ends: one to half a sentence is wasted."""
    if policy.mode != "auto" or policy.eagerness == "low" or not evidence.fresh:
        return False
    return p_over(evidence, policy.language) >= 0.5


class Habits:
    """How long one person pauses inside their turns, learnt in the conversation.

    A person who pauses longer than most, or whose turn was ended although they went on, is given more time.
    """

    USUAL_S = 0.7  # a long pause of most people
    LEARNING = 0.25
    MOST = 1.6

    def __init__(self) -> None:
        self._long_s = self.USUAL_S  # running estimate of the person's long pauses
        self._cut_off = 0  # times that the person went on after the turn was ended

    def paused(self, seconds: float) -> None:
        """Learn from a pause after which the person went on."""
        if seconds > 0.3:  # shorter ones are part of speaking
            share = self.LEARNING if seconds > self._long_s else self.LEARNING / 4
            self._long_s += share * (min(seconds, 3.0) - self._long_s)

    def cut_off(self) -> None:
        """Learn that a turn was ended too early."""
        self._cut_off += 1

    @property
    def patience(self) -> float:
        """The factor for waits after sentences that may be incomplete."""
        return min(self.MOST, max(0.9, self._long_s / self.USUAL_S) + 0.15 * self._cut_off)
