"""Readers for codes and for the numbers of houses and rooms.

A code is said letter by letter and digit by digit, with a short pause where it has a hyphen or a space: order and
booking codes, flights, serial numbers, IBANs, ISBNs, UUIDs, hardware and IPv6 addresses, long runs of digits. What is a
code:

- capitals and digits that change at least twice, from five characters on: AB12CD, X7K9Q2;
- one or two capitals before three or more digits, any capitals before five digits or a zero: BA2490, KBA0042;
- capitals and digits joined by hyphens, in three groups or with three or more digits: XK9-22F-AA1, A-4711;
- letters and digits after "#" or after a word like "code", "PIN" or "booking number".

Others keep their usual reading: MP3, GPT-4, A4, M25, COVID-19. Numbers of houses, rooms and flights are read in pairs:
221B is "two twenty-one B", room 204 "two oh four".
"""

from __future__ import annotations

import re

from voxlane.engine.text.normalise.context import NUMBER_END, counts_something, next_word, precedes, street_follows
from voxlane.engine.text.normalise.numbers import Reader, Reading, digits, in_groups, in_pairs, run_of_digits

_END = r"(?![A-Za-z0-9]|[-_.,:/@][A-Za-z0-9])"
_HYPHENED_END = r"(?![A-Za-z0-9]|[_.,:/@][A-Za-z0-9])"
_CODE = re.compile(rf"[A-Z0-9]{{2,32}}+{_END}")
_CHANGE = re.compile(r"(?<=[A-Z])(?=[0-9])|(?<=[0-9])(?=[A-Z])")
_QUARTER = re.compile(r"(?:19|20)[0-9]{2}[QHW][0-9]{1,2}")
_FLIGHT = re.compile(r"[A-Z]{1,2}[0-9]{3,}|[A-Z]+(?:0[0-9]+|[0-9]{5,})")
_ONE_LETTER = re.compile(r"(?P<letter>[A-Z])(?P<number>[1-9][0-9]{2})")
_HYPHENED = re.compile(rf"(?=[0-9-]{{0,40}}[A-Z])[A-Z0-9]{{1,16}}+(?:-[A-Z0-9]{{1,16}}+){{1,6}}+{_HYPHENED_END}")
_A_WORD = re.compile(r"(?=[A-Z]{0,8}[AEIOUY])[A-Z]{5}")
_THREE_DIGITS = re.compile(r"[0-9]{3}")
_IBAN = re.compile(rf"[A-Z]{{2}}[0-9]{{2}}(?: [A-Z0-9]{{4}}){{2,7}}(?: [A-Z0-9]{{1,3}})?{_END}")
_HEX = re.compile(rf"(?=[0-9]{{0,40}}[a-f])(?=[a-f]{{0,40}}[0-9])[0-9a-f]{{7,64}}+{_END}")
_UUID = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}(?![A-Za-z0-9-])")
_HARDWARE = re.compile(r"[0-9A-Fa-f]{2}(?:[:-][0-9A-Fa-f]{2}){5}(?![A-Za-z0-9:-])")
_IPV6 = re.compile(
    r"(?=[0-9A-Fa-f:]{2,39}+(?![A-Za-z0-9:]))"
    r"(?:[0-9A-Fa-f]{1,4}(?::[0-9A-Fa-f]{1,4}){0,6}::(?:[0-9A-Fa-f]{1,4}(?::[0-9A-Fa-f]{1,4}){0,6})?"
    r"|[0-9A-Fa-f]{1,4}(?::[0-9A-Fa-f]{1,4}){7})"
)
_JOINED_DIGITS = re.compile(r"[0-9]{1,12}+(?:[-–][0-9]{1,12}+){1,6}(?:-X)?(?![A-Za-z0-9]|[-–][0-9])")
_LONG = re.compile(r"[0-9]{8,}+(?![A-Za-z0-9%€£$°]|[.,:/][0-9]|\s?(?:[€£$%°]|million|thousand))")
_DIGITS = re.compile(r"[0-9]{3,32}+(?![A-Za-z%€£$°]|[.,:/][0-9]|[-–][0-9]|\s?[€£$%°])")
_CUE = re.compile(
    r"\b(?:(?P<sure>code|pin|passcode|password|reference|ref\.?|booking|confirmation|pnr|serial|invoice|account|tracking"
    r"|zip|postcode|postal|ext\.?|extension|iban|isbn|vin|otp|port|area)|(?P<with_number>order|ticket|case|customer"
    r"|member|membership|licen[cs]e|registration|plate|id|flight|parcel|policy|claim|passport|part|phone|serial|batch"
    r"|model|room))"
    r"(?P<number>(?:\s(?:code|number|no\.?|id|plate|key|#))*)(?:\s(?:is|was|are|the|your|of))*(?:\s?[:#]\s?|\s)\Z",
    re.IGNORECASE,
)
_ENDING = re.compile(
    r"\b(?:ending|ends|end)\s(?:in|with)\s\Z|\blast\s(?:four|three|six)(?:\sdigits)?(?:\sare)?\s\Z", re.IGNORECASE
)
_AREA = re.compile(r"\barea\scode(?:\sis)?\s\Z", re.IGNORECASE)
_STATE = re.compile(
    r"\b(?:A[KLRZ]|C[AOT]|D[CE]|FL|GA|HI|I[ADLN]|K[SY]|LA|M[ADEINOST]|N[CDEHJMVY]|O[HKR]|PA|RI|S[CD]|T[NX]|UT|V[AT]"
    r"|W[AIVY])\s\Z"
)
_ZIP = re.compile(rf"(?P<a>[0-9]{{5}})(?:-(?P<b>[0-9]{{4}}))?{NUMBER_END}")
_TOWN = re.compile(r" [A-Z][a-z]{2,}")
_PAIRED = re.compile(
    r"\b(?:room|rooms|suite|apartment|apt\.?|flat|unit|house|studio|cabin|ward|gate|platform|locker|office|flight|bus"
    r"|route|highway|interstate|error|status|http|form|channel)(?:\s(?:number|no\.?|code|#))?\s#?\Z",
    re.IGNORECASE,
)
_HOUSE = re.compile(rf"(?P<number>[1-9][0-9]{{0,3}})(?P<letter>[A-Fa-f]){NUMBER_END}")
_PLAIN = re.compile(r"[1-9][0-9]{2,3}(?![A-Za-z0-9%€£$°]|[.,:/][0-9]|[-–][0-9]|\s?[%°€£$])")
_AT_A_HOUSE = frozenset({"is", "was", "where", "on", "in", "at"})
_AT = re.compile(r"\b(?:at|number|no\.)\s\Z", re.IGNORECASE)


