"""Readers for telephone numbers: digit by digit, in groups, with a short pause between two groups.

Written groups are kept; a long group is cut into threes and fours. Short numbers, like 911 and 112, are read as digits
where a call is meant: after "call" or "dial", beside words like "emergency", or as a sentence of their own. Before a
plural they count: "911 people".
"""

from __future__ import annotations

import re

from voxlane.engine.text.normalise.context import NUMBER_END, counts_something, precedes, stands_alone
from voxlane.engine.text.normalise.numbers import Reader, Reading, cut_digits, in_groups, run_of_digits

_SPACE = r"[ \u00a0\u202f]"
_GAP = r"(?:[ \u00a0\u202f.‑–-]|\s?/\s?)"
_ABROAD = re.compile(
    rf"\+(?P<first>[0-9]{{1,15}}+)(?:{_GAP}?\([0-9]{{1,5}}\))?(?:{_GAP}?[0-9]{{1,9}}+){{0,7}}{NUMBER_END}"
)
_TRUNK = re.compile(rf"\(?(?P<first>0[0-9]{{1,6}}+)\)?(?:{_GAP}{_SPACE}?[0-9]{{2,9}}+){{1,6}}{NUMBER_END}")
_TRUNK_RUN = re.compile(rf"0[0-9]{{8,14}}+{NUMBER_END}")
_AMERICAN = re.compile(
    rf"(?:\+?1[ .‑-])?(?:\([1-9][0-9]{{2}}\){_SPACE}?|[1-9][0-9]{{2}}[ .‑-])[0-9]{{3}}[ .‑-][0-9]{{4}}{NUMBER_END}"
)
_LOCAL = re.compile(rf"(?P<a>[0-9]{{3}})[‑-](?P<b>[0-9]{{4}}){NUMBER_END}")
_VANITY = re.compile(r"1-(?P<free>8[0-9]{2})-(?P<word>[A-Z]{3,9})(?![A-Za-z0-9])")
_OTHER = re.compile(rf"[0-9]{{3}}-[0-9]{{2}}-[0-9]{{4}}{NUMBER_END}|[0-9]{{4}}(?:[ -][0-9]{{4}}){{3}}{NUMBER_END}")
_RUN = re.compile(rf"[0-9]{{3,15}}+{NUMBER_END}")

_LEAST, _MOST = 7, 16  # digits of a telephone number, with a trunk zero

_CALLING = re.compile(
    r"\b(?:call|calls|calling|called|dial|dials|dialing|dialling|dialed|dialled|phone|phoning|ring|ringing|text|texting"
    r"|telephone|tel|hotline|helpline|fax|mobile|cell|whatsapp)"
    r"(?:\s(?:us|me|him|her|them|it|the|a|police|ambulance|doctor|number|line|free|toll-free|now|either|at|on|to|is|was"
    r"|emergency|services|support|service|here|today|immediately|directly)\b){0,4}[:.]?\s\Z",
    re.IGNORECASE,
)
EMERGENCY = frozenset(
    {
        "000", "101", "105", "110", "111", "112", "113", "115", "116", "117", "118", "119", "144", "211", "311", "411",
        "511", "611", "711", "811", "911", "988", "999",
    }
)  # fmt: skip
"""Numbers of emergency, police, crisis and city services that people know by their digits."""

_KNOWN = frozenset({"911", "112", "999", "988"})
_HELP_BEFORE = re.compile(
    r"\b(?:emergenc(?:y|ies)|ambulance|police|danger|hotline|helpline|lifeline|dispatch)\b", re.IGNORECASE
)
_HELP_AFTER = re.compile(
    r"(?:\s|-)(?:call|calls|caller|callers|operator|operators|dispatch|dispatcher|dispatchers|emergency|hotline|helpline"
    r"|lifeline|line|service|center|centre)\b",
    re.IGNORECASE,
)
_ANOTHER = re.compile(r"\b(?P<number>[0-9]{3})(?:,?\s(?:or|and)\s|,\s|\s?/\s?)\Z")
_PORSCHE = re.compile(r"\bPorsche\s\Z")
_ON = re.compile(r"\b(?:on|via|dialled|dialed)\s\Z", re.IGNORECASE)

