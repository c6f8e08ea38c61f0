"""Number words, checked by a parser that is independent of the code that makes them."""

from __future__ import annotations

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from voxlane.engine.text.normalise.numbers import cardinal, decimal, digits, ordinal, pluralise, year

some = settings(max_examples=examples(100))
VALUES = {
    "zero": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9,
    "ten": 10, "eleven": 11, "twelve": 12, "thirteen": 13, "fourteen": 14, "fifteen": 15, "sixteen": 16,
    "seventeen": 17, "eighteen": 18, "nineteen": 19, "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50,
    "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90,
}  # fmt: skip
SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}


def value(words: list[str]) -> int:
    total = group = 0
    for word in words:
        if word in SCALES:
            total, group = total + group * SCALES[word], 0
        elif word == "hundred":
            group *= 100
        else:
            group += sum(VALUES[part] for part in word.split("-"))
    return total + group


@some
@given(st.integers(0, 10**15 - 1))
def test_cardinal_words_mean_their_number(number: int) -> None:
    assert value(cardinal(number)) == number
    assert cardinal(-number - 1)[0] == "minus"


@some
@given(st.integers(0, 10**15 - 1))
def test_ordinal_differs_from_cardinal_in_its_last_word_only(number: int) -> None:
    assert ordinal(number)[:-1] == cardinal(number)[:-1]
    assert ordinal(number)[-1].endswith(("th", "first", "second", "third"))


@some
@given(st.integers(1010, 2099))
def test_year_words_mean_their_year(number: int) -> None:
    words = year(number)
    if "thousand" in words or words[-1] == "hundred":
        assert value(words) == number
    else:
        century, rest = words[:1], [word for word in words[1:] if word != "oh"]
        assert value(century) * 100 + value(rest) == number


@some
@given(st.from_regex(r"[0-9]{1,30}", fullmatch=True))
def test_digits_are_read_one_by_one(text: str) -> None:
    assert "".join(str(VALUES[word]) for word in digits(text)) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1,234.50", "one thousand two hundred thirty-four point five zero"),
        ("0.5", "zero point five"),
        ("00", "zero zero"),
        ("1" * 16, " ".join(["one"] * 16)),
    ],
)
def test_decimal_reads_what_is_written(text: str, words: str) -> None:
    assert decimal(text) == words.split()


@pytest.mark.parametrize(("one", "many"), [("ninety", "nineties"), ("third", "thirds"), ("six", "sixes")])
def test_plurals(one: str, many: str) -> None:
    assert pluralise(one) == many