def spell(code: str) -> list[str]:
    """Return letters and digits one by one; a hyphen, a space or another mark becomes a short pause."""
    words: list[str] = []
    for group in re.findall(r"[A-Za-z0-9]+", code):
        if words:
            words[-1] += ","
        for part in re.findall(r"[A-Za-z]|[0-9]+", group):
            words += run_of_digits(part) if part[0].isdigit() else [part.upper()]
    return words


def _spelled(found: re.Match[str]) -> Reading:
    return Reading(found.end(), spell(found[0]), spelled=True)


def _named(text: str, at: int) -> bool:
    """Return whether a word like "code" or "order number" announces a code."""
    cue = precedes(_CUE, text, at)
    return cue is not None and (cue["sure"] is not None or cue["number"] != "" or text[at - 1] == "#")


def _read_code(text: str, at: int) -> Reading | None:
    """Read capitals and digits without a gap."""
    before, found = text[max(0, at - 1) : at], _CODE.match(text, at)
    if not found or before.isalnum() or before in ("-", "_"):
        return None
    code = found[0]
    changes = len(_CHANGE.findall(code))
    if not changes or _QUARTER.fullmatch(code):
        return None
    if (one := _ONE_LETTER.fullmatch(code)) and not _named(text, at):
        return Reading(found.end(), [one["letter"], *in_pairs(one["number"])], spelled=True)
    if (changes > 1 and len(code) >= 5) or _FLIGHT.fullmatch(code) or _named(text, at):
        return _spelled(found)
    return None


