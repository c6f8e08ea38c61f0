"""The rules by which a reply of partner.py is right or wrong: text and calls in, the broken rules out.

Rules judge what a listener would hear. Patterns are searched in the text as normalise() writes it, so that
"Ninety-six!", "96" and "96.0" are one answer.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

# ---- text as it is compared

# fmt: off
_BELOW_TWENTY = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)
# fmt: on
_BY_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_SMALL = {word: value for value, word in enumerate(_BELOW_TWENTY)}
_TENS = {word: 10 * value for value, word in enumerate(_BY_TENS, start=2)}
_SCALES = {"thousand": 1000, "million": 1_000_000, "billion": 1_000_000_000}
_SHORT = (
    (r"\bcan'?t\b|\bcannot\b", "can not"),
    (r"\bwon't\b", "will not"),
    (r"n't\b", " not"),
    (r"'m\b", " am"),
    (r"'re\b", " are"),
    (r"'ll\b", " will"),
    (r"'ve\b", " have"),
    (r"%", " percent "),
)
_TOKEN = re.compile(r"\d+(?:\.\d+)?|[^\W\d_]+")
_GROUPED = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")


def normalise(text: str) -> str:
    """Return a text in lower case, without punctuation and accents, with numbers as figures and "don't" as "do not"."""
    plain = unicodedata.normalize("NFKD", text.replace("’", "'").casefold())
    plain = "".join(letter for letter in plain if not unicodedata.combining(letter))
    for pattern, written in _SHORT:
        plain = re.sub(pattern, written, plain)
    return " ".join(_figures(_TOKEN.findall(_GROUPED.sub("", plain))))


def _figures(tokens: Sequence[str]) -> Iterator[str]:
    """Yield words with every number among them in figures: "one hundred and five" is "105", "one two" is "1 2"."""
    at = 0
    while at < len(tokens):
        value, end = _number(tokens, at)
        if end == at:
            yield tokens[at]
            at += 1
            continue
        if tokens[end : end + 1] == ["point"] and (digits := _digits(tokens, end + 1)):
            yield _written(float(f"{value:g}.{digits}"))
            at = end + 1 + len(digits)
            continue
        yield _written(value)
        at = end


def _written(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


def _digits(tokens: Sequence[str], at: int) -> str:
    """Return the digits after a point that are spoken one by one."""
    found = ""
    while at < len(tokens) and _SMALL.get(tokens[at], 10) < 10:
        found += str(_SMALL[tokens[at]])
        at += 1
    return found


def _number(tokens: Sequence[str], at: int) -> tuple[float, int]:
    """Return the number that begins at a token, and where it ends; it ends where it begins if there is none."""
    total, end, least = 0.0, at, float("inf")
    while True:
        start = end + (end > at and tokens[end : end + 1] == ["and"])
        group, after = _hundreds(tokens, start)
        scale = _SCALES.get(tokens[after], 0) if after < len(tokens) else 0
        if 0 < scale < least and (after > start or end == at):  # "thousand" alone is a thousand
            total, least, end = total + (group or 1.0) * scale, scale, after + 1
        elif after > start and group < least:
            return total + group, after
        else:
            return total, end


def _hundreds(tokens: Sequence[str], at: int) -> tuple[float, int]:
    """Return a number below a thousand, or one in figures, and where it ends."""
    value, end = _tens(tokens, at)
    if tokens[end : end + 1] == ["hundred"]:
        value, end = 100 * (value if end > at else 1.0), end + 1
        more, after = _tens(tokens, end + (tokens[end : end + 1] == ["and"]), words_only=True)
        if more:
            return value + more, after
    return value, end


def _tens(tokens: Sequence[str], at: int, *, words_only: bool = False) -> tuple[float, int]:
    word = tokens[at] if at < len(tokens) else ""
    if word[:1].isdigit() and not words_only:
        return float(word), at + 1
    if word in _TENS:
        unit = _SMALL.get(tokens[at + 1], 0) if at + 1 < len(tokens) else 0
        return (float(_TENS[word] + unit), at + 2) if 0 < unit < 10 else (float(_TENS[word]), at + 1)
    return (float(_SMALL[word]), at + 1) if word in _SMALL else (0.0, at)


# ---- what is counted of a reply

_WORD = re.compile(r"[^\W_]+(?:['’.,:-][^\W_]+)*")
_ABBREVIATED = re.compile(r"\b(?:mr|mrs|ms|dr|st|e\.g|i\.e|etc|vs|[a-z])\.", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?…]+[\"'”’)]*(?=\s|$)|\n+")
_MARKUP = {
    "bold or italic text": re.compile(r"\*\*|__|(?<!\w)\*\w[^*\n]*\*"),
    "code": re.compile(r"`"),
    "a heading": re.compile(r"^\s*#{1,6} ", re.MULTILINE),
    "a list": re.compile(r"^\s*(?:[-*•–]|\d{1,2}[.)]) ", re.MULTILINE),
    "a numbered list": re.compile(r"(?:^|\s)1[.)] .*\s2[.)] ", re.DOTALL),
    "a table": re.compile(r"^\s*\|", re.MULTILINE),
    "a formula": re.compile(r"\\[(\[a-z]"),
    "JSON": re.compile(r'\{\s*"'),
    "an address": re.compile(r"https?://|www\."),
    "a tag": re.compile(r"</?[A-Za-z_|][^<>]*>"),
}
_CANNOT = (
    "know|understand|have|make|see|exist|tell|recall|determine|provide|answer|follow|get|catch|recogni[sz]e|remember|fit|"
    "assist|help|access|hear|find|say|mean|appear|seem|correspond|belong"
)
_NOTHING = "way|idea|information|such|colou?r|cousin|meaning|access|tuesdays?"
_NO_SUCH = "word|thing|such|way|question|real|sense|known|recogni[sz]ed|colou?rs?|unit"
_AGAIN = "clarify|explain|repeat|rephrase|specify|tell|say|provide|give|describe|elaborate|finish|complete|be more"
_WISHED = "like|want|mean|need|refer|talk|look|ask|try|say"
_UNSURE = tuple(
    re.compile(pattern)
    for pattern in (
        r"\bnot (really |quite |entirely )?(sure|clear|certain|aware|able|possible|meaningful|applicable)\b",
        rf"\b(do|does|did|could|can|would) not (\w+ ){{0,2}}?({_CANNOT})\b",
        r"\bi (can not|am not able|do not)\b",
        rf"\b(is|are|was) (not|no) (an? )?(\w+ )?({_NO_SUCH})",
        rf"\bno ({_NOTHING})\b",
        r"\b(unable|unclear|unknown|meaningless|impossible|incomplete|nonsens\w*|cut off|pardon)\b",
        rf"\b(could|can|would) you (please )?(\w+ )?({_AGAIN})\b",
        rf"\bplease (\w+ )?({_AGAIN})\b",
        r"\bmore (information|details|context)\b",
        rf"\b(what|which|who|where)\b.{{0,30}}\b(would|do|did|are) you ({_WISHED})",
        r"\byou (have|did) not (yet )?(told|tell|said|say|mention(ed)?)\b",
        r"\bdid you mean\b",
        r"\bhow (can|may) i (help|assist)\b",
    )
)
"""Phrases of people who do not know, do not understand, or ask what was meant."""


def count_words(text: str) -> int:
    """Return the number of spoken words; "twenty-one" and "3.5" are one each."""
    return len(_WORD.findall(text))


def count_sentences(text: str) -> int:
    """Return the number of sentences; a line without a full stop is one."""
    parts = _SENTENCE_END.split(_ABBREVIATED.sub("x", text))
    return sum(1 for part in parts if _WORD.search(part))


def markup(text: str) -> list[str]:
    """Return the parts of a text that are written for the eye, such as Markdown."""
    return [name for name, pattern in _MARKUP.items() if pattern.search(text)]


def declines(text: str) -> bool:
    """Return whether a reply says that it does not know or understand, or that a thing cannot be, or only asks back."""
    only_asks = text.strip().endswith("?") and count_sentences(text) == 1
    said = normalise(text)
    return only_asks or any(pattern.search(said) for pattern in _UNSURE)


# ---- rules


class RuleError(ValueError):
    """A rule cannot be read; str() says which and why."""


@dataclass(frozen=True, slots=True)
class Called:
    """A call that a model made."""

    name: str
    arguments: str  # JSON


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply to one turn."""

    text: str
    calls: tuple[Called, ...] = ()


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules for a reply. partner_exchanges.toml explains each rule."""

    any_of: tuple[str, ...] = ()
    all_of: tuple[str, ...] = ()
    none_of: tuple[str, ...] = ()
    number: float | None = None
    min_words: int = 0
    max_words: int | None = None
    sentences: int | None = None
    shorter: bool = False
    plain: bool = False
    declines: bool = False
    distinct: Mapping[str, Any] = field(default_factory=dict)  # of: patterns; count: how many of them
    call: Mapping[str, Any] = field(default_factory=dict)  # name; arguments: a pattern for each
    no_call: bool = False

    def broken_by(self, reply: Reply, before: str = "") -> list[str]:
        """Return the rules that a reply breaks, as text; `before` is the text of the reply before it."""
        return [*self._wrong_words(reply.text), *self._wrong_form(reply, before), *self._wrong_calls(reply.calls)]

    def _wrong_words(self, text: str) -> Iterator[str]:
        said = normalise(text)
        if self.any_of and not any(re.search(pattern, said) for pattern in self.any_of):
            yield f"has none of: {', '.join(self.any_of)}"
        yield from (f"lacks: {pattern}" for pattern in self.all_of if not re.search(pattern, said))
        yield from (f"has: {pattern}" for pattern in self.none_of if re.search(pattern, said))
        if self.number is not None and _written(float(self.number)) not in said.split():
            yield f"does not state {_written(float(self.number))}"
        if self.declines and not declines(text):
            yield "claims to know"
        if self.distinct:
            found = _distinct(self.distinct["of"], said)
            if found != self.distinct["count"]:
                yield f"names {found} things, not {self.distinct['count']}"

    def _wrong_form(self, reply: Reply, before: str) -> Iterator[str]:
        words = count_words(reply.text)
        if not words and not self.call:
            yield "says nothing"
        elif words < self.min_words:
            yield f"has {words} words; at least {self.min_words}"
        if self.max_words is not None and words > self.max_words:
            yield f"has {words} words; at most {self.max_words}"
        if self.sentences is not None and (found := count_sentences(reply.text)) != self.sentences:
            yield f"has {found} sentences, not {self.sentences}"
        if self.shorter and words >= (most := count_words(before)):
            yield f"has {words} words; the reply before had {most}"
        if self.plain and (seen := markup(reply.text)):
            yield f"cannot be read aloud: {', '.join(seen)}"

    def _wrong_calls(self, calls: Sequence[Called]) -> Iterator[str]:
        if self.no_call and calls:
            yield f"calls {calls[0].name}"
        if not self.call:
            return
        if not calls:
            yield f"does not call {self.call['name']}"
            return
        yield from (f"calls {call.name}" for call in calls if call.name != self.call["name"])
        given = _arguments(calls[0].arguments)
        for name, pattern in self.call.get("arguments", {}).items():
            if not re.search(pattern, normalise(str(given.get(name, "")))):
                yield f"calls with {name} = {given.get(name)!r}"


def _distinct(patterns: Sequence[str], said: str) -> int:
    """Return how many patterns match; a longer match is removed before a shorter pattern can match in it."""
    found = 0
    for pattern in patterns:
        said, times = re.subn(rf"\b(?:{pattern})\b", "·", said)
        found += bool(times)
    return found


def _arguments(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


_NAMES = frozenset(one.name for one in fields(Rules))


def read_rules(values: Mapping[str, Any], where: str) -> Rules:
    """Return the rules of a table of the file; raise RuleError that names the wrong one."""
    if unknown := values.keys() - _NAMES:
        raise RuleError(f"{where}: {min(unknown)} is no rule; there are {', '.join(sorted(_NAMES))}")
    for pattern in _patterns(values):
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            raise RuleError(f"{where}: the pattern {pattern!r} cannot be read: {error}") from error
    read: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    return Rules(**read)


def _patterns(values: Mapping[str, Any]) -> Iterator[Any]:
    for name in ("any_of", "all_of", "none_of"):
        yield from values.get(name, ())
    yield from values.get("distinct", {}).get("of", ())
    yield from values.get("call", {}).get("arguments", {}).values()
