"""Written text and its spoken words: a table for each kind of expression, and laws for every text."""

from __future__ import annotations

import sys
import unicodedata
from itertools import pairwise

import pytest
from examples import examples, sweep
from hypothesis import given, settings
from hypothesis import strategies as st

from voxlane.engine.text.normalise import tables
from voxlane.engine.text.normalise.names import NAME_READERS
from voxlane.engine.text.normalise.reader import ReadWord, speakable, spoken_words

TABLES: dict[str, list[tuple[str, str]]] = {
    "cardinals": [
        ("0", "zero"),
        ("100", "one hundred"),
        ("305", "three hundred five"),
        ("1,000", "one thousand"),
        ("1,234,567", "one million two hundred thirty-four thousand five hundred sixty-seven"),
        ("10000", "ten thousand"),
        ("-5 and −3", "minus five and minus three"),
        ("it is (-5)", "it is (minus five)"),
        ("007", "zero zero seven"),
        ("1234567890123456", "one two three four, five six seven eight, nine zero one two, three four five six"),
        ("10, 20, 30", "ten, twenty, thirty"),
        ("I have 5. Then", "I have five. Then"),
        ("3 million people", "three million people"),
        ("135M or 7B or 10k", "one hundred thirty-five million or seven billion or ten thousand"),
    ],
    "decimals": [
        ("3.14", "three point one four"),
        ("3.0", "three point zero"),
        (".5", "point five"),
        ("1,234.50", "one thousand two hundred thirty-four point five zero"),
        ("-0.5", "minus zero point five"),
        ("2.5e-3", "two point five times ten to the minus three"),
        ("10^6", "ten to the six"),
    ],
    "ordinals": [
        ("1st", "first"),
        ("22nd", "twenty-second"),
        ("11th", "eleventh"),
        ("1,000th", "one thousandth"),
    ],
    "years": [
        ("in 1905", "in nineteen oh five"),
        ("in 1999", "in nineteen ninety-nine"),
        ("in 1900", "in nineteen hundred"),
        ("in 2000", "in two thousand"),
        ("in 2005", "in two thousand five"),
        ("in 2026", "in twenty twenty-six"),
        ("the 1980s", "the nineteen eighties"),
        ("the '80s", "the eighties"),
        ("a 30s wait", "a thirty seconds wait"),
        ("1500 people", "one thousand five hundred people"),
        ("2048 bytes", "two thousand forty-eight bytes"),
        ("2019 was", "twenty nineteen was"),
    ],
    "ranges": [
        ("5-10", "five to ten"),
        ("5–10 km", "five to ten kilometers"),
        ("10 - 20", "ten to twenty"),
        ("1990-1995", "nineteen ninety to nineteen ninety-five"),
        ("10–20%", "ten to twenty percent"),
        ("5%-10%", "five percent to ten percent"),
        ("$5-10", "five to ten dollars"),
        ("10 - 3 = 7", "ten minus three equals seven"),
        ("3:1", "three to one"),
        ("1-2-3", "one two three"),
    ],
    "fractions": [
        ("1/2", "one half"),
        ("3/4", "three quarters"),
        ("2/3", "two thirds"),
        ("5/8", "five eighths"),
        ("1 1/2 cups", "one and one half cups"),
        ("2½", "two and one half"),
        ("¼", "one quarter"),
        ("8/10", "eight out of ten"),
        ("24/7", "twenty-four seven"),
        ("7/200", "seven over two hundred"),
    ],
    "percentages": [
        ("50%", "fifty percent"),
        ("2.5 %", "two point five percent"),
        ("1%", "one percent"),
    ],
    "prices": [
        ("$1.10", "one dollar and ten cents"),
        ("$5", "five dollars"),
        ("$1", "one dollar"),
        ("$0.99", "ninety-nine cents"),
        ("$0.01", "one cent"),
        ("£5", "five pounds"),
        ("£1.01", "one pound and one penny"),
        ("€3.50", "three euros and fifty cents"),
        ("3,50 €", "three euros and fifty cents"),
        ("5 USD", "five US dollars"),
        ("USD 5", "five US dollars"),
        ("¥500", "five hundred yen"),
        ("50¢", "fifty cents"),
        ("-$5", "minus five dollars"),
        ("$3.5 million", "three point five million dollars"),
        ("$1.5M", "one point five million dollars"),
        ("$1,234.56/month", "one thousand two hundred thirty-four dollars and fifty-six cents per month"),
        ("US$5", "five US dollars"),
        ("It costs $20.", "It costs twenty dollars."),
    ],
    "times": [
        ("7:10", "seven ten"),
        ("7:05", "seven oh five"),
        ("7:00", "seven o'clock"),
        ("14:30", "fourteen thirty"),
        ("14:00", "fourteen hundred"),
        ("00:15", "zero fifteen"),
        ("10 a.m. sharp", "ten AM sharp"),
        ("at 10 a.m. Then", "at ten AM. Then"),
        ("10am", "ten AM"),
        ("7:00 pm", "seven PM"),
        ("12:30 P.M.", "twelve thirty PM."),
        ("9:00-17:00", "nine o'clock to seventeen hundred"),
        ("9–5 pm", "nine to five PM"),
        ("13:05:09", "thirteen oh five and nine seconds"),
    ],
    "dates": [
        ("2026-11-15", "November fifteenth, twenty twenty-six"),
        ("2024/1/2", "January second, twenty twenty-four"),
        ("11/15/2026", "November fifteenth, twenty twenty-six"),
        ("15/11/2026", "November fifteenth, twenty twenty-six"),
        ("1/2/99", "January second, nineteen ninety-nine"),
        ("15 Nov", "the fifteenth of November"),
        ("the 15 Nov", "the fifteenth of November"),
        ("3rd of May 1999", "the third of May, nineteen ninety-nine"),
        ("Nov 15, 2026, we", "November fifteenth, twenty twenty-six, we"),
        ("Jan. 5", "January fifth"),
        ("July 4th", "July fourth"),
        ("May 3-5", "May third to fifth"),
        ("May 2024", "May twenty twenty-four"),
        ("2026-11-15T14:30", "November fifteenth, twenty twenty-six at fourteen thirty"),
        ("2026-13-45", "twenty twenty-six thirteen forty-five"),
    ],
    "telephone numbers": [
        ("555-123-4567", "five five five, one two three, four five six seven"),
        ("(555) 123-4567", "five five five, one two three, four five six seven"),
        ("1-800-555-0199", "one, eight zero zero, five five five, zero one nine nine"),
        ("555-1234", "five five five, one two three four"),
        ("+44 20 7946 0958", "plus four four, two zero, seven nine four six, zero nine five eight"),
        ("+15551234567", "plus one, five five five, one two three, four five six seven"),
    ],
    "addresses": [
        ("example.com/docs", "example dot com slash docs"),
        ("https://www.example.org/a-b/?q=1#f.", "example dot org slash a dash b."),
        ("http://localhost:8000", "localhost colon eight zero zero zero"),
        ("bob.smith@example.co.uk", "bob dot smith at example dot co dot UK"),
        ("a_b7@example.com", "a underscore b seven at example dot com"),
        ("<https://example.com>", "example dot com"),
        ("README.md.", "README dot MD."),
        ("Node.js", "Node dot JS"),
        ("192.168.0.1", "one nine two dot one six eight dot zero dot one"),
    ],
    "abbreviations": [
        ("Dr. Smith", "Doctor Smith"),
        ("Mr. and Mrs. Jones", "Mr. and Missus Jones"),
        ("Dr Who", "Doctor Who"),
        ("e.g. this", "for example this"),
        ("i.e. that", "that is that"),
        ("cats, dogs, etc.", "cats, dogs, et cetera."),
        ("etc. The end", "et cetera. The end"),
        ("etc. and so", "et cetera and so"),
        ("cats vs. Dogs", "cats versus Dogs"),
        ("No. 5", "number five"),
        ("No. I won't.", "No. I won't."),
        ("St. Louis", "Saint Louis"),
        ("Baker St. in", "Baker Street in"),
        ("approx. 5", "approximately five"),
        ("Acme Inc. said", "Acme Incorporated said"),
        ("U.S. Army", "US Army"),
        ("Made in the U.S.", "Made in the US."),
        ("a Ph.D. thesis", "a PHD thesis"),
        ("w/o milk", "without milk"),
        ("Fig. 3, pp. 4", "figure three, pages four"),
    ],
    "units": [
        ("5 km", "five kilometers"),
        ("1 km", "one kilometer"),
        ("5-km run", "five kilometer run"),
        ("3.2 GHz", "three point two gigahertz"),
        ("20 °C", "twenty degrees Celsius"),
        ("20 ºC", "twenty degrees Celsius"),
        ("-3°F", "minus three degrees Fahrenheit"),
        ("90°", "ninety degrees"),
        ("5'11\"", "five feet eleven inches"),
        ("6′", "six feet"),
        ("10 m/s", "ten meters per second"),
        ("100 km/h", "one hundred kilometers per hour"),
        ("5 m²", "five square meters"),
        ("30 tok/s", "thirty tokens per second"),
        ("I paid 5 in cash", "I paid five in cash"),
        ("2x faster", "two times faster"),
        ("1920x1080", "one thousand nine hundred twenty by ten eighty"),
        ("4K", "four K"),
    ],
    "acronyms": [
        ("NASA and the FBI", "NASA and the FBI"),
        ("an API", "an API"),
        ("JSON", "Jason"),
        ("STOP SHOUTING", "STOP shouting"),
        ("VOXLANE", "voxlane"),
        ("HTTPS", "HTTPS"),
        ("a PhD", "a PHD"),
        ("xⁿ + yₐ", "x plus y"),
        ("GPT-4", "GPT four"),
        ("MP3", "MP three"),
        ("B2B", "B two B"),
        ("CO₂", "CO two"),
    ],
    "versions": [
        ("v1.2.3", "version one point two point three"),
        ("1.2.3", "one point two point three"),
        ("v2", "version two"),
        ("ver 5", "version five"),
        ("Python 3.11", "Python three point eleven"),
    ],
    "roman numerals": [
        ("World War II", "World War two"),
        ("Chapter IV", "Chapter four"),
        ("Part I", "Part one"),
        ("Henry VIII", "Henry the eighth"),
        ("Louis XIV was", "Louis the fourteenth was"),
        ("Rocky III", "Rocky three"),
        ("an IV drip", "an IV drip"),
        ("I am", "I am"),
        ("Plan C", "Plan C"),
    ],
    "symbols": [
        ("R&D", "R and D"),
        ("2 + 2 = 4", "two plus two equals four"),
        ("2+2=4", "two plus two equals four"),
        ("2 * 3", "two times three"),
        ("6 ÷ 2", "six divided by two"),
        ("#1", "number one"),
        ("#winning", "hashtag winning"),
        ("C# and C++", "C sharp and C plus plus"),
        ("@user", "at user"),
        ("x < y", "x less than y"),
        ("5 > 3", "five greater than three"),
        ("a -> b", "a to b"),
        ("a => b == c", "a to b equals c"),
        ("~20", "about twenty"),
        ("±3", "plus or minus three"),
        ("x²", "x squared"),
        ("Qwen-②, a③b, ❶ or ⑳", "Qwen two, a three b, one or twenty"),
        ("x^2", "x to the two"),
        ("π", "pi"),
        ("cats vs dogs", "cats versus dogs"),
        ("and/or", "and or"),
        ("~ ^ / # here", "here"),
    ],
    "punctuation": [
        ("Wait... what?", "Wait… what?"),
        ("one — two", "one— two"),
        ("one - two", "one— two"),
        ("one -- two", "one— two"),
        ("well-known", "well-known"),
        ("(an aside) here", "(an aside) here"),
        ("() here", "here"),
        ('"Hello," she said', "Hello, she said"),
        ("it’s the dogs' bone", "it's the dogs bone"),
        ("What?! No...", "What? No…"),
        (", . hello ,.", "hello."),
        ("naïve café", "naïve café"),
        ("Привет world 你好", "world"),
    ],
    "markdown": [
        ("# Title\nText", "Title. Text"),
        ("**bold** and *soft* and ~~gone~~", "bold and soft and gone"),
        ("__init__ and snake_case", "init and snake case"),
        ("**5** km", "five kilometers"),
        ("- one\n- two", "one. two"),
        ("1. first\n2) second", "one. first. two) second"),
        ("- [ ] open\n- [x] done", "open. done"),
        ("> quoted\n>> twice", "quoted. twice"),
        ("see [the docs](https://example.com/x_(y) \"T\").", "see the docs."),
        ("see [the **docs**][1]", "see the docs"),
        ("![a cat](cat.png)", "a cat"),
        ("so it is[^1].", "so it is."),
        ("use `x_y` now", "use x y now"),
        ("the `<div>` tag", "the div tag"),
        ("| a | b |\n|---|:--|\n| 1 | 2 |", "a, b. one, two"),
        ("above\n\n---\n\nbelow", "above. below"),
        ("one\ntwo", "one two"),
        ("One\nTwo", "One. Two"),
        ("\\*not bold\\*", "not bold"),
    ],
    "code blocks": [
        ("Look:\n```python\nprint(1)\n```\nDone.", "Look: Done."),
        ("~~~\ncode\n~~~", ""),
        ("```\nnever closed", ""),
        ("````\n```\nx\n````\nafter", "after"),
        ("```inline``` here", "inline here"),
    ],
    "html": [
        ("<b>bold</b> text", "bold text"),
        ("one<br>two", "one. two"),
        ("R&amp;D&nbsp;here", "R and D here"),
        ("<!-- a note -->said", "said"),
        ('<a href="x">link</a>', "link"),
    ],
    "nothing to say": [
        ("", ""),
        ("   \n\n ", ""),
        ("😀🎉👍🏽", ""),
        ("+ = % & @ #", ""),
        ("...", ""),
        ("---", ""),
        ("你好", ""),
        ("hello 😀 there :) 1️⃣ first", "hello there first"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("kind", TABLES)
def test_examples(kind: str) -> None:
    for written, said in TABLES[kind]:
        assert speakable(written) == said, written


def test_words_carry_the_span_they_were_read_from() -> None:
    text = "**Pay** $1.10 (now), [please](http://a.b)."
    assert [(word.text, text[word.start : word.end]) for word in spoken_words(text)] == [
        ("Pay", "Pay"),
        ("one", "$1.10"),
        ("dollar", "$1.10"),
        ("and", "$1.10"),
        ("ten", "$1.10"),
        ("cents", "$1.10"),
        ("(now),", "now),"),
        ("please.", "please](http://a.b)."),
    ]


FRAGMENTS = st.sampled_from([text for examples in TABLES.values() for text, _ in examples])
TEXTS = st.lists(
    st.one_of(FRAGMENTS, st.text(max_size=12), st.sampled_from(list(" \n.,-–(*_`|<>[]$%#'\"😀²½"))), max_size=8
)
JOINED = st.builds(lambda parts, gap: gap.join(parts), TEXTS, st.sampled_from(["", " ", "\n", " and "]))


TABLE_WORDS = sorted(
    {
        word
        for table in (
            tables.ABBREVIATIONS, tables.TITLES, tables.BARE_TITLES, tables.BARE_ABBREVIATIONS, tables.BARE_STREETS,
            tables.MONTHS, tables.MONTH_NUMBERS, tables.NUMBERED, tables.ROMAN_CUES, tables.ROMAN_NAMES,
            tables.SPELLED_AS_WORDS, tables.STREETS, tables.VERSIONED, tables.CURRENCIES, tables.UNITS,
        )
        for entry in table
        for word in (entry, entry.title(), entry.upper(), entry.lower())
    }
    | {"Sun", "I'm", "I", "a", "A", "www", "Vi", "hello", "Hello", "King", "code", "Can't"}
)  # fmt: skip
ENDINGS = (
    ". 5", " V", ".", "", " 5", ". Five", " Five", " five", ",", " I", " - Fri", "-Sun", ".com", ".py", "?", "'s.",
)  # fmt: skip


def check_first_reader(text: str) -> None:
    """Assert that what the first reader of names reads, the others would read in the same way."""
    first, *others = NAME_READERS
    for at, char in enumerate(text):
        if char.isalpha() and not text[at - 1 : at].isalnum() and (reading := first(text, at)):
            assert reading == next(filter(None, (reader(text, at) for reader in others)))


@pytest.mark.parametrize("ending", sweep(ENDINGS, here=4))
def test_the_first_reader_leaves_what_others_know_to_them(ending: str) -> None:
    for word in TABLE_WORDS:
        check_first_reader(f"The King Louis {word}{ending}")
        check_first_reader(f"{word}{ending}")


@settings(max_examples=examples(400), deadline=None)
@given(JOINED | st.lists(st.sampled_from(TABLE_WORDS), max_size=6).map(" ".join))
def test_the_first_reader_reads_as_the_others(text: str) -> None:
    check_first_reader(text)


def test_no_digit_of_any_script_is_left_to_the_voice():
    digits = [char for char in map(chr, range(sys.maxunicode + 1)) if char.isdigit()]
    left = [char for char in digits if any(map(str.isdigit, speakable(f"Qwen-{char} a{char}b {char}")))]
    assert left == []


def test_no_number_of_any_script_is_part_of_a_word():
    numbers = [char for char in map(chr, range(sys.maxunicode + 1)) if char.isnumeric() and not char.isalpha()]
    assert len(numbers) > 1500
    left = [char for char in numbers if char in speakable(f"a{char}b a-{char} km{char}")]
    assert left == []


@settings(max_examples=examples(400), deadline=None)
@given(JOINED)
def test_any_text_gives_ordered_words_without_figures(text: str) -> None:
    words = spoken_words(text)
    for word in words:
        assert 0 <= word.start < word.end <= len(text)
        assert word.text == word.text.strip()
        assert len(word.text.split()) == 1
        assert any(char.isalpha() for char in word.text)
        assert all(char.isalpha() or char in "'-.,;:!?…—()" or unicodedata.combining(char) for char in word.text)
    for before, after in pairwise(words):
        together = before.start == after.start and before.end <= after.end
        assert together or before.end <= after.start


@settings(max_examples=examples(200), deadline=None)
@given(JOINED)
def test_reading_is_stable(text: str) -> None:
    """Normalising the result again does not change it: a voice may normalise once more."""
    said = speakable(text)
    assert not any(char.isdigit() for char in speakable(said))


@settings(max_examples=examples(100), deadline=None)
@given(st.text(alphabet="😀🎉👍❤️ \n.,!?*_-+=%&@#<>/|~^()[]{}\"'`\\$€:;…—→✓", max_size=60))
def test_symbols_alone_say_nothing(text: str) -> None:
    assert spoken_words(text) == []


@pytest.mark.parametrize(
    "seed", ["a", "a.", "I.", "1,000,0000", "[a](", "<!--", "<a ", "http://?", " ", "`", "- ", "``a "]
)
def test_long_text_of_one_pattern_ends(seed: str) -> None:
    """In the soak 100 KB of text that makes careless patterns quadratic: at 0.3 µs a step 50 minutes."""
    text = seed * (examples(100_000) // len(seed))
    assert all(0 <= word.start < word.end <= len(text) for word in spoken_words(text))


def test_word_is_a_value() -> None:
    assert ReadWord("a", 0, 1) == ReadWord("a", 0, 1)
