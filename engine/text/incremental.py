"""Text that comes in pieces -> tokens for a voice. Each word keeps its place in the text.

Text is read and tokenised word by word, with a space before each word but the first. A byte-level BPE never joins words
across a space, so for languages with spaces the tokens are those of the whole text. In Chinese and Japanese a word ends
at a stop or after WIDE_RUN characters; a comma belongs to the word before it, where the models' own pattern may join it
to the next. The end of a piece waits for more text if it may be the middle of a word or a number. So the cuts between
pieces do not matter, with one exception: an expression that English reads as a unit, like a date or a price, has to
come in one piece.

English is normalised like the text of every voice here (normalise/reader.py). Other languages are read as written,
without markup: these models read numbers themselves. If the language is not given, the first word that identifies it
decides for the rest of the text.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from voxlane.engine.text.normalise.markup import Plain, plain
from voxlane.engine.text.normalise.pronunciations import NO_PRONUNCIATIONS, Pronunciations
from voxlane.engine.text.normalise.reader import words_of

MAX_HELD_CHARS = 400
"""Text that may wait for the end of a word. Beyond it only the last word waits; a longer word is read as it is."""

WIDE_RUN = 24
"""Characters of Chinese or Japanese without a stop that are read together; the last run waits for more text."""

_FIRST_WIDE = 0x2E80  # from here on a character is at least a syllable
_WIDE_WEIGHT = 3.0  # the duration of such a character, in letters
_STOP = "，。！？、；："
# Without Hangul: Korean has spaces.
_WIDE = rf"(?![{_STOP}])[\u2e80-\u312f\u3190-\ua95f\uf900-\ufaff\ufe30-\uff9f\U00020000-\U0003ffff]"
_WIDE_END = re.compile(rf"(?:{_WIDE})+\Z")
_WHOLE = re.compile(rf"(?:[\s;!?…{_STOP}]|(?<![0-9])[.,:])\Z")  # a point after a digit may be part of a number
_AS_IT_STANDS = re.compile(rf"(?:(?:{_WIDE}){{1,{WIDE_RUN}}}+|(?:(?!{_WIDE})[^\s{_STOP}])++)[{_STOP}]*+|[{_STOP}]++")
_BETWEEN_SPACES = re.compile(r"\S++\s*+")
_CORE = re.compile(r"[^\W\d_][\w'’]*+")
_LATIN_END = 0x250
_CLOSED = re.compile(r"[.!?…。！？]\W*\Z")

_ENGLISH = frozenset({
    "the", "and", "of", "it", "is", "you", "your", "that", "this", "these", "those", "with", "what", "which", "who",
    "how", "when", "where", "why", "there", "here", "have", "they", "their", "we", "our", "my", "by", "from", "about",
    "are", "were", "been", "could", "would", "should", "does", "did", "to", "yes", "well", "sure", "hello", "please",
    "it's", "i'm", "i'll", "i've", "i'd", "you're", "that's", "there's", "here's", "what's", "let's", "don't", "can't",
})  # fmt: skip
_NOT_ENGLISH = frozenset({
    "der", "das", "ein", "eine", "und", "ist", "ich", "nicht", "wir", "sie", "dem", "mit", "auf", "le", "les", "une",
    "est", "je", "j'ai", "elle", "nous", "vous", "ce", "c'est", "que", "qui", "pas", "avec", "una", "es", "del", "uma",
    "gli", "di", "che", "sono", "della",
})  # fmt: skip
"""Words that identify English, and words that identify another language of a voice here. No word is in both: "die",
"um", "den", "la", "un" and "em", as in L.A., the UN and "get 'em", identify nothing."""


@dataclass(frozen=True, slots=True)
class Said:
    """A word: its place in the text [start:end], its tokens, and its duration in letters."""

    start: int
    end: int
    tokens: tuple[int, ...]
    letters: float
    closes: bool = False  # it ends a sentence


class Reader:
    """Reads one request's text. `language` is the model's name for it, "auto" to detect it; `names` are respelled."""

    def __init__(
        self, encode: Callable[[str], Sequence[int]], language: str, names: Pronunciations = NO_PRONUNCIATIONS
    ) -> None:
        self._encode = encode
        self._names = names
        self._english = None if language == "auto" else language == "english"  # None: not yet known
        self._rest = ""
        self._start = 0  # place of `_rest` in the whole text
        self._begun = False
        self._spaced = False  # there was white space after the last word

    def read(self, text: str) -> list[Said]:
        """Take more text; return the complete words."""
        text = self._rest + text
        stop = len(text) if _WHOLE.search(text) else _full_runs(text)
        if not stop and len(text) > MAX_HELD_CHARS:
            last = text.rfind(" ", len(text) - MAX_HELD_CHARS)
            stop = last + 1 or len(text)
        self._rest, start = text[stop:], self._start
        self._start += stop
        return self._words(text[:stop], start)

    def finish(self) -> list[Said]:
        """Return the words that were held back; the text is complete."""
        text, self._rest = self._rest, ""
        return self._words(text, self._start)

    def _words(self, text: str, start: int) -> list[Said]:
        page, said = plain(text), []
        spaced = self._spaced or text[:1].isspace()
        for first, last, english in self._stretches(page.text):
            part = Plain(page.text[first:last], page.origin[first:last])
            before = page.text[first - 1].isspace() if first else spaced
            found = _english(part, self._names) if english else _as_it_stands(part, self._names, spaced=before)
            said += [self._said(spoken, start + begin, start + end) for spoken, begin, end in found]
        self._spaced = text[-1:].isspace() if text else self._spaced
        return said

    def _stretches(self, text: str) -> list[tuple[int, int, bool]]:
        """Return the parts of a text as (start, end, whether it is read as English)."""
        stretches: list[tuple[int, int, bool]] = []
        for word in _BETWEEN_SPACES.finditer(text):
            first, english = word.start(), self._is_english(word[0])
            if stretches and stretches[-1][2] == english:
                first = stretches.pop()[0]
            stretches.append((first, word.end(), english))
        return stretches

    def _said(self, spoken: str, first: int, last: int) -> Said:
        tokens = tuple(self._encode(spoken if self._begun else spoken.lstrip()))
        self._begun = True
        letters = sum(_WIDE_WEIGHT if ord(char) >= _FIRST_WIDE else 1.0 for char in spoken)
        return Said(first, last, tokens, letters, closes=_CLOSED.search(spoken) is not None)

    def _is_english(self, word: str) -> bool:
        if self._english is None:
            self._english = _tells(word)
        return bool(self._english) and not any(ord(char) >= _LATIN_END and char.isalpha() for char in word)


def _tells(word: str) -> bool | None:
    """Return whether a word identifies English (True), another language (False) or nothing (None)."""
    core = _CORE.search(word)
    known = core[0].lower().replace("’", "'") if core else ""
    if known in _NOT_ENGLISH or any(char.isalpha() and not char.isascii() for char in word):
        return False
    return True if known in _ENGLISH else None


def _full_runs(text: str) -> int:
    """Return how much of a text can be read before its end is known: the full runs of a long stretch without a stop."""
    run = _WIDE_END.search(text)
    full = (len(run[0]) - 1) // WIDE_RUN if run else 0
    return run.start() + full * WIDE_RUN if run and full else 0


def _english(page: Plain, names: Pronunciations) -> list[tuple[str, int, int]]:
    """Return spoken words with their places, a space before each; words of one written expression are joined."""
    groups = itertools.groupby(words_of(page, names), key=lambda word: word.start)
    found = ((start, list(group)) for start, group in groups)
    return [("".join(f" {word.text}" for word in words), start, words[-1].end) for start, words in found]


def _as_it_stands(page: Plain, names: Pronunciations, *, spaced: bool) -> list[tuple[str, int, int]]:
    """Return the words of a text with their places. A word keeps the space before it; `spaced`: the first has one."""
    words: list[tuple[str, int, int]] = []
    for found in _AS_IT_STANDS.finditer(page.text):
        before = page.text[found.start() - 1].isspace() if found.start() else spaced
        place = page.origin[found.start()], page.origin[found.end() - 1] + 1
        word = _respelled(found[0], names)
        words.append((f" {word}" if before else word, *place))
    return words


def _respelled(word: str, names: Pronunciations) -> str:
    """Return a word between spaces with the names in it respelled."""
    parts, at = [], 0
    for start, reading in names.find(word):
        parts += [word[at:start], " ".join(reading.words)]
        at = reading.end
    return "".join([*parts, word[at:]])