def _read_hyphened(text: str, at: int) -> Reading | None:
    """Read capitals and digits that hyphens join: #A-4711, INV-2026-0042."""
    before, found = text[max(0, at - 1) : at], _HYPHENED.match(text, at)
    if not found or before.isalnum() or before == "-" or not any(char.isdigit() for char in found[0]):
        return None
    if _A_WORD.search(found[0]):
        return None
    key = len(found[0]) >= 9 and found[0].count("-") > 1  # "XK9-22F-AA1"
    if key or _THREE_DIGITS.search(found[0]) or before == "#" or _named(text, at):
        return _spelled(found)
    return None


def _read_international(text: str, at: int) -> Reading | None:
    """Read an IBAN, a UUID, a digest or a hardware address."""
    if found := _IBAN.match(text, at) or _UUID.match(text, at) or _HARDWARE.match(text, at):
        return _spelled(found)
    found = _HEX.match(text, at)
    if found and len(re.findall(r"[0-9]+|[a-f]+", found[0])) > 2:
        return _spelled(found)
    return None


def _paused(words: list[str]) -> list[str]:
    return [*words[:-1], f"{words[-1]},"]


def _read_ipv6(text: str, at: int) -> Reading | None:
    found = _IPV6.match(text, at)
    if not found or not any(char.isdigit() for char in found[0]):
        return None
    words: list[str] = []
    for piece in re.findall(r"[0-9]+|[A-Fa-f]|:", found[0]):
        words += ["colon"] if piece == ":" else digits(piece) if piece[0].isdigit() else [piece.upper()]
    return Reading(found.end(), words, spelled=True)


def _read_digits(text: str, at: int) -> Reading | None:
    """Read digits that identify something: an ISBN, a postcode, a PIN, an account, a very long number."""
    if found := _joined(text, at):
        words = in_groups(re.findall(r"[0-9]+", found[0]))
        return Reading(found.end(), [*_paused(words), "X"] if found[0][-1] == "X" else words)
    if (found := _ZIP.match(text, at)) and (found["b"] or precedes(_STATE, text, at) or _in_address(text, at)):
        return Reading(found.end(), in_groups([group for group in (found["a"], found["b"]) if group]))
    if (found := _LONG.match(text, at)) and not found[0].endswith("000"):
        return Reading(found.end(), run_of_digits(found[0]))
    found = _DIGITS.match(text, at)
    if not found or counts_something(text, found.end()):
        return None
    named = (len(found[0]) > 3 and _named(text, at)) or (text[at - 1 : at] == "#" and len(found[0]) > 3)
    if named or precedes(_ENDING, text, at) or precedes(_AREA, text, at):
        if precedes(_PAIRED, text, at):
            return None
        return Reading(found.end(), run_of_digits(found[0]))
    return None


def _in_address(text: str, at: int) -> bool:
    """Return whether five digits after a comma or a line break stand before a town: "Main Street, 10117 Berlin"."""
    opens = text[max(0, at - 2) : at] == ", " or text[max(0, at - 1) : at] == "\n"
    return opens and not text.startswith("000", at + 2) and _TOWN.match(text, at + 5) is not None


def _joined(text: str, at: int) -> re.Match[str] | None:
    """Return groups of digits that hyphens join, if they are too long or too many for a range or a date."""
    found = _JOINED_DIGITS.match(text, at)
    if not found or text[at - 1 : at] in ("-", "–", "/"):
        return None
    groups = re.findall(r"[0-9]+", found[0])
    return found if len(groups) > 2 and sum(map(len, groups)) >= 9 else None


