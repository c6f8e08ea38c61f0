"""English text -> the words that a voice says. Each word keeps its place in the source.

Numbers, dates, money, addresses, abbreviations and symbols become words; Markdown, code blocks, HTML and emoji are not
read. The result holds only letters and prosodic punctuation, so that a voice's own text rules have nothing to change.
It does not know voices or audio, and no phonemes but those of the letter A and those that a person gives for a name.

    markup                      source -> plain text, and the place of each character in the source
    addresses, codes, dates,    readers: a position in plain text -> the end of an expression, and its words
    money, names, quantities,
    telephone
    pronunciations              how a person wants names to be said
    context, numbers, tables    what stands beside an expression; number words; the tables of the readers
"""

from __future__ import annotations

import unicodedata
from collections import deque
from dataclasses import dataclass

from voxlane.engine.text.normalise.addresses import ADDRESS_READERS, read_file, read_path
from voxlane.engine.text.normalise.codes import DIGIT_CODE_READERS, EARLY_DIGIT_CODE_READERS, read_hash
from voxlane.engine.text.normalise.dates import DATE_READERS
from voxlane.engine.text.normalise.markup import Plain, plain
from voxlane.engine.text.normalise.names import NAME_READERS
from voxlane.engine.text.normalise.numbers import Reader, Reading, cardinal, digits
from voxlane.engine.text.normalise.pronunciations import NO_PRONUNCIATIONS, Pronunciations
from voxlane.engine.text.normalise.quantities import JOINED_READERS, QUANTITY_READERS, read_quantity
from voxlane.engine.text.normalise.tables import SYMBOLS
from voxlane.engine.text.normalise.telephone import TELEPHONE_READERS

_STOPS = {
    ".": ".",
    "!": "!",
    "?": "?",
    "…": "…",
    ",": ",",
    ";": ";",
    ":": ":",
    "。": ".",
    "，": ",",
    "！": "!",
    "？": "?",
}
_LETTER_A = "ˈA"
"""The phonemes of the name of the letter. Without them a lexicon takes "A" for the article."""

_STRENGTH = {"": 0, "—": 1, ",": 1, ":": 2, ";": 2, "…": 3, ".": 3, "!": 4, "?": 4}
_DASHES = "-–—―‒−"
_SIGNS = "$£€¥₹₩"
_SIGN_STARTS = f"{_SIGNS}+("
_NUMBER_READERS: tuple[Reader, ...] = (
    *DATE_READERS, *EARLY_DIGIT_CODE_READERS, *ADDRESS_READERS, *TELEPHONE_READERS, *DIGIT_CODE_READERS, read_file,
    *QUANTITY_READERS, read_quantity,
)  # fmt: skip
_SIGNED_READERS: tuple[Reader, ...] = (*TELEPHONE_READERS, *QUANTITY_READERS)


@dataclass(frozen=True, slots=True)
class ReadWord:
    """One spoken word with its punctuation; `source[start:end]` is its written form.

    `phonemes`, if there are any, are its sound; the punctuation in `text` stays.

    Words of one expression have the same start, and the last may end later, with punctuation. Otherwise spans are in
    order and do not overlap. `text` holds no space.
    """

    text: str
    start: int
    end: int
    phonemes: str = ""


def spoken_words(text: str, names: Pronunciations = NO_PRONUNCIATIONS) -> list[ReadWord]:
    """Return the words to say, in order; none for a text that is only emoji, symbols or code."""
    return words_of(plain(text), names)


def words_of(page: Plain, names: Pronunciations = NO_PRONUNCIATIONS) -> list[ReadWord]:
    """Return the words to say of a text without markup, or of a part of one."""
    if not any(char.isalnum() for char in page.text):
        return []
    return _Scan(page, names).run()


def speakable(text: str) -> str:
    """Return the words to say, a single space between any two."""
    return " ".join(word.text for word in spoken_words(text))


