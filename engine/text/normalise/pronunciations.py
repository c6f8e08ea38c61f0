"""How names are said: entries that a person wrote, and where they apply in a text.

An entry matches whole words in any case, and keeps a possessive "'s". It gives a respelling, which a voice reads like
any other word, or phonemes. A name inside an address, a path or a file name is part of that and is not changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from voxlane.engine.api import Pronunciation, read_pronunciations
from voxlane.engine.text.normalise.numbers import Reading

_OWN = re.compile(r"['’]s(?!\w)")
_BEFORE = r"(?<!\w)(?<!\w['’])"
_AFTER = r"(?=(?:['’]s)?(?!\w|['’]\w))"
_NOT_IN_A_WORD = re.compile(r"[^A-Za-zÀ-ÖØ-öø-ɏ'-]")
_SHARP = tuple("sʃzʒʧʤ")  # after these the possessive is a syllable
_VOICELESS = tuple("ptkfθ")


class Pronunciations:
    """The entries of one request. Empty ones change nothing."""

    def __init__(self, entries: Sequence[Pronunciation] = ()) -> None:
        self._entries = tuple(entries)
        longest = sorted(range(len(entries)), key=lambda index: -len(entries[index].written))
        names = "|".join(f"(?P<n{index}>{_pattern(entries[index].written)})" for index in longest)
        self._names = re.compile(f"{_BEFORE}(?:{names}){_AFTER}", re.IGNORECASE) if entries else None

    def find(self, text: str) -> Iterator[tuple[int, Reading]]:
        """Yield where each name begins, and its reading, in order."""
        for found in self._names.finditer(text) if self._names else ():
            assert found.lastgroup is not None  # every alternative is a group
            own = _OWN.match(text, found.end())
            yield found.start(), self._reading(int(found.lastgroup[1:]), found, own.end() if own else found.end())

    def _reading(self, index: int, found: re.Match[str], end: int) -> Reading:
        entry, own = self._entries[index], end > found.end()
        if entry.phonemes:
            word = _NOT_IN_A_WORD.sub("", re.sub(r"\s", "-", found[0])).strip("-'") or "name"
            return Reading(end, [word + "'s" * own], phonemes=entry.phonemes + _possessive(entry.phonemes) * own)
        words = entry.respelling.split()
        return Reading(end, [*words[:-1], words[-1] + "'s" * own], spelled=any(len(word) == 1 for word in words))


NO_PRONUNCIATIONS = Pronunciations()


@lru_cache(maxsize=64)
def pronunciations_of(entries: tuple[str, ...]) -> Pronunciations:
    """Return the entries of a request, ready for use, or raise BadPronunciation. A session's replies share them."""
    return Pronunciations(read_pronunciations(entries)) if entries else NO_PRONUNCIATIONS


def _pattern(written: str) -> str:
    escaped = re.sub("['’]", "['’]", re.escape(written))
    return r"\s{1,3}".join(escaped.split(r"\ "))


def _possessive(phonemes: str) -> str:
    """Return the sound of "'s" after a word."""
    last = phonemes.rstrip("ˈˌː")
    return "ᵻz" if last.endswith(_SHARP) else "s" if last.endswith(_VOICELESS) else "z"