_TWO_DIGIT_CODES = frozenset(
    {
        "20", "27", "30", "31", "32", "33", "34", "36", "39", "40", "41", "43", "44", "45", "46", "47", "48", "49",
        "51", "52", "53", "54", "55", "56", "57", "58", "60", "61", "62", "63", "64", "65", "66", "81", "82", "84",
        "86", "90", "91", "92", "93", "94", "95", "98",
    }
)  # fmt: skip
"""Country codes of two digits; 1 and 7 have one, all others three."""


def _said(text: str, spoken: list[str]) -> list[str]:
    return ["plus", *spoken] if text[0] == "+" else spoken


def _groups(text: str) -> list[str]:
    return [part for group in re.findall(r"[0-9]+", text) for part in cut_digits(group)]


def _country_and_rest(run: str) -> list[str]:
    """Return a number that was written without gaps after its "+" as country code and groups."""
    size = 1 if run[0] in "17" else 2 if run[:2] in _TWO_DIGIT_CODES else 3
    return [run[:size], *cut_digits(run[size:])]


def read_telephone(text: str, at: int) -> Reading | None:
    """Read a number that is written as a telephone number, a card number or a social security number."""
    if text[at] == "+":
        return _read_abroad(text, at)
    if found := _VANITY.match(text, at):
        *called, last = in_groups(["1", found["free"]])
        return Reading(found.end(), [*called, f"{last},", found["word"].lower()])
    if found := _AMERICAN.match(text, at) or _OTHER.match(text, at):
        return Reading(found.end(), in_groups(re.findall(r"[0-9]+", found[0])))
    if (found := _LOCAL.match(text, at)) and not (found["a"].endswith("0") and found["b"].endswith("00")):
        return Reading(found.end(), in_groups([found["a"], found["b"]]))
    return _read_trunk(text, at)


def _read_abroad(text: str, at: int) -> Reading | None:
    found = _ABROAD.match(text, at)
    if not found:
        return None
    count = sum(char.isdigit() for char in found[0])
    alone = found[0][1:].isdigit()
    if not (_LEAST + alone <= count <= _MOST) or (not alone and len(found["first"]) > 6):
        return None
    groups = _country_and_rest(found["first"]) if alone else _groups(found[0])
    return Reading(found.end(), _said(found[0], in_groups(groups)))


def _read_trunk(text: str, at: int) -> Reading | None:
    """Read a number with a trunk zero: 030 1234567, 0171/1234567, 01 23 45 67 89."""
    if found := _TRUNK_RUN.match(text, at):
        return Reading(found.end(), in_groups([found[0][:4], *cut_digits(found[0][4:])]))
    found = _TRUNK.match(text, at)
    if not found:
        return None
    groups = re.findall(r"[0-9]+", found[0])
    if len(groups[0]) == 2 and not (len(groups) == 5 and all(len(group) == 2 for group in groups)):
        return None  # "01.02.2026" is a date
    if not _LEAST <= sum(map(len, groups)) <= _MOST or found[0].count("(") != found[0].count(")"):
        return None
    return Reading(found.end(), in_groups(_groups(found[0])))


def read_short_number(text: str, at: int) -> Reading | None:
    """Read the digits of a short number to call, such as 911."""
    if not (found := _RUN.match(text, at)):
        return None
    run, end = found[0], found.end()
    if run == "911" and precedes(_PORSCHE, text, at):
        return Reading(end, ["nine", "eleven"])
    if counts_something(text, end) and not (run in EMERGENCY and _HELP_AFTER.match(text, end)):
        return None
    if precedes(_CALLING, text, at) or (run in EMERGENCY and _for_help(text, run, at, end)):
        return Reading(end, run_of_digits(run))
    return None


def _for_help(text: str, run: str, at: int, end: int) -> bool:
    """Return whether an emergency number stands for the service here."""
    another = precedes(_ANOTHER, text, at)
    if (another and another["number"] in EMERGENCY) or _HELP_AFTER.match(text, end):
        return True
    if run in _KNOWN and (stands_alone(text, at, end) or precedes(_ON, text, at)):
        return True
    return precedes(_HELP_BEFORE, text, at) is not None


TELEPHONE_READERS: tuple[Reader, ...] = (read_telephone, read_short_number)
"""The readers for a digit, a "+" or a "("."""
