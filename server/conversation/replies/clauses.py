"""Cut chat deltas into clauses for the voice, as early as each cut is certain.

The first clause is short, so that sound comes soon; later ones are sentences, or pieces of long ones. A cut never falls
inside a number, an abbreviation, an address, a Markdown link, inline code or a code block. Each clause carries its
range in the reply; together they are the reply, once. Cuts depend on the text alone, never on how it was split into
deltas. The engine decides how words are read aloud.

A word is the text between spaces. If every word is to be a clause, a word also ends at a Chinese or Japanese
punctuation mark: these languages have no spaces. A word is settled when the first character of the next one has come.
Then the gap after it gets a grade; the grade and the length so far decide whether to cut there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

DIGIT_LENGTH = 5
"""A digit counts as so many characters of a clause's length: it is read as a word."""

MAX_SPAN_CHARS = 1000
"""Longest address, link, tag or run of spaces that is kept together; a longer one is cut like plain text."""

SOFT_WRAP_CHARS = 50
"""A line at least this long, without final punctuation, continues in the next line."""

FENCE_LINE_CHARS = 200
"""Longest opening line of a code block."""

WIDE_RUN_CHARS = 24
"""Longest stretch of Chinese or Japanese kept together if every word is a clause: four seconds or more."""


@dataclass(frozen=True, slots=True)
class CutPolicy:
    """When a clause is long enough or too long. Lengths are characters; a digit counts as DIGIT_LENGTH."""

    first_words: int = 3  # the first clause may end at any punctuation from this many words on
    first_max_words: int = 16
    first_max_length: int = 100
    sentence_words: int = 3  # a later clause ends with its sentence from this many words on
    soft_length: int = 80  # a later clause ends at a comma from this length on
    max_words: int = 40
    max_length: int = 200
    every_word: bool = False  # every word is a clause, for a voice that takes text while it speaks


WORD_BY_WORD = CutPolicy(every_word=True)


@dataclass(frozen=True, slots=True)
class Clause:
    """`text` is the reply's `[start:end]`, trailing space included; a silent clause has nothing to say."""

    text: str
    start: int
    end: int
    silent: bool


class Grade(IntEnum):
    """How good a place to cut a gap between words is."""

    GLUED = 0  # inside a number, a date or a name with its title: only if there is no other place
    SPACE = 1
    JOINER = 2  # before a conjunction or preposition
    SOFT = 3  # after a comma, a colon, a dash
    SENTENCE = 4
    BREAK = 5  # the line or the paragraph ends


_WORD = re.compile(rf"\S{{1,{MAX_SPAN_CHARS + 1}}}+")
_STOP = "，。！？、；："
# Hangul is not included: Korean has spaces.
_WIDE = rf"(?![{_STOP}])[\u2e80-\u312f\u3190-\ua95f\uf900-\ufaff\ufe30-\uff9f\U00020000-\U0003ffff]"
_PIECE = re.compile(
    rf"(?=\S)[^\s{_STOP}]{{0,{MAX_SPAN_CHARS}}}?"
    rf"(?:[{_STOP}]+[」』）】》〉”’\"')\]*_]*|(?:{_WIDE}){{{WIDE_RUN_CHARS}}}(?={_WIDE})|(?=\s|\Z))|{_WORD.pattern}"
)
_SPACE = re.compile(rf"\s{{0,{MAX_SPAN_CHARS}}}+")
_WORD_CHAR = re.compile(r"[^\W_]")
_DIGIT = re.compile(r"[0-9]")
_COUNTED = re.compile(r"[0-9]{1,3},\Z")
_MONTH = re.compile(r"\b(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?\s+\Z")
_FENCE = re.compile(r"(?P<mark>`{3,}+|~{3,}+)[^`\n]*")
_ADDRESS = re.compile(r"[(\"'“*_<]{0,3}+(?:https?://|www\.|[A-Za-z0-9._+-]{1,64}+@)|!?\[[^\]]{0,200}+\]\(")
_MARKER = re.compile(r"(?:[-*+•>|]|#{1,6}|[0-9]{1,3}[.)])\Z")
_INITIAL = re.compile(r"[A-HJ-Z]\Z|(?:[A-Za-z]\.)+[A-Za-z]\Z")

