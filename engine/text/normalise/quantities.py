"""Readers for quantities: numbers, measures, ranges, fractions, ratios, versions.

A reader looks at one position in plain text and returns the end of its expression and the words for it, or None. All
patterns are possessive or bounded, so the cost of a failure is linear in the digits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from voxlane.engine.text.normalise.context import counts_something, precedes
from voxlane.engine.text.normalise.money import MONEY_READERS, SCALE, per, scaled
from voxlane.engine.text.normalise.numbers import (
    NUMBER,
    Reader,
    Reading,
    canonical,
    cardinal,
    decimal,
    digits,
    ordinal,
    pluralise,
    year,
)
from voxlane.engine.text.normalise.tables import SYMBOLS, UNITS, VERSIONED


def _any_of(words: Iterable[str]) -> str:
    return "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))


_FEET = re.compile(r"(?P<feet>[0-9]{1,2})['′’]\s?(?P<inches>[0-9]{1,2})(?:[\"″”]|''|′′)")
_PRIME = re.compile(rf"(?P<a>{NUMBER})(?P<mark>[′″])")
_VERSION = re.compile(
    r"(?P<numbers>[0-9]{1,9}(?:\.[0-9]{1,9}){2,9})(?![0-9])"
    r"(?::(?P<port>[0-9]{1,5})(?![0-9:])|/(?P<bits>[0-9]{1,2})(?![0-9/])|-?(?P<tag>rc|alpha|beta|dev|a|b)[.-]?(?P<try>[0-9]{1,3})?"
    r"(?![A-Za-z0-9]))?"
)
_TAGS = {"rc": "RC", "a": "alpha", "b": "beta"}
_THOUSANDS = re.compile(r"[1-9][0-9]{0,2}(?:\.[0-9]{3}){2,}")
_TWO_PARTS = re.compile(r"(?P<a>[0-9]{1,3})\.(?P<b>[0-9]{1,3})(?![A-Za-z0-9%]|[.,][0-9])")
_WORD_BEFORE = re.compile(r"\b([A-Za-z]{2,12})\s\Z")
_SCIENTIFIC = re.compile(r"(?P<a>[0-9]{1,15}(?:\.[0-9]{1,15})?)[eE](?P<sign>[-+]?)(?P<b>[0-9]{1,3})(?![A-Za-z0-9])")
_POWER = re.compile(r"(?P<a>[0-9]{1,15})\^(?P<sign>-?)(?P<b>[0-9]{1,4})")
_RANGE = re.compile(rf"(?P<a>{NUMBER})(?P<gap>\s?[-–—]\s?)(?P<b>{NUMBER})(?![-–/][0-9])")
_IN_SERIES = re.compile(r"[0-9][-–/]\Z")
_SLASHED = re.compile(r"(?:(?P<whole>[0-9]{1,4})[ -])?(?P<a>[0-9]{1,3})/(?P<b>[0-9]{1,3})(?![0-9/]|[.,][0-9])")
_VULGAR = re.compile(r"(?P<whole>[0-9]{1,4})\s?(?P<part>[½⅓⅔¼¾⅛])")
_RATIO = re.compile(r"(?P<a>[0-9]{1,4}):(?P<b>[0-9]{1,4})(?![0-9:])")
_ORDINAL = re.compile(r"(?P<a>[0-9]{1,3}(?:,[0-9]{3}){1,4}+|[0-9]{1,12})(?:st|nd|rd|th|ST|ND|RD|TH)(?![A-Za-z0-9])")
_DECADE = re.compile(r"(?P<a>[0-9]{3}0|[0-9]0)(?P<mark>['’]?)s(?![A-Za-z0-9])")
_BEFORE_DECADE = re.compile(r"(?:the |mid-|early |late |his |her |their |my |your |['’])\Z", re.IGNORECASE)
_MEASURE = re.compile(
    rf"(?P<a>(?>[0-9]{{1,4}},[0-9]{{1,2}}(?![0-9,.])|{NUMBER}))(?P<gap>[\s-]?)(?P<unit>{_any_of(UNITS)})(?P<power>[²³])?"
    r"(?:/(?P<per>[A-Za-z]{1,6}))?(?![A-Za-z0-9²³])"
)
_SCALED = re.compile(rf"(?P<a>{NUMBER})(?:{SCALE})")
_TIMES = re.compile(rf"(?P<a>{NUMBER})[x×](?![A-Za-z0-9])")
_BY = re.compile(rf"(?P<a>{NUMBER})(?:x|\sx\s)(?=[0-9])")
_PLAIN = re.compile(NUMBER)


def _read_feet(text: str, at: int) -> Reading | None:
    if found := _FEET.match(text, at):
        feet, inches = int(found["feet"]), int(found["inches"])
        words = [*cardinal(feet), "foot" if feet == 1 else "feet"]
        return Reading(found.end(), [*words, *cardinal(inches), "inch" if inches == 1 else "inches"])
    if found := _PRIME.match(text, at):
        one, more = ("foot", "feet") if found["mark"] == "′" else ("inch", "inches")
        return Reading(found.end(), [*decimal(found["a"]), one if found["a"] == "1" else more])
    return None


def _read_version(text: str, at: int) -> Reading | None:
    """Read three or more numbers with points between them; four that fit a byte each are an internet address."""
    if not (found := _VERSION.match(text, at)):
        return _read_two_part_version(text, at)
    parts = found["numbers"].split(".")
    address = len(parts) == 4 and all(int(part) < 256 for part in parts)
    if not address and _THOUSANDS.fullmatch(found["numbers"]):
        return None
    words: list[str] = []
    for index, part in enumerate(parts):
        words += [*(["dot" if address else "point"] if index else []), *(digits(part) if address else decimal(part))]
    if found["port"]:
        words += ["colon", *digits(found["port"])]
    elif found["bits"]:
        words += ["slash", *cardinal(int(found["bits"]))]
    elif found["tag"]:
        words += [_TAGS.get(found["tag"], found["tag"]), *(decimal(found["try"]) if found["try"] else [])]
    return Reading(found.end(), words)


def _read_two_part_version(text: str, at: int) -> Reading | None:
    """Read "3.12" after the name of a program: three point twelve."""
    found = _TWO_PARTS.match(text, at)
    before = precedes(_WORD_BEFORE, text, at)
    if not found or not before or before[1].lower() not in VERSIONED:
        return None
    return Reading(found.end(), [*decimal(found["a"]), "point", *decimal(found["b"])])


def _read_power(text: str, at: int) -> Reading | None:
    if found := _SCIENTIFIC.match(text, at):
        base = [*decimal(found["a"]), "times", "ten"]
    elif found := _POWER.match(text, at):
        base = decimal(found["a"])
    else:
        return None
    sign = ["minus"] if found["sign"] == "-" else []
    return Reading(found.end(), [*base, "to", "the", *sign, *cardinal(int(found["b"]))])


def _read_range(text: str, at: int) -> Reading | None:
    if not (found := _RANGE.match(text, at)) or _IN_SERIES.search(text, max(0, at - 2), at):
        return None
    rest = read_quantity(text, found.start("b"))
    assert rest is not None  # the caller has seen a number here
    falls = float(canonical(found["a"])) >= float(canonical(found["b"]))
    spaced, equation = found["gap"] != found["gap"].strip(), text[rest.end : rest.end + 3].lstrip()[:1] == "="
    link = "minus" if equation or (spaced and falls) else "to"
    return Reading(rest.end, [*_bare(text, found["a"], found.end()), link, *rest.words])


def _read_fraction(text: str, at: int) -> Reading | None:
    if found := _VULGAR.match(text, at):
        return Reading(found.end(), [*decimal(found["whole"]), "and", *SYMBOLS[found["part"]].split()])
    if not (found := _SLASHED.match(text, at)):
        return None
    a, b = int(found["a"]), int(found["b"])
    whole = [*decimal(found["whole"]), "and"] if found["whole"] else []
    if not whole and (a, b) in ((24, 7), (9, 11), (50, 50)):
        words = [*cardinal(a), *cardinal(b)]
    elif not whole and b in (5, 10, 100) and a <= b:
        words = [*cardinal(a), "out", "of", *cardinal(b)]
    elif a == 0 or b < 2 or b > 99:
        words = [*cardinal(a), "over", *cardinal(b)]
    else:
        words = [*cardinal(a), *_parts(b, plural=a != 1)]
    return Reading(found.end(), whole + words)


def _parts(denominator: int, *, plural: bool) -> list[str]:
    if denominator == 2:
        return ["halves" if plural else "half"]
    words = ["quarter"] if denominator == 4 else ordinal(denominator)
    return [*words[:-1], pluralise(words[-1]) if plural else words[-1]]


def _read_ratio(text: str, at: int) -> Reading | None:
    found = _RATIO.match(text, at)
    return found and Reading(found.end(), [*decimal(found["a"]), "to", *decimal(found["b"])])


def _read_ordinal(text: str, at: int) -> Reading | None:
    found = _ORDINAL.match(text, at)
    return found and Reading(found.end(), ordinal(int(found["a"].replace(",", ""))))


def _read_decade(text: str, at: int) -> Reading | None:
    if not (found := _DECADE.match(text, at)):
        return None
    if len(found["a"]) == 2 and not found["mark"] and not _BEFORE_DECADE.search(text, max(0, at - 8), at):
        return None  # "30s" without a hint is half a minute
    words = year(int(found["a"]))
    return Reading(found.end(), [*words[:-1], pluralise(words[-1])])


def _read_measure(text: str, at: int) -> Reading | None:
    if not (found := _MEASURE.match(text, at)):
        return None
    unit, gap = found["unit"], found["gap"]
    if not gap and unit == "B":
        return None  # "7B" counts billions more often than bytes
    one, more = UNITS[unit]
    name = one if found["a"] == "1" or gap == "-" else more
    power = {"²": ["square"], "³": ["cubic"], None: []}[found["power"]]
    return Reading(found.end(), [*decimal(found["a"]), *power, *name.split(), *per(found["per"])])


def _read_scaled(text: str, at: int) -> Reading | None:
    found = _SCALED.match(text, at)
    if not found or (found["letter"] == "K" and len(found["a"]) == 1):
        return None  # "4K" is a screen and "5K" a race: the letter is said
    return Reading(found.end(), scaled(found, decimal(found["a"])))


def _read_times(text: str, at: int) -> Reading | None:
    if found := _BY.match(text, at):
        return Reading(found.end(), [*decimal(found["a"]), "by"])
    found = _TIMES.match(text, at)
    return found and Reading(found.end(), [*decimal(found["a"]), "times"])


def _read_plain(text: str, at: int) -> Reading | None:
    found = _PLAIN.match(text, at)
    return found and Reading(found.end(), _bare(text, found[0], found.end()))


def _bare(text: str, number: str, end: int) -> list[str]:
    """Read a number without a unit: four digits are a year unless they seem to count something."""
    if len(number) == 4 and number.isdigit() and 1010 <= int(number) <= 2099:
        return cardinal(int(number)) if counts_something(text, end) else year(int(number))
    return decimal(number)


_UNIT_READERS: tuple[Reader, ...] = (
    *MONEY_READERS, _read_power, _read_fraction, _read_decade, _read_measure, _read_times, _read_scaled,
    _read_ordinal, _read_ratio, _read_plain,
)  # fmt: skip
JOINED_READERS: tuple[Reader, ...] = (_read_version, _read_ordinal, _read_plain)
"""The readers for digits right after a letter ("B2B", "MP3"): no unit follows them."""

QUANTITY_READERS: tuple[Reader, ...] = (_read_feet, _read_version, *_UNIT_READERS[:3], _read_range)
"""The readers for a number or a currency sign, in the order to try them; read_quantity comes last."""


def read_quantity(text: str, at: int) -> Reading | None:
    """Read one number with its unit, currency, scale or suffix."""
    for reader in _UNIT_READERS:
        if reading := reader(text, at):
            return reading
    return None
