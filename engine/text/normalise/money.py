"""Readers for amounts of money, in English and in European writing.

Which mark is the decimal mark:

1. Of "." and "," in one number the last is the decimal mark: 1,150.50 and 1.150,50 are the same amount.
2. A mark that comes twice separates thousands: 1.150.000.
3. A single mark before exactly three digits separates thousands if it is a comma (1,150), or if it is a point and the
   currency is the euro or the Swiss franc (€1.150). In other currencies, and in numbers without one, it is a decimal
   point: $1.150 is "one point one five zero dollars".
4. Any other single mark is a decimal mark: €3,50 and $3.50.

Spaces and apostrophes separate thousands: 1 150,50 €, CHF 1'150.50.
"""

from __future__ import annotations

import re

from voxlane.engine.text.normalise.numbers import Reader, Reading, cardinal, decimal
from voxlane.engine.text.normalise.tables import CURRENCIES, PER_READINGS, SCALES, UNITS

_CODE = r"(?:USD|EUR|GBP|JPY|INR|CAD|AUD|CHF|CNY)"
_SIGN = r"[$£€¥₹₩]"
SCALE = r"(?:\s?(?P<scale>hundred|thousand|million|billion|trillion|bn|mn)|(?P<letter>[kKmMbBT]))(?![A-Za-z0-9])"
"""A scale after a number: a word, or a letter without a space."""

_PER = r"(?:/(?P<per>[A-Za-z]{1,6})(?![A-Za-z/]))?"
_NARROW = "\u00a0\u202f"


def _amount(gaps: str) -> str:
    """Return the pattern of a number; a mark or one of `gaps` may separate its thousands."""
    return rf"(?>(?>[0-9]{{1,3}}(?:[.,'’{gaps}][0-9]{{3}}){{1,9}}+(?![0-9])|[0-9]++)(?:[.,][0-9]++)?+)"


_MONEY = re.compile(
    rf"(?P<sign>US\$|A\$|C\$|{_SIGN}|{_CODE}(?=\s)|Fr\.(?=\s))\s?(?P<a>{_amount(_NARROW)})(?:,[-–—]{{1,2}})?"
    rf"(?:\s?[-–]\s?{_SIGN}?(?P<b>{_amount(_NARROW)}))?(?:{SCALE})?{_PER}"
)
_MONEY_AFTER = re.compile(
    rf"(?P<a>{_amount(_NARROW + ' ')})(?:,[-–—]{{1,2}})?(?P<b>)(?:{SCALE})?"
    rf"\s?(?P<sign>[€£]|\$(?![0-9A-Za-z])|{_CODE}(?![A-Za-z])|[Ee]uros?(?![A-Za-z])){_PER}"
)
_CENTS = re.compile(r"(?P<a>[0-9]{1,3})\s?¢")
_POINT_GROUPS = frozenset({"€", "EUR", "CHF", "Fr."})
_THREE_BEHIND = re.compile(r"[1-9][0-9]{0,2}[.,][0-9]{3}")


def per(name: str | None) -> list[str]:
    """Return the words of "/h" after a quantity."""
    if not name:
        return []
    return ["per", *PER_READINGS.get(name, UNITS.get(name, (name,))[0]).split()]


def scaled(found: re.Match[str], amount: list[str]) -> list[str]:
    """Return an amount with the scale that a pattern with SCALE found."""
    scale = found["scale"] or found["letter"]
    return [*amount, SCALES[scale]] if scale else amount


def split_amount(written: str, *, point_groups: bool) -> tuple[str, str]:
    """Return the whole part and the fraction of an amount; see the rules above."""
    written = re.sub(rf"['’ {_NARROW}]", "", written)
    marks = [char for char in written if char in ".,"]
    if not marks:
        return written, ""
    last = marks[-1]
    if len(marks) > 1:
        groups = marks.count(last) > 1
    else:
        groups = _THREE_BEHIND.fullmatch(written) is not None and (last == "," or point_groups)
    whole, _, fraction = (written, "", "") if groups else written.rpartition(last)
    return re.sub(r"[.,]", "", whole), fraction


def read_money(text: str, at: int) -> Reading | None:
    """Read an amount with a currency's sign or code before or behind it."""
    found = _MONEY.match(text, at) or _MONEY_AFTER.match(text, at)
    if not found:
        return None
    sign = "€" if found["sign"].lower().startswith("euro") else found["sign"]
    one, more, coin, coins = CURRENCIES[sign]
    whole, small = split_amount(found["a"], point_groups=sign in _POINT_GROUPS)
    amount = decimal(f"{whole}.{small}" if small else whole)
    if found["b"]:
        upper, rest = split_amount(found["b"], point_groups=sign in _POINT_GROUPS)
        words = [*amount, "to", *scaled(found, decimal(f"{upper}.{rest}" if rest else upper)), *more.split()]
    elif found["scale"] or found["letter"] or len(small) not in (0, 2):
        words = [*scaled(found, amount), *more.split()]
    else:
        big = [*decimal(whole), *(one if whole == "1" else more).split()]
        cents = [*cardinal(int(small)), *(coin if int(small) == 1 else coins).split()] if int(small or "0") else []
        # "$0.99" is read as cents only; "$0.00" keeps its dollars.
        words = cents if cents and not whole.strip("0") else [*big, *(["and", *cents] if cents else [])]
    return Reading(found.end(), [*words, *per(found["per"])])


def _read_cents(text: str, at: int) -> Reading | None:
    found = _CENTS.match(text, at)
    return found and Reading(found.end(), [*decimal(found["a"]), "cent" if found["a"] == "1" else "cents"])


MONEY_READERS: tuple[Reader, ...] = (read_money, _read_cents)
"""The readers for a digit or a currency's sign."""
