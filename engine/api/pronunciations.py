"""How names are to be said: "Siobhan = shiv-awn", or with phonemes, "Siobhan = /ʃɪˈvɔːn/".

The text on the left is what is written. On the right is a respelling in plain letters, or phonemes between slashes. The
phonemes are those of Kokoro (misaki's), or IPA as dictionaries write it, which becomes those.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MAX_PRONUNCIATIONS = 100
MAX_WRITTEN_CHARS = 60
MAX_SAID_CHARS = 120

VOWELS = "AIOQWYaeiouyæɐɑɒɔəɚɛɜɪɨɯʊʌøœɤᵊᵻ"
PHONEMES = VOWELS + "bdfhjklmnpstvwzðŋɡɹɾʃʒʤʧθxçɣɲɳʁχʎβɸɕʝɟɥʋʔTcqɰɴɻɽʂʈɖ" + "ˈˌː" + " "
"""The sounds between slashes, after the changes of _IPA."""

_IPA = (
    ("tʃ", "ʧ"), ("t͡ʃ", "ʧ"), ("dʒ", "ʤ"), ("d͡ʒ", "ʤ"), ("eɪ", "A"), ("aɪ", "I"), ("aʊ", "W"), ("ɔɪ", "Y"),
    ("oʊ", "O"), ("əʊ", "Q"), ("r", "ɹ"), ("g", "ɡ"), ("ɝ", "ɜɹ"), ("ɚ", "əɹ"), ("'", "ˈ"), ("’", "ˈ"), (":", "ː"),
    (".", ""), ("‿", ""), ("\u0361", ""), ("\u0329", "ᵊ"),
)  # fmt: skip
"""IPA and common stand-ins -> the voices' phonemes."""

_STRESS = re.compile(rf"([ˈˌ])([^{VOWELS}ˈˌ ]+)(?=[{VOWELS}])")
_VOWEL = re.compile(f"[{VOWELS}]")
_RESPELLING = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
_WRITTEN = re.compile(r"\w(?:[\w .'’&+-]*[\w.+])?")


class BadPronunciation(ValueError):
    """An entry cannot be used: str() says which and why in one line, and holds nothing of it."""


@dataclass(frozen=True, slots=True)
class Pronunciation:
    """One name, and its respelling or its phonemes; the other is empty."""

    written: str
    respelling: str = ""
    phonemes: str = ""


def read_pronunciations(entries: Sequence[str]) -> tuple[Pronunciation, ...]:
    """Return the entries' meaning, or raise BadPronunciation."""
    if len(entries) > MAX_PRONUNCIATIONS:
        raise BadPronunciation(f"at most {MAX_PRONUNCIATIONS} entries, not {len(entries)}")
    found = []
    places: dict[str, int] = {}  # by name: where its entry stands, from 1
    for place, entry in enumerate(entries, start=1):
        try:
            one = _read(entry)
        except BadPronunciation as error:
            raise BadPronunciation(f"entry {place}: {error}") from None
        key = " ".join(one.written.casefold().replace("’", "'").split())
        if places.setdefault(key, place) != place:
            raise BadPronunciation(f"entry {place}: the same name as in entry {places[key]}")
        found.append(one)
    return tuple(found)


def has_phonemes(entries: Iterable[str]) -> bool:
    """Return whether one of some valid entries gives phonemes."""
    return any(entry.partition("=")[2].strip().startswith("/") for entry in entries)


def _read(entry: str) -> Pronunciation:
    written, equals, said = (part.strip() for part in unicodedata.normalize("NFC", entry).partition("="))
    if not (equals and written and said):
        raise BadPronunciation("write it as 'Siobhan = shiv-awn' or 'Siobhan = /ʃɪˈvɔːn/'")
    if len(written) > MAX_WRITTEN_CHARS or len(said) > MAX_SAID_CHARS:
        limits = f"{MAX_WRITTEN_CHARS} characters before the = and {MAX_SAID_CHARS} after it"
        raise BadPronunciation(f"at most {limits}")
    if not _WRITTEN.fullmatch(written):
        raise BadPronunciation("a name begins and ends with a letter or a digit")
    if said.startswith("/"):
        return Pronunciation(written, phonemes=_phonemes(said))
    words = said.replace("’", "'").split()
    if not all(_RESPELLING.fullmatch(word) for word in words):
        raise BadPronunciation("a respelling has letters, hyphens, apostrophes and spaces only")
    return Pronunciation(written, " ".join(map(_without_shouting, words)))


def _without_shouting(word: str) -> str:
    """Return a word of a respelling with stressed parts in small letters: a voice spells capitals."""
    parts = re.split("(-)", word)
    return "".join(part.lower() if len(part) > 1 and part.isupper() else part for part in parts)


def _phonemes(said: str) -> str:
    if len(said) < 3 or not said.endswith("/"):
        raise BadPronunciation("phonemes stand between two slashes, as /ʃɪˈvɔːn/")
    sounds = unicodedata.normalize("NFD", said[1:-1].strip())
    for ipa, ours in _IPA:
        sounds = sounds.replace(ipa, ours)
    sounds = " ".join(unicodedata.normalize("NFC", sounds).split())
    if unknown := set(sounds) - set(PHONEMES):
        places = [f"character {place} after the slash" for place, sound in enumerate(said) if sound in unknown]
        raise BadPronunciation(f"the voices have no phoneme for {places[0] if places else 'one of the characters'}")
    if not any(sound in VOWELS for sound in sounds):
        raise BadPronunciation("phonemes without a vowel cannot be said")
    return " ".join(map(_stressed, sounds.split()))


def _stressed(word: str) -> str:
    """Return a word with stress as the voices know it: before the vowel, and at the first one if none is marked.

    Dictionaries mark the syllable, and leave the only one of a short name unmarked.
    """
    if "ˈ" not in word and "ˌ" not in word:
        return _VOWEL.sub(r"ˈ\g<0>", word, count=1)
    return _STRESS.sub(r"\2\1", word)
