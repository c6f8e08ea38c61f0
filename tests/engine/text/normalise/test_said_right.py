"""What a careful person would say for a written text: numbers to call, codes, houses, money, paths, versions."""

from __future__ import annotations

import re
import string
from itertools import pairwise

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from voxlane.engine.text.normalise.numbers import digits
from voxlane.engine.text.normalise.reader import speakable, spoken_words

TABLES: dict[str, list[tuple[str, str]]] = {
    "emergency and short numbers": [
        ("Call 911.", "Call nine one one."),
        ("Dial 112 now", "Dial one one two now"),
        ("call 999 or 112", "call nine nine nine or one one two"),
        ("911", "nine one one"),
        ("The emergency number here is 112.", "The emergency number here is one one two."),
        ("a 911 call", "a nine one one call"),
        ("Text 988 if you are in crisis", "Text nine eight eight if you are in crisis"),
        ("If there is danger, call the police on 110.", "If there is danger, call the police on one one zero."),
        ("call 911 as soon as you can", "call nine one one as soon as you can"),
        ("dial 911 unless you are safe", "dial nine one one unless you are safe"),
        ("ring 116117 at night", "ring one one six, one one seven at night"),
        ("911 people", "nine hundred eleven people"),
        ("We called 112 customers", "We called one hundred twelve customers"),
        ("It has 999 pages", "It has nine hundred ninety-nine pages"),
        ("It weighs 112 kg", "It weighs one hundred twelve kilograms"),
        ("a Porsche 911", "a Porsche nine eleven"),
        ("on 9/11", "on nine eleven"),
    ],
    "telephone numbers": [
        ("0800 123456", "zero eight zero zero, one two three, four five six"),
        ("Call us on 0800 123456.", "Call us on zero eight zero zero, one two three, four five six."),
        ("+49 30 1234567", "plus four nine, three zero, one two three, four five six seven"),
        ("(555) 010-4477", "five five five, zero one zero, four four seven seven"),
        ("+1 (555) 010-4477", "plus one, five five five, zero one zero, four four seven seven"),
        ("555 010 4477", "five five five, zero one zero, four four seven seven"),
        ("030 1234567", "zero three zero, one two three, four five six seven"),
        ("(030) 1234567", "zero three zero, one two three, four five six seven"),
        ("0171/1234567", "zero one seven one, one two three, four five six seven"),
        ("020 7946 0958", "zero two zero, seven nine four six, zero nine five eight"),
        ("07700 900123", "zero seven seven zero zero, nine zero zero, one two three"),
        ("01 23 45 67 89", "zero one, two three, four five, six seven, eight nine"),
        ("08001234567", "zero eight zero zero, one two three, four five six seven"),
        ("+4915112345678", "plus four nine, one five one, one two three, four five six, seven eight"),
        ("1-800-FLOWERS", "one, eight zero zero, flowers"),
        ("call 5550199", "call five five five, zero one nine nine"),
        ("555-0199 ext. 4711", "five five five, zero one nine nine extension four seven one one"),
    ],
    "houses and rooms": [
        ("221B Baker Street", "two twenty-one B Baker Street"),
        ("He lives at 221B.", "He lives at two twenty-one B."),
        ("flat 4C", "flat four C"),
        ("Flat 4A, please", "Flat four A, please"),
        ("apartment 12b", "apartment twelve B"),
        ("10 Downing Street", "ten Downing Street"),
        ("1600 Pennsylvania Avenue", "sixteen hundred Pennsylvania Avenue"),
        ("742 Evergreen Terrace", "seven forty-two Evergreen Terrace"),
        ("123 Main St, Springfield", "one twenty-three Main Street, Springfield"),
        ("350 5th Ave", "three fifty fifth Avenue"),
        ("room 204", "room two oh four"),
        ("Room 1408", "Room fourteen oh eight"),
        ("room 300", "room three hundred"),
        ("Suite 2310", "Suite twenty-three ten"),
        ("seat 23A", "seat twenty-three A"),
        ("gate B12", "gate B twelve"),
        ("Springfield, IL 62704", "Springfield, IL six two seven zero four"),
        ("ZIP 90210", "ZIP nine zero two one zero"),
        ("12345-6789", "one two three four five, six seven eight nine"),
        ("Friedrichstr. 12, 10117 Berlin", "Friedrichstr. twelve, one zero one one seven Berlin"),
        ("a 7B model", "a seven billion model"),
        ("error 404", "error four oh four"),
        ("Route 66", "Route sixty-six"),
        ("It seats 204 guests", "It seats two hundred four guests"),
    ],
    "money": [
        ("€1.150,50", "one thousand one hundred fifty euros and fifty cents"),
        ("1.150,50 €", "one thousand one hundred fifty euros and fifty cents"),
        ("€1,150.50", "one thousand one hundred fifty euros and fifty cents"),
        ("1.150,50 EUR", "one thousand one hundred fifty euros and fifty cents"),
        ("EUR 1.150,50", "one thousand one hundred fifty euros and fifty cents"),
        ("1 150,50 €", "one thousand one hundred fifty euros and fifty cents"),
        ("€1.150", "one thousand one hundred fifty euros"),
        ("10.000 €", "ten thousand euros"),
        ("1.150.000 €", "one million one hundred fifty thousand euros"),
        ("€3,50", "three euros and fifty cents"),
        ("€0,05", "five cents"),
        ("5,- €", "five euros"),
        ("2,50 euros", "two euros and fifty cents"),
        ("$1.150", "one point one five zero dollars"),
        ("$1,150", "one thousand one hundred fifty dollars"),
        ("CHF 1'150.50", "one thousand one hundred fifty Swiss francs and fifty centimes"),
        ("Fr. 20", "twenty francs"),
        ("$1,150.50 and 20 $", "one thousand one hundred fifty dollars and fifty cents and twenty dollars"),
        ("€1.5 million", "one point five million euros"),
        ("It is €1.150,50.", "It is one thousand one hundred fifty euros and fifty cents."),
    ],
    "numbers with points and commas": [
        ("1.150", "one point one five zero"),
        ("1,150", "one thousand one hundred fifty"),
        ("1.150,50", "one thousand one hundred fifty point five zero"),
        ("1,150.50", "one thousand one hundred fifty point five zero"),
        ("1.150.000", "one million one hundred fifty thousand"),
        ("10 000 people", "ten thousand people"),
        ("1 000 000", "one million"),
        ("1'000'000", "one million"),
        ("2,5 kg", "two point five kilograms"),
        ("3,5 %", "three point five percent"),
        ("1.250,5 km", "one thousand two hundred fifty point five kilometers"),
        ("3,4 and 5", "three, four and five"),
    ],
    "codes": [
        ("#A-4711", "number A, four seven one one"),
        ("order #A-4711 is ready", "order number A, four seven one one is ready"),
        ("order #4711", "order number four seven one one"),
        ("#42", "number forty-two"),
        ("AB12CD", "A B one two C D"),
        ("Your booking code is AB12CD.", "Your booking code is A B one two C D."),
        ("booking reference QX7", "booking reference Q X seven"),
        ("flight BA2490", "flight B A two four nine zero"),
        ("flight 1549", "flight fifteen forty-nine"),
        ("invoice INV-2026-0042", "invoice I N V, two zero two six, zero zero four two"),
        ("order number 12345", "order number one two three four five"),
        ("order 5000 units", "order five thousand units"),
        ("PIN 0042", "pin zero zero four two"),
        ("the code is 4921", "the code is four nine two one"),
        ("the card ending in 4321", "the card ending in four three two one"),
        ("area code 415", "area code four one five"),
        ("ISBN 978-3-16-148410-0", "ISBN nine seven eight, three, one six, one four eight four one zero, zero"),
        ("ISBN 9783161484100", "ISBN nine seven eight, three one six, one four eight, four one zero zero"),
        ("DE89 3704 0044 0532 0130 00",
         "D E eight nine, three seven zero four, zero zero four four, zero five three two,"
         " zero one three zero, zero zero"),
        ("4111 1111 1111 1111", "four one one one, one one one one, one one one one, one one one one"),
        ("commit 946e0c7", "commit nine four six E zero C seven"),
        ("key XK9-22F-AA1", "key X K nine, two two F, A A one"),
        ("A4 paper", "A four paper"),
        ("MP3, B2B and GPT-4", "MP three, B two B and GPT four"),
        ("the M25", "the M twenty-five"),
        ("an A380", "an A three eighty"),
        ("COVID-19", "covid nineteen"),
        ("a B-52", "a B fifty-two"),
    ],
    "paths and files": [
        (r"C:\Users\me", "C colon backslash Users backslash me"),
        (r"Open C:\Users\me.", "Open C colon backslash Users backslash me."),
        (r"C:\Program Files\Git", "C colon backslash Program Files backslash Git"),
        (r"D:\data\report_2.csv", "D colon backslash data backslash report underscore two dot CSV"),
        (r"\\server\share", "backslash backslash server backslash share"),
        ("/etc/hosts", "slash E T C slash hosts"),
        ("See /var/log/syslog.", "See slash var slash log slash syslog."),
        ("~/projects/app", "tilde slash projects slash app"),
        ("./run.sh", "dot slash run dot SH"),
        ("../src/main.py", "dot dot slash S R C slash main dot py"),
        ("src/main.py", "S R C slash main dot py"),
        ("report.pdf", "report dot PDF"),
        ("report_final.pdf", "report underscore final dot PDF"),
        ("notes.txt, please", "notes dot TXT, please"),
        ("photo.jpg", "photo dot jay-peg"),
        ("archive.tar.gz", "archive dot tar dot GZ"),
        ("`config.toml`", "config dot toml"),
        ("60 km/h", "sixty kilometers per hour"),
    ],
    "addresses of the internet": [
        ("bob.smith@example.com", "bob dot smith at example dot com"),
        ("info@example.de, or", "info at example dot DE, or"),
        ("https://example.com/docs", "example dot com slash docs"),
        ("www.example.org", "example dot org"),
        ("192.168.0.1:8080", "one nine two dot one six eight dot zero dot one colon eight zero eight zero"),
        ("10.0.0.0/8", "one zero dot zero dot zero dot zero slash eight"),
        ("2001:db8::1", "two zero zero one colon D B eight colon colon one"),
        ("00:1A:2B:3C:4D:5E", "zero zero, one A, two B, three C, four D, five E"),
    ],
    "versions": [
        ("3.12.1", "three point twelve point one"),
        ("Python 3.12", "Python three point twelve"),
        ("v3.12.1-rc1", "version three point twelve point one RC one"),
        ("version 2.0", "version two point zero"),
        ("pi is 3.14", "pi is three point one four"),
    ],
    "times, ranges, ratios and fractions": [
        ("14:05", "fourteen oh five"),
        ("on 10.05.2024", "on the tenth of May, twenty twenty-four"),
        ("the 1.5.2024.", "the first of May, twenty twenty-four."),
        ("7pm", "seven PM"),
        ("at 7:05am", "at seven oh five AM"),
        ("9am-5pm", "nine AM to five PM"),
        ("10-12", "ten to twelve"),
        ("pages 10–12", "pages ten to twelve"),
        ("100-1000 people", "one hundred to one thousand people"),
        ("Mon-Fri 9-17", "Monday to Friday nine to seventeen"),
        ("a ratio of 3:1", "a ratio of three to one"),
        ("16:9", "sixteen to nine"),
    ],
    "ordinals, numerals and years": [
        ("the 21st", "the twenty-first"),
        ("King Charles III", "King Charles the third"),
        ("Queen Elizabeth I", "Queen Elizabeth the first"),
        ("Henry V was young", "Henry the fifth was young"),
        ("Elizabeth I of England", "Elizabeth the first of England"),
        ("Pope Leo XIV", "Pope Leo the fourteenth"),
        ("Malcolm X", "Malcolm X"),
        ("Super Bowl LVIII", "Super Bowl fifty-eight"),
        ("in 1066", "in ten sixty-six"),
        ("1066 soldiers", "one thousand sixty-six soldiers"),
        ("in 2008", "in two thousand eight"),
        ("2008 bottles", "two thousand eight bottles"),
    ],
    "units, percent and temperatures": [
        ("-5 °C", "minus five degrees Celsius"),
        ("20° C", "twenty degrees Celsius"),
        ("98.6°F", "ninety-eight point six degrees Fahrenheit"),
        ("12.5%", "twelve point five percent"),
        ("1200 m²", "one thousand two hundred square meters"),
        ("5 GB at 3.2 GHz", "five gigabytes at three point two gigahertz"),
    ],
    "letters": [
        ("plan A", "plan A"),
        ("vitamins A and C", "vitamins A and C"),
        ("A dog has a bone. A cat", "A dog has a bone. A cat"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("kind", TABLES)
def test_said_right(kind: str) -> None:
    for written, said in TABLES[kind]:
        assert speakable(written) == said, written


@pytest.mark.parametrize(
    "text",
    [
        "A4",
        "gate A12",
        "Grade A beef",
        "an A in maths",
        "#A-4711",
        "plan A",
        "flat 4A",
        "AB12CD",
        "vitamins A, B and C",
        "a@b.com",
        "(A)",
    ],
)
def test_the_letter_a_is_not_the_article(text: str) -> None:
    (letter,) = [word for word in spoken_words(text) if word.text.strip("(),").upper() == "A"]
    assert (letter.phonemes == "ˈA") == (text != "(A)")


@pytest.mark.parametrize(
    "text", ["A dog.", "Then: A cat", "It is a B-52", "One. A dog", "Once Upon A Time", "It is A dog"]
)
def test_the_article_is_not_the_letter_a(text: str) -> None:
    assert not any(word.phonemes for word in spoken_words(text))


@pytest.mark.parametrize(
    ("text", "span", "said"),
    [
        ("Please call 0800 123456 today.", "0800 123456", 10),
        (r"Open **C:\Users\me** now.", r"C:\Users\me", 6),
        ("It costs €1.150,50 in all.", "€1.150,50", 9),
        ("Order #A-4711 is here.", "A-4711", 5),
        ("At 221B Baker Street.", "221B", 3),
        ("See my_file.txt there.", "my_file.txt", 5),
    ],
)
def test_words_keep_their_place(text: str, span: str, said: int) -> None:
    start = text.index(span)
    words = [word for word in spoken_words(text) if (word.start, word.end) == (start, start + len(span))]
    assert len(words) == said
    after = text[start + len(span) :].strip(" *.").split()
    following = [word.text.strip(".") for word in spoken_words(text) if word.start >= start + len(span)]
    assert following == after


GROUPS = st.lists(st.text("0123456789", min_size=2, max_size=4), min_size=2, max_size=4)


@settings(max_examples=examples(200), deadline=None)
@given(st.sampled_from(["+49", "+1", "0800", "030", "(030)"]), GROUPS, st.sampled_from([" ", "-"]))
def test_a_telephone_number_is_said_digit_by_digit(first: str, groups: list[str], gap: str) -> None:
    written = gap.join([first, *groups])
    figures = re.sub("[^0-9]", "", written)
    if not 7 <= len(figures) <= 15:
        return
    said = speakable(f"Ring {written} now").replace(",", "").split()[1:-1]
    assert said == [*(["plus"] if first[0] == "+" else []), *digits(figures)]


@settings(max_examples=examples(200), deadline=None)
@given(st.text(string.ascii_uppercase, min_size=1, max_size=3), st.text("0123456789", min_size=3, max_size=6))
def test_a_code_after_a_hash_is_said_sign_by_sign(letters: str, figures: str) -> None:
    said = speakable(f"#{letters}-{figures}").replace(",", "").split()
    assert said == ["number", *letters, *digits(figures)]


MARKS = " .,:;-–/\\#€$£%()+@&'’\n"
PIECES = st.one_of(
    st.sampled_from([text for examples in TABLES.values() for text, _ in examples if "`" not in text]),
    st.text(string.ascii_letters + string.digits, max_size=9),
    st.text(MARKS, max_size=3),
    st.text("0123456789.,- /", max_size=24),
)


@settings(max_examples=examples(500), deadline=None)
@given(st.lists(PIECES, max_size=6).map("".join))
def test_no_word_is_lost(text: str) -> None:
    """Every letter and digit is part of a spoken word, if the text has no markup and no URL."""
    if re.search(r"(?i)https?:|www\.|[*_|`<>\[\]~^]|&[A-Za-z#]|(?<!\S)[:;=xX]", text) or re.match(
        r"\s*[#>]", text, re.MULTILINE
    ):
        return
    words = spoken_words(text)
    heard = {place for word in words for place in range(word.start, word.end)}
    lost = [char for place, char in enumerate(text) if char.isascii() and char.isalnum() and place not in heard]
    assert lost == []
    for word in words:
        assert any(char.isalpha() for char in word.text)
        assert not any(char.isdigit() for char in word.text)
    for before, after in pairwise(words):
        assert (before.start == after.start and before.end <= after.end) or before.end <= after.start


@pytest.mark.parametrize(
    "seed",
    ["1", "0", "1.", "1,", "1-", "1.234.", "1 234 ", "1:", "0a", "A-1", "F:", "/a", "\\a", "C:\\a ", "a_", "a.b", "+1 ",
     "(1) ", "call 1", "€1.", "1'000'"],
)  # fmt: skip
def test_many_signs_are_read_in_linear_time(seed: str) -> None:
    """In the soak twenty thousand: a quadratic pattern would take minutes."""
    text = seed * (examples(20_000) // len(seed))
    for written in (text, f"call ${text}.50 €"):
        words = spoken_words(written)
        assert all(0 <= word.start < word.end <= len(written) for word in words)


def test_twenty_thousand_digits_are_all_said() -> None:
    run = "1234567890" * 2000
    assert len(spoken_words(run)) == 20_000
    assert len(spoken_words(f"${run}.50")) == 20_004