def _read_house(text: str, at: int) -> Reading | None:
    """Read the number of a house, a flat, a room, a flight: in pairs, a letter after it by its name."""
    paired = precedes(_PAIRED, text, at) is not None
    if found := _HOUSE.match(text, at):
        number, letter, end = found["number"], found["letter"], found.end()
        street = street_follows(text, end)
        if letter.islower() and not (paired or street):
            return None
        if letter == "B" and not (paired or street) and _counts_billions(text, at, end):
            return None
        return Reading(end, [*in_pairs(number), letter.upper()], spelled=True)
    found = _PLAIN.match(text, at)
    if found and not counts_something(text, found.end()) and (paired or street_follows(text, found.end())):
        return Reading(found.end(), in_pairs(found[0]))
    return None


def _counts_billions(text: str, at: int, end: int) -> bool:
    """Return whether "B" after a number seems to mean billions: "7B parameters", and not "at 221B" or "221B Baker"."""
    word = next_word(text, end)
    return word.islower() and word not in _AT_A_HOUSE and not precedes(_AT, text, at)


def read_hash(text: str, at: int) -> Reading | None:
    """Read the "#" before a number or a code: "number"."""
    following = text[at + 1 : at + 2]
    if text[at] != "#" or text[max(0, at - 1) : at] in ("C", "F"):
        return None
    if "0" <= following <= "9" and following:
        return Reading(at + 1, ["number"])
    if following.isupper() and (_read_hyphened(text, at + 1) or _read_code(text, at + 1)):
        return Reading(at + 1, ["number"])
    return None


def read_letter(text: str, at: int) -> Reading | None:
    """Read the capital "A" as the name of the letter where it is not an article: "plan A", "A4", "vitamins A and C"."""
    if text[at] != "A" or _part_of_word(text, at):
        return None
    after = text[at + 1 : at + 2]
    if "0" <= after <= "9" and after:
        return Reading(at + 1, ["A"], spelled=True)
    before = text[max(0, at - 2) : at]
    if after == "." and text[at + 2 : at + 3].isalnum():
        return None
    opens = before.strip(" \n(\"“'‘*") == "" or before[:1] in ".!?:…" or "\n" in before
    if opens or before[-1:] != " " or (after == " " and text[at + 2 : at + 3].isalpha() and text[at + 2].isupper()):
        return None
    if precedes(_GRADE, text, at):
        return Reading(at + 1, ["A"], spelled=True)
    if after == " " and next_word(text, at + 1).islower() and next_word(text, at + 1) not in _AFTER_LETTER:
        return None
    return Reading(at + 1, ["A"], spelled=True)


_GRADE = re.compile(
    r"\b(?:grade|plan|vitamin|type|option|group|class|hepatitis|team|exhibit|point|an)\s\Z", re.IGNORECASE
)
_AFTER_LETTER = frozenset({"and", "or", "to", "is", "was", "in", "on", "at", "for", "with", "as", "has", "but", "then"})


def _part_of_word(text: str, at: int) -> bool:
    before, after = text[max(0, at - 1) : at], text[at + 1 : at + 2]
    return before.isalnum() or before in ("'", "’", "_") or after.isalpha() or after in ("'", "’", "_", "&", "-", "/")


def _read_hyphened_or_code(text: str, at: int) -> Reading | None:
    return _read_hyphened(text, at) or _read_code(text, at)


LETTER_CODE_READERS: tuple[Reader, ...] = (_read_international, _read_ipv6, _read_hyphened_or_code, read_letter)
"""The readers for a letter, in the order to try them."""

EARLY_DIGIT_CODE_READERS: tuple[Reader, ...] = (_read_international, _read_ipv6, _read_hyphened_or_code)
"""The readers for a digit that come before dates and telephone numbers."""

DIGIT_CODE_READERS: tuple[Reader, ...] = (_read_digits, _read_house)
"""The readers for a digit that come after dates and telephone numbers."""
