"""Number words in American English: integers, ordinals, years and digit strings.

It does not see the text around a number. The caller decides what the number is: a year, a price, a house number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple


class Reading(NamedTuple):
    """The end of an expression in the plain text, and its words."""

    end: int
    words: list[str]
    spelled: bool = False  # its single letters are names of letters: "A" is not the article
    phonemes: str = ""  # of its only word, if a person gave them


Reader = Callable[[str, int], Reading | None]
"""Looks at one position of a text; returns None if its kind of expression is not there."""

NUMBER = (
    r"(?>[0-9]{1,3}(?:\.[0-9]{3}){1,9}+,[0-9]{1,9}+(?![0-9]|[.,][0-9])"  # 1.150,50
    r"|[0-9]{1,3}(?:\.[0-9]{3}){2,9}+(?![0-9]|[.,][0-9])"  # 1.150.000
    r"|[1-9][0-9]{0,2}(?:['’\u00a0\u202f][0-9]{3}){1,9}+(?![0-9])"  # 1'150
    r"|[1-9][0-9]{0,2}(?: [0-9]{3}){0,7}? 000(?![0-9]| [0-9]|[.,][0-9])"  # 1 150 000
    r"|(?:[0-9]{1,3}(?:,[0-9]{3}){1,9}+(?![0-9])|[0-9]++)(?:\.[0-9]++)?+)"
)
"""An unsigned number for `decimal`. Atomic: after a failure the pattern does not try shorter numbers."""

_GAPS = re.compile("['’ \u00a0\u202f]")
_EUROPEAN = re.compile(r"[0-9]{1,3}(?:\.[0-9]{3})+,[0-9]+|[0-9]{1,3}(?:\.[0-9]{3}){2,}|[0-9]+,[0-9]{1,2}")

_ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_SCALES = ("", "thousand", "million", "billion", "trillion")
_IRREGULAR = {
    "one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth",
    "twelve": "twelfth",
}  # fmt: skip

MAX_CARDINAL_DIGITS = 15
"""Longer digit strings are taken as identifiers and read digit by digit."""


def cardinal(number: int) -> list[str]:
    """Return the words of a whole number below 10^15, "minus" first where it is negative."""
    if number < 0:
        return ["minus", *cardinal(-number)]
    if number < 1000:
        return _below_thousand(number)
    words: list[str] = []
    for scale in range(len(_SCALES) - 1, -1, -1):
        group = number // 1000**scale % 1000
        if group:
            words += [*_below_thousand(group), *([_SCALES[scale]] if scale else [])]
    return words


def _below_thousand(number: int) -> list[str]:
    hundreds, rest = divmod(number, 100)
    words = [_ONES[hundreds], "hundred"] if hundreds else []
    if rest >= 20:
        tens, ones = divmod(rest, 10)
        words.append(_TENS[tens] + (f"-{_ONES[ones]}" if ones else ""))
    elif rest or not hundreds:
        words.append(_ONES[rest])
    return words


def ordinal(number: int) -> list[str]:
    """Return the words of a rank: 21 is "twenty-first"."""
    *head, last = cardinal(number)
    stem, hyphen, unit = last.rpartition("-")
    if unit in _IRREGULAR:
        unit = _IRREGULAR[unit]
    else:
        unit = f"{unit[:-1]}ieth" if unit.endswith("y") else f"{unit}th"
    return [*head, stem + hyphen + unit]


def year(number: int) -> list[str]:
    """Return a year as people say it: 1905 "nineteen oh five", 2005 "two thousand five", 2026 "twenty twenty-six"."""
    century, rest = divmod(number, 100)
    if number < 1000 or number > 9999 or (century % 10 == 0 and rest < 10):
        return cardinal(number)
    if rest == 0:
        return [*cardinal(century), "hundred"]
    return [*cardinal(century), *(["oh"] if rest < 10 else []), *cardinal(rest)]


def digits(text: str) -> list[str]:
    """Return each decimal digit of the text as a word; other characters are skipped."""
    return [_ONES[ord(char) - 48] for char in text if "0" <= char <= "9"]


def canonical(text: str) -> str:
    """Return a number that NUMBER matches with a decimal point and without marks between its thousands.

    A point and a comma in European order are exchanged; so is a comma before one or two last digits.
    """
    text = _GAPS.sub("", text)
    if _EUROPEAN.fullmatch(text):
        return text.replace(".", "").replace(",", ".")
    return text.replace(",", "")


def decimal(text: str) -> list[str]:
    """Return the words of an unsigned number as written: "1,234.50" keeps its last zero, "007" its first ones."""
    whole, _, fraction = canonical(text).partition(".")
    if len(whole) > MAX_CARDINAL_DIGITS or (len(whole) > 1 and whole[0] == "0"):
        words = digits(whole)
    else:
        words = cardinal(int(whole or "0"))
    return [*words, "point", *digits(fraction)] if fraction else words


def in_groups(groups: Iterable[str]) -> list[str]:
    """Return the digits of each group, with a comma, which is a short pause, between two groups."""
    words: list[str] = []
    for group in groups:
        if words:
            words[-1] += ","
        words += digits(group)
    return words


def cut_digits(run: str) -> list[str]:
    """Return a run of digits in groups of three or four, as people say it; five and fewer stay together."""
    if len(run) <= 5:
        return [run]
    size = 4 if len(run) in (8, 16) else 3
    groups = [run[start : start + size] for start in range(0, len(run), size)]
    if len(groups[-1]) == 1:
        last = groups.pop()
        groups[-1] += last
    return groups


def run_of_digits(run: str) -> list[str]:
    """Return a run of digits one by one, in the groups that people say it in."""
    return in_groups(cut_digits(run))


def in_pairs(run: str) -> list[str]:
    """Return the number of a house or a room: 221 "two twenty-one", 204 "two oh four", 1408 "fourteen oh eight"."""
    if run[0] == "0" or len(run) > 4:
        return run_of_digits(run)
    head, rest = divmod(int(run), 100)
    if not head or (rest == 0 and head % 10 == 0):
        return cardinal(int(run))
    tail = ["hundred"] if rest == 0 else [*(["oh"] if rest < 10 else []), *cardinal(rest)]
    return [*cardinal(head), *tail]


def pluralise(word: str) -> str:
    """Return the plural of a number word: "nineties", "thirds", "sixes"."""
    if word.endswith("y"):
        return f"{word[:-1]}ies"
    return f"{word}es" if word.endswith("x") else f"{word}s"
