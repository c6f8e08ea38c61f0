"""Words to phonemes as hibari's library has them, bit for bit, for less of its time.

The library reads a whole clause at once. But how it reads a word depends only on the word, on the part of speech of
each of its tokens, and on two properties of the word after it. So it is given each word alone, and what it said is
kept, if a lexicon has the word. Words that only a network can read, such as names, are read anew each time, so that
nobody can tell by the time of a clause that another person said one. Parts of speech depend on the words around: they
are found anew in each clause, from the library's weights.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import numpy as np
from hibari.g2p.tagger import END, START, context, features
from hibari.g2p.token import Tok

from voxlane.engine.text.normalise.reader import ReadWord

Found = TypeVar("Found")

KEPT_WORDS, KEPT_CHARS = 16384, 40
"""How many words are kept, some 600 bytes each, and the longest of them. The least recently used goes first."""

_PAUSES_S = {**dict.fromkeys(".!?…", 0.35), **dict.fromkeys(",;:—", 0.15)}
_NO_PAUSE_S = 0.05
"""Silence kept after the last sound, by the clause's last punctuation, as between words of one sentence. The networks
always leave 0.5 s, which breaks a sentence of several clauses."""

_LETTER_AND_STOP = re.compile(r"\(?[A-Za-z]\.")
_SILENT_PHONEMES = frozenset(' ;:,.!?—…"“”()')


def kept(function: Callable[..., Found]) -> Callable[..., Found]:
    """Return a function of a word that works out each word once, as long as the word is kept."""
    kept_function = lru_cache(KEPT_WORDS)(function)

    def found(word: str, *more: Any) -> Found:
        return (kept_function if len(word) <= KEPT_CHARS else function)(word, *more)

    return found


class WordAfter(NamedTuple):
    """What the reading of a word depends on in the word after it."""

    vowel: bool | None = None  # it begins with a vowel; None: a pause comes first
    to: bool = False  # it is the word "to"


@dataclass(frozen=True, slots=True)
class WordSound:
    """A word's phonemes, with its punctuation."""

    ids: tuple[int, ...]
    first: int  # where the punctuation before the word ends
    last: int  # where that after it begins
    pause_s: float  # after it, if it is the last of its clause
    as_after: WordAfter  # what the word before it sees


class _UnknownWord(Exception):
    """No lexicon has the word."""


class WordReader:
    """Reads the words of clauses in one accent."""

    def __init__(self, library: Any, vocabulary: dict[str, int], *, british: bool) -> None:
        self._library, self._vocabulary, self._british = library, vocabulary, british
        self._stop = vocabulary["."]
        self._tags = Tagger(library.tagger)
        self._split = kept(library.tokenizer.split)
        self._read_known = kept(self._read_from_lexicon)

    def warm_up(self) -> None:
        """Load what reads unknown words."""
        self._library.oov("voxlane")

    def read(self, words: Sequence[ReadWord]) -> list[WordSound]:
        """Return each word's sound. Words hold letters and prosodic punctuation only."""
        tokens = [self._split(word.text) for word in words]
        tags = self._tags(list(chain.from_iterable(tokens)))
        sounds, after, end = [], WordAfter(), len(tags)
        for word, of_word in zip(reversed(words), reversed(tokens), strict=True):
            begin = end - len(of_word)
            sound = self._sound(word, tuple(tags[begin:end]), after)
            sounds.append(sound)
            after, end = sound.as_after, begin
        sounds.reverse()
        if _LETTER_AND_STOP.fullmatch(words[-1].text) and sounds[-1].ids[-1:] != (self._stop,):
            # The library takes "B." for an initial.
            sounds[-1] = replace(sounds[-1], ids=(*sounds[-1].ids, self._stop), pause_s=_PAUSES_S["."])
        return sounds

    def _sound(self, word: ReadWord, tags: tuple[str, ...], after: WordAfter) -> WordSound:
        if not word.phonemes:  # else it is a name
            try:
                return self._read_known(word.text, tags, after)
            except _UnknownWord:
                pass
        return self._read_alone(self._library, word.text, tags, after, word.phonemes)

    def _read_from_lexicon(self, text: str, tags: tuple[str, ...], after: WordAfter) -> WordSound:
        library = copy.copy(self._library)
        library._oov = _refuse
        return self._read_alone(library, text, tags, after)

    def _read_alone(
        self, library: Any, text: str, tags: tuple[str, ...], after: WordAfter, given: str = ""
    ) -> WordSound:
        tokens = [Tok(token, tag) for token, tag in zip(self._split(text), tags, strict=True)]
        tokens[-1].whitespace = " "
        if given:
            _give_phonemes(tokens, given, british=self._british)
        contexts: list[Any] = []  # that the library had; the last is that of the word before this one

        def noted(*seen: Any) -> Any:
            contexts.append(type(library).token_context(*seen))
            return contexts[-1]

        library = copy.copy(library)  # another thread may read another word
        library.token_context = noted
        *read, _ = library.phonemize_tokens([*tokens, _stand_in(after)])
        phonemes = [one for token in read for one in token.phonemes or "" if one in self._vocabulary]
        sounds = [place for place, phoneme in enumerate(phonemes) if phoneme not in _SILENT_PHONEMES]
        return WordSound(
            tuple(self._vocabulary[phoneme] for phoneme in phonemes),
            *((sounds[0], sounds[-1] + 1) if sounds else (0, 0)),
            next((_PAUSES_S[mark] for mark in reversed(phonemes) if mark in _PAUSES_S), _NO_PAUSE_S),
            WordAfter(contexts[-1].future_vowel, contexts[-1].future_to),
        )