_JOINERS = frozenset({
    "and", "or", "but", "so", "because", "which", "that", "who", "where", "when", "while", "if", "as", "than",
    "although", "though", "since", "until", "unless", "with", "without", "from", "into", "for", "by", "in", "on", "at",
})  # fmt: skip
_NEVER_END = frozenset({
    "mr", "mrs", "ms", "mx", "dr", "prof", "st", "mt", "gen", "gov", "sen", "rep", "capt", "lt", "col", "sgt", "rev",
    "hon", "pres", "e.g", "i.e", "eg", "ie", "vs", "cf", "approx", "ca", "a.k.a", "jan", "feb", "apr", "aug", "sept",
    "oct", "nov", "dec", "incl", "excl", "viz", "al",
})  # fmt: skip
_SOMETIMES_END = frozenset({
    "etc", "inc", "ltd", "co", "corp", "bros", "jr", "sr", "a.m", "p.m", "dept", "est", "ave", "blvd", "rd", "ph.d",
})  # fmt: skip
_NUMBERED = frozenset(
    {"no", "nos", "fig", "figs", "p", "pp", "vol", "ch", "sec", "eq", "art", "mar", "jun", "jul", "sep"}
)
_TITLES = frozenset({"Mr", "Mrs", "Ms", "Dr", "Prof", "St", "Mt"})
_CLOSERS = "\"'”’)]}*_`~»"
_OPENERS = "\"'“‘([{*_`«"
_NO_START = ".,;:!?)]}…%°"


def grade(word: str, following: str) -> Grade:
    """Return the grade of the space between a word and the next one, which starts with `following`."""
    core = word.rstrip(_CLOSERS)
    last, stem = core[-1:], core[:-1].lstrip(_OPENERS)
    figures = stem[-1:].isdigit() and following.isdigit()
    if following in _NO_START or word in _TITLES:
        return Grade.GLUED
    if last == "…" or core.endswith(".."):
        return Grade.SENTENCE if following.isupper() else Grade.SOFT
    if last in ("!", "?"):
        if not following.islower():
            return Grade.SENTENCE
        return Grade.SOFT if word == core else Grade.SPACE  # "Is it?" he asked.
    if last == ".":
        return _grade_full_stop(stem, following)
    if last in (",", ";", ":", "—", "–") or word == "-":
        return Grade.GLUED if figures or (not stem and following.isdigit()) else Grade.SOFT
    if last.isdigit() or following.isdigit():
        return Grade.GLUED
    return Grade.SPACE


def _grade_full_stop(stem: str, following: str) -> Grade:
    known = stem.lower()
    if known in _NEVER_END or (known in _NUMBERED and following.isdigit()):
        return Grade.GLUED
    if known in _SOMETIMES_END:
        return Grade.SOFT if following.isupper() else Grade.SPACE
    if _INITIAL.match(stem):
        return Grade.GLUED
    if following.islower():
        return Grade.SOFT
    return Grade.GLUED if stem.isdigit() and following.isdigit() else Grade.SENTENCE


