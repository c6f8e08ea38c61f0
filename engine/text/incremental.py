"""Text that comes in pieces -> tokens for a voice that reads them, each word tied to the stretch of text it stands for.

Text is read word by word and tokenised word by word, a space before each but the first. A byte-level BPE never joins
what a space parts, so for languages with spaces the tokens are those of the whole text said in one go. In Chinese and
Japanese a word here is what a stop ends, or WIDE_RUN characters; a comma goes with what stands before it, where the
models' own pattern may join it to what follows. What ends in the middle of a word, or of a number, for all one knows,
waits for what comes after it. So it does not matter where pieces were cut, but that what English reads as one in
several words, a date or a price and its unit, has to come in one piece.

English is read as every voice here reads it (spoken.py). Everything else is taken as it stands, less its markup: these
models read their own numbers. Where the language is not told, the first telling word decides for all that follows.
It knows no voice and no sound.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from voxlane.engine.text.normalise.markup import Plain, plain
from voxlane.engine.text.normalise.reader import words_of

MAX_HELD_CHARS = 400
"""Text that waits for the end of its last word; of more only the last word waits, and what is longer is none."""

WIDE_RUN = 24
"""Characters of Chinese or Japanese without a stop that are read together; the last of them wait for more."""

_FIRST_WIDE = 0x2E80  # from here on a character is a syllable or more
_WIDE_WEIGHT = 3.0  # letters that such a character takes as long as
_STOP = "，。！？、；："
# Without Hangul: Korean has spaces.
_WIDE = rf"(?![{_STOP}])[\u2e80-\u312f\u3190-\ua95f\uf900-\ufaff\ufe30-\uff9f\U00020000-\U0003ffff]"
_WIDE_END = re.compile(rf"(?:{_WIDE})+\Z")
_WHOLE = re.compile(rf"(?:[\s;!?…{_STOP}]|(?<![0-9])[.,:])\Z")  # the stop after a figure may be a number's own
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
"""Words of which one tells English, or another language that a voice here speaks. None of them is written in both:
"die", "um", "den", "la", "un" or "em", as in L.A., the UN and "get 'em", tell nothing."""


@dataclass(frozen=True, slots=True)
class Said:
    """A word: the text's [start:end], what is read of it, and how long that takes to say, in letters."""

    start: int
    end: int
    tokens: tuple[int, ...]
    letters: float
    closes: bool = False  # a sentence


class Reader:
    """Reads one request's text. `language` is a model's name for it, "auto" if it is to find out."""

    def __init__(self, encode: Callable[[str], Sequence[int]], language: str) -> None:
        self._encode = encode
        self._english = None if language == "auto" else language == "english"  # None: nothing has told yet
        self._rest = ""
        self._start = 0  # of the rest, in all the text
        self._begun = False
        self._spaced = False  # white space has come since the last word

    def read(self, text: str) -> list[Said]:
        """Take more text; return the words that are whole."""
        text = self._rest + text
        stop = len(text) if _WHOLE.search(text) else _full_runs(text)
        if not stop and len(text) > MAX_HELD_CHARS:
            last = text.rfind(" ", len(text) - MAX_HELD_CHARS)
            stop = last + 1 or len(text)
        self._rest, start = text[stop:], self._start
        self._start += stop
        return self._words(text[:stop], start)

    def finish(self) -> list[Said]:
        """Return what was held back, the text being complete."""
        text, self._rest = self._rest, ""
        return self._words(text, self._start)

    def _words(self, text: str, start: int) -> list[Said]:
        page, said = plain(text), []
        spaced = self._spaced or text[:1].isspace()
        for first, last, english in self._stretches(page.text):
            found = _english(page, first, last) if english else _as_it_stands(page, first, last, spaced=spaced)
            said += [self._said(spoken, start + begin, start + end) for spoken, begin, end in found]
        self._spaced = text[-1:].isspace() if text else self._spaced
        return said

    def _stretches(self, text: str) -> list[tuple[int, int, bool]]:
        """Return which parts of a text are read as English, and which as they stand."""
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
    """Return whether a word is English, None if it may be of any language."""
    core = _CORE.search(word)
    known = core[0].lower().replace("’", "'") if core else ""
    if known in _NOT_ENGLISH or any(char.isalpha() and not char.isascii() for char in word):
        return False
    return True if known in _ENGLISH else None


def _full_runs(text: str) -> int:
    """Return how much of a text without an end can be read: of a long run without a stop all but the last part."""
    run = _WIDE_END.search(text)
    full = (len(run[0]) - 1) // WIDE_RUN if run else 0
    return run.start() + full * WIDE_RUN if run and full else 0


def _english(page: Plain, first: int, last: int) -> list[tuple[str, int, int]]:
    """Return spoken words with their places, a space before each; those of one written word are one."""
    part = Plain(page.text[first:last], page.origin[first:last])
    groups = itertools.groupby(words_of(part), key=lambda word: word.start)
    found = ((start, list(group)) for start, group in groups)
    return [("".join(f" {word.text}" for word in words), start, words[-1].end) for start, words in found]


def _as_it_stands(page: Plain, first: int, last: int, *, spaced: bool) -> list[tuple[str, int, int]]:
    """Return the words in a part of a text with their places; a space before one stays, `spaced` before the first."""
    words: list[tuple[str, int, int]] = []
    for found in _AS_IT_STANDS.finditer(page.text, first, last):
        before = page.text[found.start() - 1].isspace() if found.start() else spaced
        place = page.origin[found.start()], page.origin[found.end() - 1] + 1
        words.append((f" {found[0]}" if before else found[0], *place))
    return words
