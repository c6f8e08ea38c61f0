"""Whose turn it is: how long a silence ends a turn, and whether a voice that cuts in takes the floor.

Pure decisions on words and seconds. It hears nothing and keeps no state: ear.py says when there is a voice, the engine
which words it said and how complete they sound, and the session acts.
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

    mode: Mode = "auto"  # manual: begun and ended by the client; buffer: all sound is a turn that the client ends
    eagerness: Eagerness = "auto"
    min_wait_s: float = 0.25  # no silence below this ends a turn,
    max_wait_s: float = 2.5  # and every one above it does
    max_turn_s: float = 120.0  # a turn is over then, whoever still speaks
    pre_roll_s: float = 0.3  # sound before the onset that is heard with it: the gate opens after a soft consonant
    threshold: float = 0.5  # how probably it must be speech
    idle_s: float | None = None  # nobody has spoken for this long after a reply: the assistant speaks again
    language: str = "en"


@dataclass(frozen=True, slots=True)
class BargePolicy:
    """When a voice that cuts into a reply takes the floor."""

    stop_phrases: tuple[str, ...] | None = None  # take it at once; None: those of the language
    brief_s: float = 0.6  # speech shorter than this takes it only with words that are known to
    lasting_s: float = 1.1  # speech this long takes it, words or none
    release_s: float = 0.5  # silence after which the reply goes on;
    backchannel_release_s: float = 0.3  # after words that only say "go on";
    wordless_release_s: float = 0.7  # and after speech whose words may yet come
    at_once: bool = False  # every voice that is speech takes it
    language: str = "en"


class Verdict(Enum):
    """What becomes of a reply that is held."""

    COMMIT = "commit"  # it is over: the person has the floor
    RELEASE = "release"  # it goes on where it stopped
    WAIT = "wait"  # it is too early to tell


# ---- what words mean, per language


@dataclass(frozen=True, slots=True)
class Phrasebook:
    """What a language's words say about turns. All in the spelling of `spell`."""

    stop: tuple[str, ...] = ()
    backchannels: frozenset[str] = frozenset()  # phrases that leave the floor to the other
    murmur: re.Pattern[str] | None = None  # words of no fixed spelling that do so, too
    claims: frozenset[str] = frozenset()  # words that take it, be they the only one
    open: frozenset[str] = frozenset()  # last words of one who thinks, or of half a sentence,
    closed: frozenset[str] = frozenset()  # except in these


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
"""By ISO 639-1. Of a language that is not here nothing is known: its words all count as words."""

_ASIDE = re.compile(r"\[[^\]]*\]?|\([^)]*\)?|\*[^*]*\*?|<[^>]*>?|[♪♫]+")
"""What recognisers write for sounds that are no words: [laughter], (coughs), *sighs*."""

_APOSTROPHES = str.maketrans({"’": "'", "‘": "'", "ʼ": "'", "`": "'"})


def phrasebook(language: str) -> Phrasebook:
    """Return what is known of a language; `en-GB` is `en`."""
    return PHRASEBOOKS.get(language.lower().replace("_", "-").split("-")[0], Phrasebook())


@lru_cache(maxsize=1024)  # the same words are asked about with every frame of sound
def spell(text: str) -> tuple[str, ...]:
    """Return the words of a transcript in one plain spelling: small letters, no marks, no asides, no hyphens."""
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
    reached = {0}  # where a run of whole phrases from the beginning can end
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
    """Return what becomes of a reply that a voice holds up, from all that is known of that voice so far.

    `text` is its transcript, `confirmed` and `dropped` the ear's word on it, `speech_s` how long it has spoken,
    `silence_s` how long it has been silent since.

    A recogniser writes words for a hum, too: of three synthetic voices that said "mhm", "hmm", "mm-hmm", "uh-huh" and
    "aha" in 0.38 to 0.62 s, Moonshine made "Her.", "Tell me.", "I dunno.", "Ma'am." and the like, never what was said.
    So brief speech needs a word that is known to be meant: "no", "what", a number.
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

    OPEN = "open"  # in the middle of a sentence, or of a thought
    NUMBER = "number"  # with digits, as of a telephone number: more may follow
    PLAIN = "plain"
    QUESTION = "question"


# The silence that ends a turn: of a sentence that is surely complete, and of one that surely is not. Between people, a
# gap between turns lasts 0.2 s, and few pauses inside a turn more than 1 s.
_WAITS_S: dict[Eagerness, tuple[float, float]] = {
    "high": (0.25, 1.2),
    "medium": (0.4, 1.8),
    "low": (0.8, 2.5),
    "auto": (0.25, 2.2),  # believes the model most
}

_UNKNOWN = 0.6
"""Taken for the probability of an end if nobody says: of the pauses that are heard at all, most end a turn."""


@lru_cache(maxsize=256)  # asked again and again while a turn is silent
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
    """Return how long a silence must last to end the turn: infinitely in manual mode, 0 after `max_turn_s` in any.

    `p_end` is how probable it is that the sentence is complete, if anyone knows; `turn_s` how long the turn has been.
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

    A reply to half a sentence is work for nothing: those that are probably not complete get none before their end.
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
    """Return how far to believe that the sentence is complete, the model and the words together."""
    believed = _UNKNOWN if p_end is None else min(1.0, max(0.0, p_end))
    at_least, share = _BELIEF[how]
    return at_least + share * believed


_BELIEF = {
    SentenceEnding.OPEN: (0.0, 0.25),
    SentenceEnding.NUMBER: (0.0, 0.5),
    SentenceEnding.PLAIN: (0.0, 1.0),
    SentenceEnding.QUESTION: (0.5, 0.5),
}
"""What the words alone say, and how much the model may add."""
