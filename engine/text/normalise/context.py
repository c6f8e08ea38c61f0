"""What stands beside an expression: whether a number counts something, stands alone, or has a street after it."""

from __future__ import annotations

import re

from voxlane.engine.text.normalise.tables import COUNTED, NOT_PLURALS, STREETS

LOOK_BACK = 60
"""Characters before an expression that can tell what it is. A constant: the cost of a text stays linear."""

NUMBER_END = r"(?![A-Za-z0-9]|[-.,:/][0-9])"
"""The end of a number that goes on neither with a letter nor with more digits."""

_NEXT_WORD = re.compile(r"[ \u00a0]([A-Za-z]+)")
_STREET_AFTER = re.compile(
    rf"\s(?:[A-Z][A-Za-z'’.-]{{1,20}}+|[0-9]{{1,3}}(?:st|nd|rd|th))(?:\s[A-Z][A-Za-z'’.-]{{1,20}}+){{0,2}}?"
    rf"\s(?:{'|'.join(STREETS)})\b"
)


def precedes(pattern: re.Pattern[str], text: str, at: int) -> re.Match[str] | None:
    """Return the match of a pattern in the text before a position; most patterns end with it."""
    return pattern.search(text, max(0, at - LOOK_BACK), at)


def next_word(text: str, end: int) -> str:
    """Return the word after one space, "" if there is none."""
    found = _NEXT_WORD.match(text, end)
    return found[1] if found else ""


def counts_something(text: str, end: int) -> bool:
    """Return whether the number that ends at `end` seems to count what follows: "911 people", "1500 steps"."""
    word = next_word(text, end)
    return word in COUNTED or (word.islower() and word.endswith("s") and word not in NOT_PLURALS)


def stands_alone(text: str, at: int, end: int) -> bool:
    """Return whether text[at:end] is a sentence or a paragraph of its own, or comes last after a colon."""
    before, after = text[max(0, at - 3) : at].rstrip(" "), text[end : end + 3].lstrip(" ")
    return (not before or before[-1] in ".!?:\n") and (not after or after[0] in ".!?\n")


def street_follows(text: str, end: int) -> bool:
    """Return whether the name of a street follows: "Baker Street"."""
    return _STREET_AFTER.match(text, end) is not None
