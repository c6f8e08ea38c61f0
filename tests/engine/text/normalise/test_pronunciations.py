"""Names that are said as a person wants: where an entry applies, and the places of its words."""

from __future__ import annotations

from functools import cache

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from voxlane.engine.models.synthesis import Phonemiser
from voxlane.engine.text.normalise.pronunciations import pronunciations_of
from voxlane.engine.text.normalise.reader import spoken_words

ENTRIES = (
    "Siobhan = shiv-awn", "Saoirse Ronan = seer-sha roh-nan", "Niamh = /niːv/", "GmbH = G M B A", "D'Arcy = dar-see",
)  # fmt: skip
NAMES = pronunciations_of(ENTRIES)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("Siobhan", "shiv-awn"), ("SIOBHAN and siobhan!", "shiv-awn and shiv-awn!"),
        ("Siobhan's cat", "shiv-awn's cat"), ("Siobhan’s cat", "shiv-awn's cat"),
        ("(Siobhan), **Siobhan**, 'Siobhan'", "(shiv-awn), shiv-awn, shiv-awn"),
        ("Siobhan-Marie and Anne-Siobhan", "shiv-awn Marie and Anne shiv-awn"),
        ("Siobhans, Siobhanette and Asiobhan", "Siobhans, Siobhanette and Asiobhan"),
        ("siobhan@example.com", "siobhan at example dot com"), ("siobhan.pdf", "siobhan dot PDF"),
        ("/home/siobhan/x", "slash home slash siobhan slash x"), ("saoirse\nronan", "seer-sha roh-nan"),
        ("Saoirse is not Ronan", "Saoirse is not Ronan"), ("D’Arcy and d'arcy's", "dar-see and dar-see's"),
        ("#Siobhan", "hashtag shiv-awn"), ("Siobhan 911 Siobhan", "shiv-awn nine hundred eleven shiv-awn"),
    ],
)  # fmt: skip
def test_where_an_entry_applies(written: str, said: str) -> None:
    assert " ".join(word.text for word in spoken_words(written, NAMES)) == said


def test_words_keep_the_place_of_the_written_name() -> None:
    text = "So **Siobhan's** cat saw Saoirse Ronan, and Niamh."
    assert [(word.text, text[word.start : word.end], word.phonemes) for word in spoken_words(text, NAMES)] == [
        ("So", "So", ""), ("shiv-awn's", "Siobhan's", ""), ("cat", "cat", ""), ("saw", "saw", ""),
        ("seer-sha", "Saoirse Ronan", ""), ("roh-nan,", "Saoirse Ronan,", ""), ("and", "and", ""),
        ("Niamh.", "Niamh.", "nˈiːv"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("phonemes", "own"), [("niːv", "nˈiːvz"), ("ʤɔːɹʤ", "ʤˈɔːɹʤᵻz"), ("mæt", "mˈæts"), ("ɹˈuθ", "ɹˈuθs")]
)
def test_the_possessive_sounds_right(phonemes: str, own: str) -> None:
    names = pronunciations_of((f"Nemo = /{phonemes}/",))
    assert [word.phonemes for word in spoken_words("Nemo's", names)] == [own]


phonemiser = cache(Phonemiser)


def phonemes_of(text: str, *entries: str, british: bool = False) -> list[tuple[str, str]]:
    """Return each word of the source with its phonemes."""
    reader = phonemiser()
    signs = {number: sign for sign, number in reader._ids.items()}
    prepared = reader.prepare(text, 510, british=british, names=pronunciations_of(entries))
    return [
        (text[word.source_start : word.source_end], "".join(signs[one] for one in prepared.ids[word.first : word.last]))
        for word in prepared.words
    ]


def test_a_voice_says_the_phonemes_in_its_accent() -> None:
    entry = "Siobhan = /ʃɪˈvɔːn/"
    assert ("Siobhan", "ʃɪvˈɔn") in phonemes_of("Ask Siobhan again.", entry)
    assert ("Siobhan", "ʃɪvˈɔːn") in phonemes_of("Ask Siobhan again.", entry, british=True)
    assert ("Siobhan's", "ʃɪvˈɔnz") in phonemes_of("It is Siobhan's turn.", entry)


def test_other_words_keep_their_phonemes() -> None:
    plain, named = (phonemes_of("I saw Siobhan there, again.", *entries) for entries in ((), ("Siobhan = /niːv/",)))
    assert [word for word in plain if word[0] != "Siobhan"] == [word for word in named if word[0] != "Siobhan"]
    assert dict(named)["Siobhan"] == "nˈiv"
    assert dict(plain)["Siobhan"] != "nˈiv"


def test_the_letter_a_is_said_by_its_name() -> None:
    assert phonemes_of("Take plan A.")[-1] == ("A.", "ˈA")
    assert dict(phonemes_of("gate A12"))["A"] == "ˈA"
    assert dict(phonemes_of("a GmbH", *ENTRIES))["GmbH"].endswith("ˈA")
    assert dict(phonemes_of("A dog"))["A"] != "ˈA"


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(
        st.sampled_from(
            ["Siobhan", "Niamh's", "Saoirse Ronan", "a", "12", "-", "'s", ".", "@x.com", "**", "\n", "Anne"]
        ),
        max_size=10,
    ),
    st.sampled_from(["", " "]),
)
def test_any_text_with_names_keeps_its_places(parts: list[str], gap: str) -> None:
    text = gap.join(parts)
    words = spoken_words(text, NAMES)
    last = 0
    for word in words:
        assert 0 <= word.start < word.end <= len(text)
        assert last <= word.end
        last = word.end
    heard = {place for word in words for place in range(word.start, word.end)}
    assert [char for place, char in enumerate(text) if char.isalnum() and place not in heard] == []
