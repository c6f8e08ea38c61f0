"""What words mean for turns, per language: stop phrases, backchannels, words that leave a sentence open. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Phrasebook:
    """What the words of one language mean for turns. All are in the spelling of `spell`."""

    stop: tuple[str, ...] = ()
    backchannels: frozenset[str] = frozenset()  # phrases that leave the floor to the assistant
    murmur: re.Pattern[str] | None = None  # backchannels without a fixed spelling
    hum: re.Pattern[str] | None = None  # what recognisers write for a cough or a hum: no answer, unless to a question
    claims: frozenset[str] = frozenset()  # words that take the floor even alone
    open: frozenset[str] = frozenset()  # last words of an unfinished sentence, and words that mark thinking
    closed: frozenset[str] = frozenset()  # endings that are complete although their last word is in `open`
    leading: frozenset[str] = frozenset()  # beginnings of a clause that needs another one after it


def _phrases(text: str) -> frozenset[str]:
    return frozenset(phrase.strip() for phrase in text.split(","))


ENGLISH = Phrasebook(
    stop=(
        "stop", "wait", "hold on", "hang on", "shut up", "be quiet", "pause", "cancel", "never mind", "that's enough",
        "one moment", "one second", "just a moment", "just a second", "just a minute", "excuse me",
    ),
    backchannels=_phrases(
        "yes, right, ok, o k, okay, sure, true, exactly, indeed, absolutely, definitely, totally, certainly, correct,"
        "agreed, i see, i know, i understand, understood, i got it, got it, gotcha, of course, for sure, all right,"
        "alright, that's right, that's true, that is right, that is true, makes sense, that makes sense, fair enough,"
        "good, great, nice, cool, wow, whoa, fine, perfect, wonderful, excellent, amazing, awesome, lovely,"
        "good to know, go on, go ahead, keep going, please go on, really, no way, is that so, interesting,"
        "that's interesting, that's good, that's great, that's nice, sounds good, very good, very nice,"
        "oh dear, oh no, oh my, oh my god, my god, my goodness, oh boy, oh man, damn, jeez, well, so, and, lol,"
        "you"  # what recognisers write for a cough
    ),
    # mhm, mm-hmm, hm, uh-huh, uh, um, er, ah, aha, oh, ooh, huh, eh, yeah, yep, yup, ya, ha ha, he he, pff, phew, tsk
    murmur=re.compile(
        r"m+|(m+h+)+m*|(h+m+)+|m+hu+m+|u+h+m*|u+m+|h+u+h+|h+u+m+|u+hu+[hm]+|e+r+m*|e+h+|a+h*|a+ha+h*|o+h+|o{2,}h*"
        r"|ye+a+h*|ye+p+|yu+p+|ya+h*|b?w?a?(ha)+h*|a?(he)+h*|(hee)+|p+f+t*|phe+w+|tsk|ts+|s+h+|u+gh+|a+rgh+|a+w+"
    ),
    hum=re.compile(r"m+|(m+h+)+m*|(h+m+)+|m+hu+m+|u+h+m*|u+m+|h+u+h+|h+u+m+|u+hu+[hm]+|e+r+m*|a+h+|o+h+|p+f+t*|you"),
    claims=_phrases(
        "no, nope, nah, not, don't, but, what, why, who, when, where, how, which, sorry, pardon, hello, hey, help,"
        "listen, look, next, skip, back, again, repeat, continue, louder, slower, faster, quiet, thanks, thank, bye,"
        "goodbye, please, actually, question, wrong, zero, one, two, three, four, five, six, seven, eight, nine, ten,"
        "twelve, twenty, hundred, today, tomorrow, tonight, monday, tuesday, wednesday, thursday, friday, saturday,"
        "sunday,"
        # What recognisers write for "no", "hey", "wait", "why", "what" and "stop" if nothing is said before or after.
        "now, know, knows, nose, hay, hays, hayes, weight, white, watt, stopped, stops"
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
    leading=_phrases(
        "if, once, although, unless, whenever, even if, even though, as soon as, as long as, before we, before i,"
        "after we, after i, when i, when we, when the, when my, because of, it's not that,"
        "it isn't that, it is not that, not only"
    ),
)  # fmt: skip

PHRASEBOOKS: dict[str, Phrasebook] = {"en": ENGLISH}
"""By ISO 639-1 code. In a language without a phrasebook all words count as plain words."""

ASIDE = re.compile(r"\[[^\]]*\]?|\([^)]*\)?|\*[^*]*\*?|<[^>]*>?|[♪♫]+")
"""What recognisers write for sounds that are not words: [laughter], (coughs), *sighs*."""

_APOSTROPHES = str.maketrans({"’": "'", "‘": "'", "ʼ": "'", "`": "'"})


def phrasebook(language: str) -> Phrasebook:
    """Return the phrasebook of a language; `en-GB` is `en`."""
    return PHRASEBOOKS.get(language.lower().replace("_", "-").split("-")[0], Phrasebook())


@lru_cache(maxsize=1024)  # called with the same words for every frame of sound
def spell(text: str) -> tuple[str, ...]:
    """Return the words of a transcript in one spelling: lower case, no punctuation, no sounds in brackets."""
    plain = ASIDE.sub(" ", text).translate(_APOSTROPHES).casefold()
    return tuple(re.findall(r"[^\W_]+(?:'[^\W_]+)*", plain))


def leaves_floor(text: str, language: str = "en") -> bool:
    """Return whether the words, if any, are backchannels, laughter and sighs only."""
    return _leaves_floor(spell(text), language)


def only_hums(text: str, language: str = "en") -> bool:
    """Return whether the words are what recognisers write for coughs and hums, and no question such as "Huh?"."""
    hum, words = phrasebook(language).hum, spell(text)
    return bool(hum and words and "?" not in text and all(hum.fullmatch(word) for word in words))


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
