"""Entries that say how names are said: what they mean, and which are refused."""

from __future__ import annotations

import json
from contextlib import suppress
from importlib import resources

import hibari
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from voxlane.engine.api import MAX_PRONUNCIATIONS, BadPronunciation, Pronunciation, has_phonemes, read_pronunciations
from voxlane.engine.api.pronunciations import PHONEMES


@pytest.mark.parametrize(
    ("entry", "meaning"),
    [
        ("Siobhan = shiv-awn", Pronunciation("Siobhan", "shiv-awn")),
        ("  Siobhan=shi-VAWN ", Pronunciation("Siobhan", "shi-vawn")),
        ("SQL = sequel", Pronunciation("SQL", "sequel")),
        ("GmbH = G M B H", Pronunciation("GmbH", "G M B H")),
        ("Saoirse Ronan = SEER-sha ROH-nan", Pronunciation("Saoirse Ronan", "seer-sha roh-nan")),
        ("D'Arcy = dar see", Pronunciation("D'Arcy", "dar see")),
        ("R2-D2 = artoo detoo", Pronunciation("R2-D2", "artoo detoo")),
        ("Siobhan = /ʃɪˈvɔːn/", Pronunciation("Siobhan", phonemes="ʃɪvˈɔːn")),
        ("Niamh = /niːv/", Pronunciation("Niamh", phonemes="nˈiːv")),
        ("George = /dʒɔːrdʒ/", Pronunciation("George", phonemes="ʤˈɔːɹʤ")),
        ("Mainz = /maɪnts/", Pronunciation("Mainz", phonemes="mˈInts")),
        ("Joan = /'dʒoʊn/", Pronunciation("Joan", phonemes="ʤˈOn")),
        ("Gough = /gɒf/", Pronunciation("Gough", phonemes="ɡˈɒf")),
    ],
)
def test_an_entry(entry: str, meaning: Pronunciation) -> None:
    assert read_pronunciations([entry]) == (meaning,)


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        (["Siobhan"], "write it as"), (["= shiv"], "write it as"), (["Siobhan ="], "write it as"),
        (["Siobhan = //"], "between two slashes"), (["Siobhan = /ʃɪv"], "between two slashes"),
        (["Siobhan = /ʃ8v/"], "no phoneme for character 2 after the slash"), (["Siobhan = /ʃv/"], "without a vowel"),
        (["Siobhan = shiv awn!"], "letters, hyphens"), (["Siobhan = 42"], "letters, hyphens"),
        (["*x* = ex"], "begins and ends with"), (["x" * 61 + " = ex"], "at most 60 characters before"),
        (["x = " + "e" * 121], "at most 60 characters before the = and 120"),
        (["Ada = ayda", "ADA = adda"], "entry 2: the same name as in entry 1"),
        ([f"n{number} = x" for number in range(MAX_PRONUNCIATIONS + 1)], "at most 100 entries, not 101"),
    ],
)  # fmt: skip
def test_what_is_refused(entries: list[str], reason: str) -> None:
    with pytest.raises(BadPronunciation, match=reason) as refused:
        read_pronunciations(entries)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 260


def test_a_refusal_names_the_place_and_holds_nothing_of_the_entry() -> None:
    for bad in (
        "SECRET",
        "SECRET = /SECRET",
        "SECRET = /ʃ8v/",
        "SECRET = 42",
        "*SECRET* = ex",
        "SECRET" * 11 + " = ex",
    ):
        with pytest.raises(BadPronunciation, match=r"^entry 3: ") as refused:
            read_pronunciations(["Ada = ayda", "Niamh = neev", bad, "x"])
        assert "SECRET" not in str(refused.value)
    with pytest.raises(BadPronunciation, match=r"^entry 2: ") as refused:
        read_pronunciations(["SECRET = x", "secret = y"])
    assert "secret" not in str(refused.value).lower()


def test_the_voices_know_every_phoneme() -> None:
    vocabulary = json.loads(resources.files(hibari).joinpath("assets", "vocab.json").read_text("utf-8"))
    assert set(PHONEMES) <= set(vocabulary)


def test_which_entries_have_phonemes() -> None:
    assert has_phonemes(["a = b", "c = /niːv/"])
    assert not has_phonemes(["a = b"])


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(st.text(max_size=40) | st.from_regex(r"[A-Za-z]{1,6} ?= ?/?[a-zʃɪˈ]{1,8}/?", fullmatch=True), max_size=4)
)
def test_any_entry_is_read_or_refused(entries: list[str]) -> None:
    found: tuple[Pronunciation, ...] = ()
    with suppress(BadPronunciation):
        found = read_pronunciations(entries)
    for one in found:
        assert bool(one.respelling) != bool(one.phonemes)
        assert set(one.phonemes) <= set(PHONEMES)
        assert not any(char.isdigit() for char in one.respelling)