class _Scan:
    """One pass over plain text."""

    def __init__(self, page: Plain, names: Pronunciations) -> None:
        self._text = page.text
        self._names = deque(names.find(page.text))  # those at or after `_at`
        self._origin = page.origin
        self._at = 0
        self._opening = ""  # an opening bracket, to be put before the next word
        self._words: list[str] = []
        self._spans: list[tuple[int, int]] = []
        self._phonemes: list[str] = []

    def run(self) -> list[ReadWord]:
        while self._at < len(self._text):
            char = self._text[self._at]
            if (name := self._name_here()) is not None:
                self._say(name)
            elif char == "\n":
                self._stop(".", only_if_none=True)
                self._at += 1
            elif char.isspace():
                self._at += 1
            elif char.isalpha():
                self._ask(NAME_READERS)
            elif self._starts_number(char):
                joined = _is_digit(char) and self._peek(-1).isalpha()
                self._ask(JOINED_READERS if joined else _NUMBER_READERS)
            else:
                self._symbol(char)
        found = zip(self._words, self._spans, self._phonemes, strict=True)
        return [ReadWord(word, start, end, phonemes) for word, (start, end), phonemes in found]

    def _name_here(self) -> Reading | None:
        """Return the reading of a name that begins here, if it is not the beginning of an address."""
        while self._names and self._names[0][0] < self._at:
            self._names.popleft()
        if not self._names or self._names[0][0] > self._at:
            return None
        _, reading = self._names.popleft()
        address = next(filter(None, (reader(self._text, self._at) for reader in (*ADDRESS_READERS, read_file))), None)
        return address if address and address.end > reading.end else reading

    def _ask(self, readers: tuple[Reader, ...]) -> None:
        for reader in readers:
            if reading := reader(self._text, self._at):
                self._say(self._before_name(reader, reading))
                return
        raise AssertionError(f"no reader for U+{ord(self._text[self._at]):04X}")

    def _before_name(self, reader: Reader, reading: Reading) -> Reading:
        """Return a reading that ends before the hyphen before a name: "Anne-Siobhan" is two words then."""
        start = self._names[0][0] if self._names else len(self._text)
        if start < reading.end and self._text[start - 1] in "-‑" and start - 1 > self._at:
            return reader(self._text[: start - 1], self._at) or reading
        return reading

    def _say(self, reading: Reading) -> None:
        span = (self._origin[self._at], self._origin[reading.end - 1] + 1)
        for word in reading.words:
            letter = _LETTER_A if reading.spelled and word.rstrip(",").upper() == "A" else ""
            self._words.append(self._opening + word)
            self._spans.append(span)
            self._phonemes.append(reading.phonemes or letter)
            self._opening = ""
        self._at = reading.end

    def _peek(self, offset: int) -> str:
        at = self._at + offset
        return self._text[at] if 0 <= at < len(self._text) else ""

    def _starts_number(self, char: str) -> bool:
        if _is_digit(char):
            return True
        return char in _SIGN_STARTS and any(reader(self._text, self._at) for reader in _SIGNED_READERS)

    def _symbol(self, char: str) -> None:
        following, before = self._peek(1), self._peek(-1)
        if char in "#/~.\\" and (reading := read_hash(self._text, self._at) or read_path(self._text, self._at)):
            self._say(reading)
        elif char in _DASHES:
            self._dash(char)
        elif char == "." and _is_digit(following) and not before.isalnum():
            self._say(Reading(self._at + 1, ["point"]))
            end = self._at
            while end < len(self._text) and _is_digit(self._text[end]):
                end += 1
            self._say(Reading(end, digits(self._text[self._at : end])))
        elif char in _STOPS:
            if self._text.startswith("...", self._at):
                char = "…"
            self._stop(_STOPS[char])
            self._at += 1
        elif char == "(":
            self._opening = "("
            self._at += 1
        elif char == ")":
            self._close()
        else:
            self._say(Reading(self._at + 1, self._symbol_words(char, before, following)))

    def _symbol_words(self, char: str, before: str, following: str) -> list[str]:
        if char == "#":
            return ["sharp"] if before in ("C", "F") else ["hashtag"] if following.isalpha() else []
        if char == "~":
            return ["about"] if _is_digit(following) else []
        if char == "/":
            return []
        if char == "^":
            return ["to", "the"] if following.isalnum() and before.isalnum() else []
        if char in "<>":
            # The head of an arrow, a stray tag or a quotation mark is not a comparison.
            if before == "=":
                return ["to"]
            spaced = before in ("", " ") and following in ("", " ")
            return SYMBOLS[char].split() if spaced or _is_digit(following) else []
        if char == "=" and (before == "=" or following == ">"):
            return []
        if char in SYMBOLS:
            return SYMBOLS[char].split()
        number = unicodedata.numeric(char, 0.5)  # not a number: treated like a fraction
        return cardinal(int(number)) if number.is_integer() else digits(unicodedata.normalize("NFKC", char))

    def _dash(self, char: str) -> None:
        before, following = self._peek(-1), self._peek(1)
        open_before = before == "" or before in " \n(" or before in _DASHES
        figure = _is_digit(following) or (following != "" and following in _SIGNS)
        if char in "-–−" and figure and (before == "" or before in " \n(=,±<>:+×÷"):
            self._say(Reading(self._at + 1, ["minus"]))
        elif following == ">":
            self._say(Reading(self._at + 2, ["to"]))
        elif figure and not open_before and (char == "–" or not before.isalnum()):
            self._say(Reading(self._at + 1, ["to"]))
        else:
            if char in "—―" or (open_before and (following == "" or following in " \n" or following in _DASHES)):
                self._stop("—")
            self._at += 1

    def _stop(self, stop: str, *, only_if_none: bool = False) -> None:
        """Add punctuation to the last word; a stronger mark replaces a weaker one."""
        if not self._words:
            return
        word = self._words[-1]
        present = word[-1] if word[-1] in _STRENGTH else ""
        if (only_if_none and present) or _STRENGTH[stop] <= _STRENGTH[present]:
            return
        self._words[-1] = word.removesuffix(present) + stop if present else word + stop
        self._extend()

    def _close(self) -> None:
        if self._words and not self._opening:
            self._words[-1] += ")"
            self._extend()
        self._opening = ""
        self._at += 1

    def _extend(self) -> None:
        if self._text[self._at] != "\n":
            start, _ = self._spans[-1]
            self._spans[-1] = (start, self._origin[self._at] + 1)


def _is_digit(char: str) -> bool:
    return "0" <= char <= "9" and char != ""
