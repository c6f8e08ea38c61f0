"""Readers for dates and times of day.

A reader looks at one position in plain text and returns the end of its expression and the words for it, or None. There
is no calendar: 31 February is read as written.
"""

from __future__ import annotations

import re

from voxlane.engine.text.normalise.numbers import Reader, Reading, cardinal, ordinal, year
from voxlane.engine.text.normalise.tables import MONTH_NUMBERS, MONTHS

_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?|Oct(?:ober)?"
    r"|Nov(?:ember)?|Dec(?:ember)?)"
)
_HALF = r"(?P<half>[AaPp])(?:\.[Mm]\.?|[Mm])(?![A-Za-z0-9])"
_ISO = re.compile(r"(?P<y>[12][0-9]{3})(?P<gap>[-/.])(?P<m>[0-9]{1,2})(?P=gap)(?P<d>[0-9]{1,2})(?![0-9])")
_SLASH = re.compile(r"(?P<a>[0-9]{1,2})/(?P<b>[0-9]{1,2})/(?P<y>[0-9]{4}|[0-9]{2})(?![0-9/])")
_POINTS = re.compile(r"(?P<d>[0-9]{1,2})\.(?P<m>[0-9]{1,2})\.(?P<y>[12][0-9]{3})(?![0-9]|[.,][0-9])")
_DAY_MONTH = re.compile(
    rf"(?P<d>[0-9]{{1,2}})(?:st|nd|rd|th)?\s(?:of\s)?(?P<month>{_MONTH})(?![A-Za-z])(?:\.(?=\s[a-z0-9]))?"
    r"(?:,?\s(?P<y>[12][0-9]{3})(?![0-9]|[.,][0-9]))?"
)
_MONTH_DAY = re.compile(
    rf"(?P<month>{_MONTH})\.?\s(?P<d>[0-9]{{1,2}})(?:st|nd|rd|th)?(?![0-9:%A-Za-z]|[.,][0-9])"
    r"(?:\s?[-–]\s?(?P<d2>[0-9]{1,2})(?![0-9:]))?(?:,?\s(?P<y>[12][0-9]{3})(?![0-9]|[.,][0-9]))?"
)
_CLOCK = re.compile(
    rf"(?P<h>[01]?[0-9]|2[0-4]):(?P<m>[0-5][0-9])(?::(?P<s>[0-5][0-9])(?:\.[0-9]+)?)?(?![0-9:])(?:\s?{_HALF}|Z)?"
)
_HOUR = re.compile(rf"(?P<h>1[0-2]|0?[1-9])(?:\s?[-–]\s?(?P<h2>1[0-2]|[1-9]))?\s?{_HALF}")
_TO = re.compile(r"\s?[-–]\s?")


def _date(y: str | None, month: int, day: int, last_day: int | None = None) -> list[str] | None:
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    words = [MONTHS[month - 1], *ordinal(day)]
    if last_day is not None:
        words += ["to", *ordinal(last_day)]
    return _with_year(words, y)


def _with_year(words: list[str], y: str | None) -> list[str]:
    if not y:
        return words
    number = int(y)
    if len(y) == 2:
        number += 2000 if number < 50 else 1900
    return [*words[:-1], f"{words[-1]},", *year(number)]


def _month(name: str) -> int:
    return MONTH_NUMBERS[name[:3].lower()]


def _read_iso(text: str, at: int) -> Reading | None:
    found = _ISO.match(text, at)
    words = found and _date(found["y"], int(found["m"]), int(found["d"]))
    if not found or not words:
        return None
    if text[found.end() : found.end() + 1] == "T" and (time := _CLOCK.match(text, found.end() + 1)):
        return Reading(time.end(), [*words, "at", *_clock(time)])
    return Reading(found.end(), words)


def _read_slash(text: str, at: int) -> Reading | None:
    """Read the month first, as Americans write it, unless that is impossible."""
    if not (found := _SLASH.match(text, at)):
        return None
    a, b = int(found["a"]), int(found["b"])
    words = _date(found["y"], *((a, b) if a <= 12 else (b, a)))
    return Reading(found.end(), words) if words else None


def _read_points(text: str, at: int) -> Reading | None:
    """Read the day first, as Europeans write it with points."""
    if not (found := _POINTS.match(text, at)) or not (1 <= int(found["d"]) <= 31 and 1 <= int(found["m"]) <= 12):
        return None
    return _day_of_month(text, at, found.end(), found["d"], int(found["m"]), found["y"])


def _day_of_month(text: str, at: int, end: int, day: str, month: int, y: str | None) -> Reading:
    article = [] if text[max(0, at - 4) : at].lower() == "the " else ["the"]
    return Reading(end, _with_year([*article, *ordinal(int(day)), "of", MONTHS[month - 1]], y))


def _read_day_month(text: str, at: int) -> Reading | None:
    if not (found := _DAY_MONTH.match(text, at)) or not 1 <= int(found["d"]) <= 31:
        return None
    return _day_of_month(text, at, found.end(), found["d"], _month(found["month"]), found["y"])


def read_month_day(text: str, at: int) -> Reading | None:
    """Read "Nov 15" or "November 15, 2026" at a month's name."""
    if not (found := _MONTH_DAY.match(text, at)):
        return None
    last_day = int(found["d2"]) if found["d2"] else None
    words = _date(found["y"], _month(found["month"]), int(found["d"]), last_day)
    return Reading(found.end(), words) if words else None


def _clock(found: re.Match[str]) -> list[str]:
    hour, minute = int(found["h"]), int(found["m"])
    words = cardinal(hour)
    if minute:
        words += [*(["oh"] if minute < 10 else []), *cardinal(minute)]
    elif not found["half"]:
        words.append("o'clock" if 1 <= hour <= 12 else "hundred")
    if found["s"]:
        words += ["and", *cardinal(int(found["s"])), "second" if int(found["s"]) == 1 else "seconds"]
    if found["half"]:
        words.append(f"{found['half'].upper()}M")
    return words


def sentence_stop(text: str, end: int) -> str:
    """Return "." if the full stop of an abbreviation that ends at `end` seems to end the sentence too."""
    if text[end - 1] != ".":
        return ""
    after = text[end : end + 2]
    return "." if not after or after[0] == "\n" or (after[0] == " " and after[1:].isupper()) else ""


def _read_clock(text: str, at: int) -> Reading | None:
    if not (found := _CLOCK.match(text, at)):
        return None
    return _until(text, found.end(), _clock(found))


def _until(text: str, end: int, words: list[str]) -> Reading:
    """Return a time that ends at `end`, with the time that follows after a dash: "9am-5pm"."""
    gap = _TO.match(text, end)
    if gap and (until := _CLOCK.match(text, gap.end())):
        words, end = [*words, "to", *_clock(until)], until.end()
    elif gap and (until := _HOUR.match(text, gap.end())) and not until["h2"]:
        words, end = [*words, "to", *cardinal(int(until["h"])), f"{until['half'].upper()}M"], until.end()
    return Reading(end, [*words[:-1], words[-1] + sentence_stop(text, end)])


def _read_hour(text: str, at: int) -> Reading | None:
    if not (found := _HOUR.match(text, at)):
        return None
    words = cardinal(int(found["h"]))
    if found["h2"]:
        words += ["to", *cardinal(int(found["h2"]))]
    return _until(text, found.end(), [*words, f"{found['half'].upper()}M"])


DATE_READERS: tuple[Reader, ...] = (_read_iso, _read_slash, _read_points, _read_clock, _read_hour, _read_day_month)
"""The readers for a digit, in the order to try them."""