_INLINE_MARK = re.compile(r"`+|[\[\]()>]|<(?=[A-Za-z/!])")
_INLINE_LIMITS = {"`": 200, "]": 200, ")": MAX_SPAN_CHARS, ">": 300}
"""Closing mark -> its greatest distance from the opening mark, in characters."""


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a complete text, without the white space around them; a line break ends a sentence."""
    start = 0
    for found in re.finditer(r"(\S+)(\s+|\Z)", text):
        following = text[found.end() : found.end() + 1]
        if not following or "\n" in found[2] or grade(found[1], following) >= Grade.SENTENCE:
            yield text[start : found.end()].strip()
            start = found.end()


class _Inline:
    """Tracks whether the text so far ends inside a Markdown link, inline code or an HTML tag."""

    def __init__(self) -> None:
        self.closer = ""  # the mark that ends the open span; "" outside
        self.opened = 0
        self._nested = 0

    def feed(self, text: str, start: int, end: int, ignored: int) -> None:
        """Scan text[start:end], whole words; marks before `ignored` are plain characters."""
        for found in _INLINE_MARK.finditer(text, max(start, ignored), end):
            mark = found[0]
            if not self.closer:
                self._open(mark, found.start())
            elif mark == self.closer == "]":
                # A label belongs to a link only if the target follows at once.
                self.closer = ")" if text[found.end() : found.end() + 1] == "(" else ""
                self._nested = 0
            elif self.closer == ")" and mark in "()":
                self._nested += 1 if mark == "(" else -1
                self.closer = self.closer if self._nested else ""
            elif mark == self.closer:
                self.closer = ""

    def _open(self, mark: str, at: int) -> None:
        closer = {"[": "]", "<": ">"}.get(mark, mark if mark[0] == "`" and len(mark) < 3 else "")
        if closer:
            self.closer, self.opened = closer, at

    def too_long(self, end: int) -> bool:
        """Return whether the open span is longer than such a span may be."""
        return self.closer != "" and end - self.opened > _INLINE_LIMITS[self.closer[0]]


class ClauseCutter:
    """Cuts one reply into clauses. Push its deltas in order, then finish."""

    def __init__(self, policy: CutPolicy | None = None) -> None:
        self._policy = policy or CutPolicy()
        self._text = ""  # the text after the last cut
        self._offset = 0  # where `_text` starts in the reply
        self._spoken = False  # a clause with something to say was returned
        self._line_started = True  # only spaces stand between the last line break and `_text`
        self._fence = ""  # the mark that opened the code block at the start of `_text`
        self._line = 0  # in a code block: the first line not scanned
        self._line_length = 0  # characters of the first line that stand before `_text`
        self._structured = False  # that line is a list item, a heading or a table row
        self._restart(0)

    def _restart(self, ignored: int) -> None:
        """Scan the text from its beginning; inline marks before `ignored` are plain characters."""
        self._ignored = ignored
        self._kept = 0  # the clause is not cut before this place
        self._at = 0  # the first character after the settled words
        self._length = 0
        self._words = 0
        self._places: list[tuple[int, Grade, int]] = []  # possible cuts: position, grade, and the length up to there
        self._inline = _Inline()
        self._at_line_start = self._line_started
        self._column = self._line_length
        self._item = self._structured

    def begun(self) -> str:
        """Return the words that are certain of the reply's first clause, which is not complete: it now holds them."""
        if self._spoken or self._fence or self._item or self._policy.every_word or self._inline.closer:
            return ""
        self._kept = max((place for place, found, _ in self._places if found > Grade.GLUED), default=0)
        return self._text[: self._kept]

    def push(self, delta: str) -> list[Clause]:
        """Add reply text; return the clauses it completes."""
        self._text += delta
        return self._cut(final=False)

    def finish(self) -> list[Clause]:
        """Return the remaining clauses: the reply is complete."""
        clauses = self._cut(final=True)
        if self._text:
            clauses.append(self._cut_off(len(self._text)))
        return clauses

    def _cut(self, *, final: bool) -> list[Clause]:
        clauses = []
        while (end := self._next(final=final)) is not None:
            clauses.append(self._cut_off(end))
        return clauses

    def _cut_off(self, end: int) -> Clause:
        text, self._text = self._text[:end], self._text[end:]
        start, self._offset = self._offset, self._offset + end
        silent = self._fence != "" or not _has_word(text)
        _, newline, tail = text.rpartition("\n")
        if newline or self._fence:
            self._line_started, self._line_length, self._structured = not tail.strip(), len(tail), False
        else:
            self._line_started = self._line_started and not text.strip()
            self._line_length += len(text)
            self._structured = self._item
        if not silent:
            self._spoken = True
        self._fence, self._line = "", 0
        self._restart(max(0, self._ignored - end))
        return Clause(text, start, self._offset, silent)

    def _next(self, *, final: bool) -> int | None:
        """Return where the next clause ends, None while that is not known."""
        if self._fence:
            return self._fence_end(final=final)
        while self._at < len(self._text):
            word_at = _end(_SPACE, self._text, self._at)
            if word_at - self._at >= MAX_SPAN_CHARS:
                return word_at
            word_end = _end(_PIECE if self._policy.every_word else _WORD, self._text, word_at)
            gap_end = _end(_SPACE, self._text, word_end)
            settled = final or gap_end < len(self._text) or gap_end - word_end >= MAX_SPAN_CHARS
            if word_at == word_end:
                return None
            if self._at_line_start and self._text[word_at] in "`~":
                verdict = self._fence_starts(word_at, final=final)
                if verdict is None:
                    return None
                if verdict:
                    return word_at or self._fence_end(final=final)
            if (forced := self._forced(word_at, word_end)) is not None:
                return forced
            if not settled:
                return None
            if (end := self._add_word(word_at, word_end, gap_end)) is not None:
                return end
        return None

    def _add_word(self, word_at: int, word_end: int, gap_end: int) -> int | None:
        """Count a word; return the cut after it, None if there is no cut."""
        word, gap = self._text[word_at:word_end], self._text[word_end:gap_end]
        if self._places and self._places[-1][0] == word_at and word.lower() in _JOINERS:
            place, found, length = self._places[-1]
            self._places[-1] = (place, max(found, Grade.JOINER), length)
        marker = self._at_line_start and _MARKER.match(word) is not None
        self._item = marker or (self._item and not self._at_line_start)
        self._column += gap_end - self._at
        self._length += _length(self._text[self._at : word_end]) + 1
        self._words += _has_word(word)
        self._inline.feed(self._text, word_at, word_end, self._ignored)
        following = self._text[gap_end : gap_end + 1]
        found = self._grade(word, gap, following, marker=marker)
        self._at, self._at_line_start = gap_end, "\n" in gap
        if self._at_line_start:
            self._column = 0
        if found is Grade.BREAK:
            return gap_end
        if self._inline.closer:
            if self._inline.too_long(gap_end):
                # Everything up to here counts as plain, not only the opening mark, so that no text is scanned more
                # than twice.
                self._restart(gap_end)
            return None
        self._places.append((gap_end, found, self._length))
        return gap_end if self._long_enough(found) else None

    def _grade(self, word: str, gap: str, following: str, *, marker: bool) -> Grade:
        if len(gap) >= MAX_SPAN_CHARS or gap.count("\n") > 1:
            return Grade.BREAK
        if "\n" in gap and not following.islower():
            long = self._column >= SOFT_WRAP_CHARS and word[-1] not in ".!?:;"
            if self._item or not (long and following.isalpha()):
                return Grade.BREAK
        found = Grade.GLUED if marker else grade(word, following)
        if found is Grade.GLUED and following.isdigit() and _COUNTED.match(word):
            return (
                Grade.GLUED if _MONTH.search(self._text, max(0, self._at - 12), self._at) else Grade.SPACE
            )  # "May 5, 2026" is a date
        return found

    def _long_enough(self, found: Grade) -> bool:
        policy = self._policy
        if policy.every_word:
            return found > Grade.GLUED
        if found >= Grade.SENTENCE:
            return self._words >= (policy.sentence_words if self._spoken else policy.first_words)
        if found is Grade.SOFT:
            return self._length >= policy.soft_length if self._spoken else self._words >= policy.first_words
        return False

    def _forced(self, word_at: int, word_end: int) -> int | None:
        """Return the best cut before a word that no longer fits, or inside a word that is too long by itself."""
        policy = self._policy
        most = policy.max_length if self._spoken else policy.first_max_length
        most_words = policy.max_words if self._spoken else policy.first_max_words
        word = self._text[word_at:word_end]
        length = self._length + _length(self._text[self._at : word_end])
        if length <= most and self._words + _has_word(word) <= most_words:
            return None
        if self._places and self._places[-1][0] >= self._kept:
            return self._best_place(most)
        if self._inline.closer:
            return word_at if word_end > MAX_SPAN_CHARS else None
        return self._inside(word_at, word_end)

    def _inside(self, word_at: int, word_end: int) -> int | None:
        """Return the cut inside a word that is longer than a clause, None if it is an address or a link."""
        word = self._text[word_at:word_end]
        length = 0
        for index, char in enumerate(word):
            length += _length(char)
            if length > self._policy.max_length:
                # Only the text before the cut decides: it is the same however much of the word has come.
                if not _ADDRESS.match(word[:index]):
                    return word_at + index
                return word_at + MAX_SPAN_CHARS if len(word) > MAX_SPAN_CHARS else None
        return None

    def _best_place(self, most: int) -> int:
        places = [place for place in self._places if place[0] >= self._kept]
        enough = [place for place in places if place[2] * 5 >= most * 2]
        for least in (Grade.SOFT, Grade.JOINER, Grade.SPACE):
            for place, found, _ in reversed(enough):
                if found >= least:
                    return place
        return max(places, key=lambda place: (min(place[1], Grade.SPACE), place[0]))[0]

    def _fence_starts(self, word_at: int, *, final: bool) -> bool | None:
        """Return whether a code block starts here, None while its first line is not complete."""
        line_end = self._text.find("\n", word_at, word_at + FENCE_LINE_CHARS)
        if line_end < 0 and not final and len(self._text) - word_at < FENCE_LINE_CHARS:
            return None
        line = self._text[word_at : line_end if line_end >= 0 else word_at + FENCE_LINE_CHARS]
        found = _FENCE.fullmatch(line)
        if not found or (line_end < 0 and len(line) == FENCE_LINE_CHARS):
            return False
        if word_at == 0:
            self._fence, self._line = found["mark"], line_end + 1 if line_end >= 0 else len(self._text)
        return True

    def _fence_end(self, *, final: bool) -> int | None:
        """Return the end of the code block at the start of the text, None while it is open."""
        while True:
            line_end = self._text.find("\n", self._line)
            if line_end < 0 and not final:
                return None
            line = self._text[self._line : line_end if line_end >= 0 else len(self._text)].strip()
            after = line_end + 1 if line_end >= 0 else len(self._text)
            closes = len(line) >= len(self._fence) and set(line) == {self._fence[0]}
            if closes or line_end < 0:
                return after
            self._line = after


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at


def _length(text: str) -> int:
    return len(text) + (DIGIT_LENGTH - 1) * len(_DIGIT.findall(text))


def _has_word(text: str) -> bool:
    return _WORD_CHAR.search(text) is not None
