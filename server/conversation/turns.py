"""Endpointing and barge-in: how long a silence ends a turn, and whether a voice that cuts in takes the floor.

Pure decisions on words and seconds, without state. ear.py detects the voice, the engine transcribes it and estimates
how complete the words sound, and floor.py acts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from math import inf
from typing import Literal

Mode = Literal["auto", "manual", "buffer"]
Eagerness = Literal["low", "medium", "high", "auto"]


@dataclass(frozen=True, slots=True)
class TurnPolicy:
    """When a turn is over."""

    mode: Mode = "auto"  # manual: the client begins and ends turns; buffer: all sound is a turn that the client ends
    eagerness: Eagerness = "auto"
    min_wait_s: float = 0.25  # no shorter silence ends a turn
    max_wait_s: float = 2.5  # every longer silence ends a turn
    max_turn_s: float = 120.0  # a longer turn is ended, even while the person speaks
    pre_roll_s: float = 0.3  # sound before the onset that is transcribed, too: the gate opens after a soft consonant
    threshold: float = 0.5  # the least speech probability
    idle_s: float | None = None  # after so much silence behind a reply the assistant speaks again; None: never
    language: str = "en"


@dataclass(frozen=True, slots=True)
class BargePolicy:
    """When a voice that cuts into a reply takes the floor."""

    stop_phrases: tuple[str, ...] | None = None  # phrases that take the floor at once; None: those of the language
    brief_s: float = 0.6  # shorter speech takes the floor only with a word of `Phrasebook.claims`
    lasting_s: float = 1.1  # speech this long takes the floor, with or without words
    release_s: float = 0.5  # silence after which the reply goes on
    backchannel_release_s: float = 0.3  # the same after backchannels
    wordless_release_s: float = 0.7  # the same after speech whose words may still come
    at_once: bool = False  # every confirmed voice takes the floor
    language: str = "en"


class Verdict(Enum):
    """What happens to a reply on hold."""

    COMMIT = "commit"  # it ends: the person has the floor
    RELEASE = "release"  # it goes on where it stopped
    WAIT = "wait"  # not decided yet


# ---- what words mean, per language


@dataclass(frozen=True, slots=True)
class Phrasebook:
    """What the words of one language mean for turns. All are in the spelling of `spell`."""

    stop: tuple[str, ...] = ()
    backchannels: frozenset[str] = frozenset()  # phrases that leave the floor to the assistant
    murmur: re.Pattern[str] | None = None  # backchannels without a fixed spelling
    claims: frozenset[str] = frozenset()  # words that take the floor even alone
    open: frozenset[str] = frozenset()  # last words of an unfinished sentence, and words that mark thinking
    closed: frozenset[str] = frozenset()  # endings that are complete although their last word is in `open`


def _phrases(text: str) -> frozenset[str]:
    return frozenset(phrase.strip() for phrase in text.split(","))


ENGLISH = Phrasebook(
    stop=(
        "stop", "wait", "hold on", "hang on", "shut up", "be quiet", "pause", "cancel", "never mind", "that's enough",
        "one moment", "one second", "just a moment", "just a second", "just a minute", "excuse me",
    ),
    backchannels=_phrases(
        "yes, right, ok, okay, sure, true, exactly, indeed, absolutely, definitely, totally, certainly, correct,"
        "agreed, i see, i know, i understand, understood, i got it, got it, gotcha, of course, for sure, all right,"
        "alright, that's right, that's true, that is right, that is true, makes sense, that makes sense, fair enough,"
        "good, great, nice, cool, wow, whoa, fine, perfect, wonderful, excellent, amazing, awesome, lovely,"
        "good to know, go on, go ahead, keep going, please go on, really, no way, is that so, interesting,"
        "that's interesting, that's good, that's great, that's nice, sounds good, very good, very nice,"
        "oh dear, oh no, oh my, oh my god, my god, my goodness, oh boy, oh man, damn, jeez, well, so, and, lol"
    ),
    # mhm, mm-hmm, hm, uh-huh, uh, um, er, ah, aha, oh, ooh, huh, eh, yeah, yep, yup, ya, ha ha, he he, pff, phew, tsk
    murmur=re.compile(
        r"m+|(m+h+)+m*|(h+m+)+|m+hu+m+|u+h+m*|u+m+|h+u+h+|h+u+m+|u+hu+[hm]+|e+r+m*|e+h+|a+h*|a+ha+h*|o+h+|o{2,}h*"
        r"|ye+a+h*|ye+p+|yu+p+|ya+h*|b?w?a?(ha)+h*|a?(he)+h*|(hee)+|p+f+t*|phe+w+|tsk|ts+|s+h+|u+gh+|a+rgh+|a+w+"
    ),
    claims=_phrases(
        "no, nope, nah, not, don't, but, what, why, who, when, where, how, which, sorry, pardon, hello, hey, hi, help,"
        "listen, look, next, skip, back, again, repeat, continue, louder, slower, faster, quiet, thanks, thank, bye,"
        "goodbye, please, actually, question, wrong, zero, one, two, three, four, five, six, seven, eight, nine, ten,"
        "twelve, twenty, hundred, today, tomorrow, tonight, monday, tuesday, wednesday, thursday, friday, saturday,"
        "sunday"
    ),
    open=_phrases(
        "um, uh, er, erm, uhm, hm, hmm, mm, well, like, so, let me see, let's see, let me think, you know, i mean,"
        "a, an, the, and, or, but, nor, because, although, unless, until, while, whereas, whether, if, than, as, plus,"
        "of, to, from, with, without, into, onto, between, among, during, towards, at, by, for, my, your, our, their,"
        "its, every, very, also, which, whose, i'm, i'll, i've, i'd, we're, we'll, they're, you're, you'll, there's,"
        "gonna, wanna"
    ),
    closed=_phrases(
        "think so, hope so, guess so, suppose so, that so, say so, said so, do so, as well, very well,"
        "quite well, what for"
    ),
)  # fmt: skip

PHRASEBOOKS: dict[str, Phrasebook] = {"en": ENGLISH}
"""By ISO 639-1 code. In a language without a phrasebook all words count as plain words."""

_ASIDE = re.compile(r"\[[^\]]*\]?|\([^)]*\)?|\*[^*]*\*?|<[^>]*>?|[♪♫]+")
"""What recognisers write for sounds that are not words: [laughter], (coughs), *sighs*."""

_APOSTROPHES = str.maketrans({"’": "'", "‘": "'", "ʼ": "'", "`": "'"})


def phrasebook(language: str) -> Phrasebook:
    """Return the phrasebook of a language; `en-GB` is `en`."""
    return PHRASEBOOKS.get(language.lower().replace("_", "-").split("-")[0], Phrasebook())


@lru_cache(maxsize=1024)  # called with the same words for every frame of sound
def spell(text: str) -> tuple[str, ...]:
    """Return the words of a transcript in one spelling: lower case, no punctuation, no sounds in brackets."""
    plain = _ASIDE.sub(" ", text).translate(_APOSTROPHES).casefold()
    return tuple(re.findall(r"[^\W_]+(?:'[^\W_]+)*", plain))


def stops(text: str, policy: BargePolicy) -> bool:
    """Return whether a stop phrase is among the words."""
    book = phrasebook(policy.language)
    phrases = book.stop if policy.stop_phrases is None else policy.stop_phrases
    said = f" {' '.join(spell(text))} "
    return any(f" {' '.join(spell(phrase))} " in said for phrase in phrases if spell(phrase))


def leaves_floor(text: str, language: str = "en") -> bool:
    """Return whether the words, if any, are backchannels, laughter and sighs only."""
    return _leaves_floor(spell(text), language)


@lru_cache(maxsize=1024)
def _leaves_floor(words: tuple[str, ...], language: str) -> bool:
    book = phrasebook(language)
    longest = max((phrase.count(" ") + 1 for phrase in book.backchannels), default=1)
    reached = {0}  # word numbers at which a run of whole phrases from the beginning can end
    for start in range(len(words)):
        if start not in reached:
            continue
        if book.murmur and book.murmur.fullmatch(words[start]):
            reached.add(start + 1)
        for end in range(start + 1, min(len(words), start + longest) + 1):
            if " ".join(words[start:end]) in book.backchannels:
                reached.add(end)
    return len(words) in reached


# ---- barge-in


def judge(text: str, confirmed: bool, speech_s: float, silence_s: float, dropped: bool, policy: BargePolicy) -> Verdict:
    """Return what happens to a reply on hold, from all that is known of the voice that holds it.

    `text` is the voice's transcript, `confirmed` and `dropped` the ear's verdict, `speech_s` how long it has spoken,
    `silence_s` how long it has been silent since.

    A recogniser writes words even for a hum: for three synthetic voices that said "mhm", "hmm", "mm-hmm", "uh-huh" and
    "aha" in 0.38 to 0.62 s, Moonshine wrote "Her.", "Tell me.", "I dunno.", "Ma'am." and the like, never what was said.
    So brief speech takes the floor only with certain words: "no", "what", a number.
    """
    if stops(text, policy) or (confirmed and policy.at_once):
        return Verdict.COMMIT
    if dropped:
        return Verdict.RELEASE
    words, harmless = spell(text), leaves_floor(text, policy.language)
    if confirmed and not harmless and (speech_s >= policy.brief_s or _claims(words, policy.language)):
        return Verdict.COMMIT
    if confirmed and not words and speech_s >= policy.lasting_s:
        return Verdict.COMMIT
    if words and harmless:
        patience = policy.backchannel_release_s
    else:
        patience = policy.wordless_release_s if confirmed and not words else policy.release_s
    return Verdict.RELEASE if silence_s >= patience else Verdict.WAIT


def _claims(words: tuple[str, ...], language: str) -> bool:
    claims = phrasebook(language).claims
    return not claims or any(word in claims or word.isdigit() for word in words)


# ---- end of turn


class SentenceEnding(Enum):
    """How the words so far end."""

    OPEN = "open"  # in the middle of a sentence or a thought
    NUMBER = "number"  # with digits, as in a telephone number: more may follow
    PLAIN = "plain"
    QUESTION = "question"


# Seconds of silence that end a turn: after a certainly complete sentence, and after a certainly incomplete one. Between
# people, a gap between turns lasts 0.2 s, and few pauses inside a turn last more than 1 s.
_WAITS_S: dict[Eagerness, tuple[float, float]] = {
    "high": (0.25, 1.2),
    "medium": (0.4, 1.8),
    "low": (0.8, 2.5),
    "auto": (0.25, 2.2),  # trusts the model's estimate most
}

_UNKNOWN = 0.6
"""The probability of an end if no probe has answered: most audible pauses end a turn."""


@lru_cache(maxsize=256)  # called again and again while a turn is silent
def ending(words: str, language: str = "en") -> SentenceEnding:
    """Return how a transcript ends."""
    book, spelt, last = phrasebook(language), spell(words), _ASIDE.sub("", words).rstrip(" \"'”’")
    if not spelt:
        return SentenceEnding.PLAIN
    if last.endswith(("?", "？")):
        return SentenceEnding.QUESTION
    if last.endswith((",", "-", "–", "—", "...", "…", ":", ";", "、")):
        return SentenceEnding.OPEN
    tails = {" ".join(spelt[-count:]) for count in (1, 2, 3)}
    if tails & book.open and not tails & book.closed:
        return SentenceEnding.OPEN
    return SentenceEnding.NUMBER if spelt[-1].isdigit() else SentenceEnding.PLAIN


def end_wait_s(p_end: float | None, policy: TurnPolicy, words: str, turn_s: float = 0.0) -> float:
    """Return how long a silence must last to end the turn: for ever outside auto mode, 0 after `max_turn_s`.

    `p_end` is the probability that the sentence is complete, None if unknown; `turn_s` is the length of the turn.
    """
    if turn_s >= policy.max_turn_s:
        return 0.0
    if policy.mode != "auto":
        return inf
    shortest, longest = _WAITS_S[policy.eagerness]
    wait = longest + (shortest - longest) * _completeness(p_end, ending(words, policy.language))
    return min(policy.max_wait_s, max(policy.min_wait_s, wait))


def eager_wait_s(p_end: float | None, policy: TurnPolicy, words: str, turn_s: float = 0.0) -> float:
    """Return how long a silence must last for a reply to be prepared, not spoken; never longer than `end_wait_s`.

    A reply to half a sentence is wasted work: none is prepared for a sentence that is probably incomplete.
    """
    wait = end_wait_s(p_end, policy, words, turn_s)
    if (
        policy.mode != "auto"
        or policy.eagerness == "low"
        or _completeness(p_end, ending(words, policy.language)) < _WORTH_IT
    ):
        return wait
    return min(wait, _EAGER_S)


_WORTH_IT = 0.5
_EAGER_S = 0.15
"""Longer than the closure of a consonant, shorter than every wait."""


def _completeness(p_end: float | None, how: SentenceEnding) -> float:
    """Return how certain it is that the sentence is complete, from the model and the words together."""
    believed = _UNKNOWN if p_end is None else min(1.0, max(0.0, p_end))
    at_least, share = _BELIEF[how]
    return at_least + share * believed


_BELIEF = {
    SentenceEnding.OPEN: (0.0, 0.25),
    SentenceEnding.NUMBER: (0.0, 0.5),
    SentenceEnding.PLAIN: (0.0, 1.0),
    SentenceEnding.QUESTION: (0.5, 0.5),
}
"""The certainty from the words alone, and the most that the model can add."""
