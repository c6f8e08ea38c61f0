"""Readers for expressions that start with a letter: abbreviations, Roman numerals, acronyms, words.

A reader looks at one position in plain text and returns the end of its expression and the words for it, or None.
Capitals left in a reading are for the voice's lexicon: it says the words it knows ("NASA") and spells the rest ("API").
"""

from __future__ import annotations

import re

from voxlane.engine.text.normalise.addresses import ADDRESS_READERS, read_file
from voxlane.engine.text.normalise.codes import LETTER_CODE_READERS
from voxlane.engine.text.normalise.context import precedes
from voxlane.engine.text.normalise.dates import read_month_day, sentence_stop
from voxlane.engine.text.normalise.money import read_money
from voxlane.engine.text.normalise.numbers import Reader, Reading, cardinal, ordinal
from voxlane.engine.text.normalise.tables import (
    ABBREVIATIONS,
    BARE_ABBREVIATIONS,
    BARE_STREETS,
    BARE_TITLES,
    GREEK,
    MAY_END_SENTENCE,
    MONTH_NUMBERS,
    MONTHS,
    NUMBERED,
    ROMAN_CUES,
    ROMAN_NAMES,
    SENTENCE_WORDS,
    SPELLED_AS_LETTERS,
    SPELLED_AS_WORDS,
    TITLES,
)

_INITIALS = re.compile(r"(?:[A-Za-z]\.){2,8}+(?:[A-Za-z](?![A-Za-z]))?")
_DOTTED = re.compile(r"(?P<stem>[A-Za-z]{1,7}(?:\.[A-Za-z]){0,2})\.(?![A-Za-z0-9])")
_VERSIONED = re.compile(r"[vV](?=[0-9]+(?:\.[0-9]|(?![A-Za-z0-9])))|ver\.?\s(?=[0-9])")
_STREET_NAME = re.compile(r"(?:[A-Z][a-z'’-]{1,20}|[0-9](?:st|nd|rd|th))\s\Z")
_DAY = r"(?:Mon|Tues?|Wed|Thu(?:rs?)?|Fri|Sat|Sun)"
_WEEKDAYS = re.compile(rf"(?P<a>{_DAY})\.?\s?[-–]\s?(?P<b>{_DAY})(?![A-Za-z])")
_RULER = re.compile(
    r"\b(?:King|Queen|Pope|Emperor|Empress|Tsar|Czar|Kaiser|Sultan|Pharaoh|Prince|Saint)\s(?:[A-Z][a-z]+\s){1,2}\Z"
)
_REIGNS = re.compile(r"\s(?:of|reigned|ruled|became|died)\b")
_ROMAN = re.compile(r"(?=[IVXLC])(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})(?![A-Za-z0-9]|['’.-][A-Za-z0-9])")
_ROMAN_VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100}
_LAST_WORD = re.compile(r"([A-Za-z]+)\s\Z")
_WITH = re.compile(r"(?:w/o|w/|b/c)(?![A-Za-z])")
_WITH_READINGS = {"w/o": "without", "w/": "with", "b/c": "because"}
_LETTER = r"[^\W\d_⁰-₟]"  # no superscripts or subscripts; some scripts have numbers that are letters, see _match_word
_WORD = re.compile(rf"{_LETTER}++(?:['’‑-]{_LETTER}++)*+")
_SIMPLE = re.compile(r"(?:[A-Z]?[a-z]{1,30}+(?:'[a-z]{1,3}+)?|I'[a-z]{1,2}+)(?=[ \n,;!?)]|\.?\Z)")
_NOT_SIMPLE = frozenset(
    {*BARE_ABBREVIATIONS, *BARE_TITLES, *BARE_STREETS, *MONTHS}
    | {name.title() for name in (*MONTH_NUMBERS, *ABBREVIATIONS)}  # "Jan 5", "Mon - Fri"
    | {"Sun", "ver"}
)


def _read_initials(text: str, at: int) -> Reading | None:
    found = _INITIALS.match(text, at)
    if not found:
        return None
    stem = found[0].rstrip(".").lower()
    words = ABBREVIATIONS[stem].split() if stem in ABBREVIATIONS else [found[0].replace(".", "").upper()]
    if stem in MAY_END_SENTENCE or text[found.end() : found.end() + 1] != " ":
        # Before a capital, "U.S." is more often part of a name than the end of a sentence.
        words[-1] += sentence_stop(text, found.end())
    return Reading(found.end(), words)


def _read_abbreviation(text: str, at: int) -> Reading | None:
    found = _DOTTED.match(text, at)
    if not found:
        return None
    stem, end = found["stem"].lower(), found.end()
    gap, following = text[end : end + 1], text[end + 1 : end + 2]
    before = _LAST_WORD.search(text, max(0, at - 40), at)
    after_name = before is not None and before[1][0].isupper() and before[1].lower() not in {"the", "on", "in", "at"}
    if stem in NUMBERED and gap == " " and following.isdigit():
        return Reading(end, [NUMBERED[stem]])
    if stem in TITLES and found["stem"][0].isupper() and gap == " " and following.isupper():
        return Reading(end, [ABBREVIATIONS[stem] if stem in {"st", "dr"} and after_name else TITLES[stem]])
    if stem not in ABBREVIATIONS or (stem in SENTENCE_WORDS and not (gap == " " and following.isdigit())):
        return None
    words = ABBREVIATIONS[stem].split()
    if stem in MAY_END_SENTENCE or gap != " ":
        words[-1] += sentence_stop(text, end)
    return Reading(end, words)