def _refuse(word: str) -> str:
    raise _UnknownWord


def _stand_in(after: WordAfter) -> Any:
    """Return a token with phonemes of its own, which is to the word before it what the word after it was."""
    return Tok("to" if after.to else "-", "NN", phonemes={None: "", True: "a", False: "b"}[after.vowel])


def _give_phonemes(tokens: Sequence[Any], given: str, *, british: bool) -> None:
    """Set the phonemes of a word's tokens before the library looks for them; punctuation stays the library's."""
    said = False
    for token in tokens:
        if (said or any(map(str.isalnum, token.text))) and not _SILENT_PHONEMES.issuperset(token.text):
            stop = token.text[len(token.text.rstrip(".,;:!?…—")) :]  # "A." is one token
            token.phonemes, token.rating, said = ("" if said else _in_accent(given, british)) + stop, 5, True


def _in_accent(phonemes: str, british: bool) -> str:
    """Return phonemes as an accent has them: American English knows no length, no "ɒ" and no "əʊ"."""
    if british:
        return phonemes.replace("O", "Q")
    return phonemes.replace("ː", "").replace("ɒ", "ɑ").replace("Q", "O")


class Tagger:
    """The library's perceptron. Its weights are tenths, which are added as whole numbers."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._known = kept(lambda word: context([word], library.vocab)[len(START)])
        self._rows = {feature: row for row, feature in enumerate(library.weights)}
        columns = {tag: column for column, tag in enumerate(library.tags)}
        self._tenths = np.zeros((len(self._rows) + 1, len(columns)), np.int16)  # the last row: an unknown feature; 8 MB
        rows = list(library.weights.values())
        self._tenths[
            np.repeat(np.arange(len(rows)), [len(row) for row in rows]),
            [columns[tag] for row in rows for tag in row],
        ] = [round(10 * weight) for row in rows for weight in row.values()]

    def __call__(self, tokens: Sequence[str]) -> list[str]:
        """Return the part of speech of each token of a clause."""
        known = [*START, *map(self._known, tokens), *END]
        before, last = START
        tags: list[str] = []
        for place, token in enumerate(tokens):
            tag = self._library.tagdict.get(token)
            if tag is None:
                tag = self._choose(features(place, token, known, last, before))
            tags.append(tag)
            before, last = last, tag
        return tags

    def _choose(self, found: Sequence[str]) -> str:
        rows = [self._rows.get(feature, -1) for feature in found]
        sums = np.add.reduce(self._tenths.take(rows, 0), dtype=np.int16)
        first, last = sums.argmax(), len(sums) - 1 - sums[::-1].argmax()
        # The library's sums are not exact: where two are the largest, it depends on how they were rounded.
        tag: str = self._library.tags[first] if first == last else self._library.predict(found)
        return tag