def _read_bare_abbreviation(text: str, at: int) -> Reading | None:
    if found := _WITH.match(text, at):
        return Reading(found.end(), [_WITH_READINGS[found[0]]])
    word = _match_word(text, at)
    end = at + len(word)
    gap, following = text[end : end + 1], text[end + 1 : end + 2]
    if word in BARE_TITLES and gap == " " and following.isupper():
        return Reading(end, [TITLES[word.lower()]])
    if word in BARE_ABBREVIATIONS:
        return Reading(end, BARE_ABBREVIATIONS[word].split())
    if word in BARE_STREETS and precedes(_STREET_NAME, text, at):
        return Reading(end, [BARE_STREETS[word]])
    return None


def _read_weekdays(text: str, at: int) -> Reading | None:
    """Read "Mon-Fri": Monday to Friday."""
    if not (found := _WEEKDAYS.match(text, at)):
        return None
    first, last = (ABBREVIATIONS.get(name.lower(), "Sunday") for name in (found["a"], found["b"]))
    return Reading(found.end(), [first, "to", last])


def _read_versioned(text: str, at: int) -> Reading | None:
    found = _VERSIONED.match(text, at)
    return Reading(found.end(), ["version"]) if found else None


def _read_roman(text: str, at: int) -> Reading | None:
    """Read a Roman numeral after a word that expects one; two or more letters also after any capitalised word."""
    found = _ROMAN.match(text, at)
    before = _LAST_WORD.search(text, max(0, at - 40), at)
    if not found or not found[0] or not before:
        return None
    value, cue = _roman_value(found[0]), before[1].lower()
    ruler = precedes(_RULER, text, at) is not None
    if (ruler or cue in ROMAN_NAMES) and before[1][0].isupper() and _is_rank(text, found, ruler=ruler):
        return Reading(found.end(), ["the", *ordinal(value)])
    if (cue in ROMAN_CUES and before[1][0].isupper() and found[0] not in {"C", "L"}) or (
        len(found[0]) > 1 and value < 40 and before[1].istitle() and found[0] not in {"XX", "XXX"}
    ):
        return Reading(found.end(), cardinal(value))
    return None


def _is_rank(text: str, found: re.Match[str], *, ruler: bool) -> bool:
    """Return whether a numeral after a ruler's name is one: "I", "C" and "L" alone may be something else."""
    numeral = found[0]
    return (
        len(numeral) > 1
        or numeral in "VX"
        or (numeral == "I" and (ruler or _REIGNS.match(text, found.end()) is not None))
    )


def _roman_value(numeral: str) -> int:
    values = [_ROMAN_VALUES[letter] for letter in numeral]
    return sum(-a if a < b else a for a, b in zip(values, [*values[1:], 0], strict=True))


def _read_simple(text: str, at: int) -> Reading | None:
    """Read the common case first: a word that no other reader handles. These are nine words in ten."""
    found = _SIMPLE.match(text, at)
    if not found or found[0] in _NOT_SIMPLE:
        return None
    if found.end() < len(text) and text[found.end()] == "." and found[0].lower() in ABBREVIATIONS:
        return None
    return Reading(found.end(), [found[0]])


def _read_word(text: str, at: int) -> Reading | None:
    found = _match_word(text, at)
    if not found:
        return Reading(at + 1, [])  # a letter written as an index: "xₐ", "xⁿ"
    word, end = found.replace("’", "'"), at + len(found)
    if word in GREEK:
        return Reading(end, [GREEK[word]])
    if not any(char < "\u0250" or "\u1e00" <= char < "\u1f00" for char in word):
        return Reading(end, [])  # the voices read Latin letters only
    return Reading(end, ["-".join(_acronym(part) for part in re.split("[‑-]", word))])


def _match_word(text: str, at: int) -> str:
    """Return the word at a position, "" if there is none. It ends before a number, like that of "a²"."""
    found = _WORD.match(text, at)
    if found is None or found[0].isascii():
        return found[0] if found else ""
    figure = next((place for place, char in enumerate(found[0]) if char.isnumeric() and not char.isalpha()), None)
    return found[0] if figure is None else found[0][:figure].rstrip("'’‑-")


def _acronym(word: str) -> str:
    """Return a word in capitals as the voice needs it; other words unchanged."""
    if word in SPELLED_AS_WORDS:
        return SPELLED_AS_WORDS[word]
    shouted = len(word) >= 5 and word.isupper() and any(char in "AEIOUY" for char in word)
    return word.lower() if shouted and word not in SPELLED_AS_LETTERS else word


NAME_READERS: tuple[Reader, ...] = (
    _read_simple, read_money, *ADDRESS_READERS, *LETTER_CODE_READERS, read_month_day, _read_versioned, _read_initials,
    _read_abbreviation, read_file, _read_bare_abbreviation, _read_weekdays, _read_roman, _read_word,
)  # fmt: skip
"""The readers for a letter, in the order to try them. The last one reads any word."""
