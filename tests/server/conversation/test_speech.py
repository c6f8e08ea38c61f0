"""Where a reply is cut into clauses, and the laws of cutting: everything once, in order, whatever the deltas."""

from __future__ import annotations

from random import Random

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from voxlane.server.conversation.replies.clauses import (
    DIGIT_LENGTH,
    MAX_SPAN_CHARS,
    WORD_BY_WORD,
    Clause,
    ClauseCutter,
    CutPolicy,
    Grade,
    grade,
)


def cut(*deltas: str, policy: CutPolicy | None = None) -> list[Clause]:
    cutter = ClauseCutter(policy)
    return [clause for delta in deltas for clause in cutter.push(delta)] + cutter.finish()


def texts(*deltas: str) -> list[str]:
    return [clause.text for clause in cut(*deltas)]


CUTS: dict[str, list[str]] = {
    "first clause ends at a comma": ["Well, of course, ", "we can do that."],
    "first clause is not one word": ["Sure! I can help you. ", "Tell me more."],
    "later commas do not count": ["Here we go. ", "One, two, three, and so on, until we are done. ", "Good for us."],
    "decimals and prices": ["It is 3.5 or $4.20 today. ", "That is fine."],
    "titles": ["Ask Dr. Smith or Mrs. Jones. ", "They know it."],
    "titles without a stop": ["Dr Smith is here now. ", "He knows it."],
    "abbreviations": ["Take fruit, e.g. apples, ", "or juice vs. Milk and so on."],
    "etc. inside": ["Apples, pears, etc. are fruit. ", "They are good."],
    "initials": ["J. K. Rowling wrote it. ", "I read it twice."],
    "the word I": ["So do I. ", "Then we agree on it."],
    "number sign": ["See No. 5 for this. ", "It has it all."],
    "the answer no": ["The answer is No. ", "That is not it."],
    "dates": ["On November 15, 2026, ", "we all meet again."],
    "ellipsis": ["Well... I do not know. ", "Let me see it."],
    "ellipsis with spaces": ["I do not . . . ", "know it. Let me see it."],
    "time of day": ["Come at 10 a.m. or so, ", "if you can do it."],
    "address": ["Look at example.com/a.b today. ", "It has it all."],
    "e-mail": ["Write to a.b@example.com. ", "They will answer you."],
    "link": ["See [the docs. All of them](https://x.y/z) now. ", "They are good enough."],
    "link with parentheses": ["See [this. One](http://x.y/a_(b. C)) now. ", "It is good enough."],
    "brackets that are no link": ["See [one. Two] of these. ", "It is good enough."],
    "inline code": ["Type `a. B c` and enter. ", "Then wait for it."],
    "tag": ['Use <a href="a. B">it here</a> now. ', "It is good enough."],
    "quotation": ['He said "no way." ', "Then he left us."],
    "question in speech": ['"Is it so?" he asked them. ', "They did not know."],
    "lower case after a stop": ["i am fine. ", "how are you?"],
    "paragraphs": ["Yes\n\n", "No\n\n", "Perhaps"],
    "list": ["Buy this:\n", "- milk\n", "- two eggs\n", "1. First. Then more\n", "2. last"],
    "heading": ["# A title\n", "And its text."],
    "wrapped line": ["this is a line\nthat goes on here. ", "And then it ends."],
    "dash": ["It is so — ", "or so they say."],
    "number range": ["It takes 5 - 7 days or more, ", "if all goes well."],
    "numbers after numbers": ["Say 1, 2, 3, 4 to me. ", "Then we go on."],
}  # fmt: skip


@pytest.mark.parametrize("clauses", CUTS.values(), ids=CUTS.keys())
def test_cuts(clauses: list[str]) -> None:
    assert texts("".join(clauses)) == clauses


def test_a_voice_that_reads_words_gets_them_as_they_come_and_nothing_that_holds_together_is_torn() -> None:
    text = "Well, Dr. Smith owes us $4.50 since May 5, 2026. See `a b` and [the docs](http://x.y) now."
    pieces = [clause.text for clause in cut(*text, policy=WORD_BY_WORD)]
    assert pieces == [
        "Well, ", "Dr. Smith ", "owes ", "us ", "$4.50 since ", "May 5, 2026. ", "See ", "`a b` ", "and ",
        "[the docs](http://x.y) ", "now.",
    ]  # fmt: skip
    assert pieces == [clause.text for clause in cut(text, policy=WORD_BY_WORD)]


def test_a_voice_that_reads_words_gets_languages_without_spaces_as_they_come() -> None:
    long = "一二三四五六七八九十" * 3
    text = f"「你好！？」他说：今天，天气很好。用Python写。{long}。안녕하세요, 여러분."
    pieces = [clause.text for clause in cut(*text, policy=WORD_BY_WORD)]
    assert pieces == [
        "「你好！？」", "他说：", "今天，", "天气很好。", "用Python写。", long[:24], long[24:] + "。",
        "안녕하세요, ", "여러분.",
    ]  # fmt: skip
    assert pieces == [clause.text for clause in cut(text, policy=WORD_BY_WORD)]
    cutter = ClauseCutter(WORD_BY_WORD)
    assert [clause.text for clause in cutter.push("你好，世")] == ["你好，"]


def test_what_is_certain_of_a_clause() -> None:
    cutter = ClauseCutter()
    cutter.push("It is about 3 million")
    assert cutter.begun() == "It is "  # a number holds on to what stands around it
    cutter.push(" light years from")
    assert cutter.begun() == "It is about 3 million light years "
    assert cutter.push(" here. Then") == [Clause("It is about 3 million light years from here. ", 0, 45, silent=False)]
    assert cutter.begun() == ""  # only the first clause is hurried
    listed = ClauseCutter()
    listed.push("1, 2, 3")
    assert listed.begun() == "1, 2, "
    dated = ClauseCutter()
    dated.push("On May 5, 2026 there")
    assert dated.begun() == "On "


def test_a_clause_leaves_as_soon_as_the_next_word_begins() -> None:
    cutter = ClauseCutter()
    assert cutter.push("Well, of course,") == []
    assert cutter.push(" ") == []
    assert cutter.push("w") == [Clause("Well, of course, ", 0, 17, silent=False)]


def test_code_blocks_are_silent_and_whole_across_deltas() -> None:
    deltas = ["Here it is:\n``", "`py\nprint('a. B'", ")\n\n# c. D e f\n``", "`\nThat is all. ", "Do you see it?"]
    assert cut(*deltas) == [
        Clause("Here it is:\n", 0, 12, silent=False),
        Clause("```py\nprint('a. B')\n\n# c. D e f\n```\n", 12, 48, silent=True),
        Clause("That is all. ", 48, 61, silent=False),
        Clause("Do you see it?", 61, 75, silent=False),
    ]


@pytest.mark.parametrize("fence", ["```", "~~~", "````"])
def test_a_code_block_that_never_ends_is_silent(fence: str) -> None:
    assert [clause.silent for clause in cut(f"Look at this:\n{fence}\ncode here. And more.\n``\nmore")] == [False, True]


def test_an_indented_code_block_and_one_that_starts_the_reply() -> None:
    assert [(c.text, c.silent) for c in cut("```\nx\n```\n- see\n  ```\n  y\n  ```\nok")] == [
        ("```\nx\n```\n", True),
        ("- see\n  ", False),
        ("```\n  y\n  ```\n", True),
        ("ok", False),
    ]


def test_three_backticks_inside_one_line_are_no_code_block() -> None:
    assert [clause.silent for clause in cut("```inline``` it is. And that is all.")] == [False, False]
    assert [clause.silent for clause in cut("```" + "x" * 300)] == [False, False]


@pytest.mark.parametrize("text", ["😀🎉", "---\n\n***", "   ", "\n\n\n", "| - |", "..."])
def test_what_has_nothing_to_say_is_silent(text: str) -> None:
    assert all(clause.silent for clause in cut(text))


def test_a_silent_clause_leaves_the_first_one_first() -> None:
    assert texts("😀\n\nWell, of course, we can do that.") == ["😀\n\n", "Well, of course, ", "we can do that."]


def test_an_empty_reply_has_no_clauses() -> None:
    assert cut("", "") == []


def test_a_long_sentence_is_cut_at_its_best_place() -> None:
    words = "alpha beta gamma delta epsilon zeta eta theta iota kappa"
    clauses = texts(f"Now hear this, {words} {words}, {words} {words} because {words} {words} {words}.")
    assert clauses[0] == "Now hear this, "
    assert clauses[1] == f"{words} {words}, "
    assert clauses[2] == f"{words} {words} "
    assert clauses[3].startswith("because alpha")


def test_the_first_clause_is_cut_early_when_no_punctuation_comes() -> None:
    first, *_ = cut(
        "one two three four five six seven eight nine ten and twelve thirteen fourteen fifteen sixteen more"
    )
    assert first.text == "one two three four five six seven eight nine ten "


def test_a_number_with_its_unit_stays_whole_at_the_limit() -> None:
    policy = CutPolicy(first_max_length=30, max_length=30)
    assert all(
        "55" not in clause.text or "55 km" in clause.text for clause in cut("aa bb cc dd ee 55 km", policy=policy)
    )


def test_only_glued_places_are_cut_when_there_is_nothing_else() -> None:
    clauses = cut(" ".join(["55"] * 60))
    assert all(len(clause.text) <= 60 for clause in clauses)


def test_a_long_address_stays_whole_and_an_endless_word_does_not() -> None:
    address = "https://example.com/" + "a/" * 200
    assert texts(f"Go to {address} now.")[1] == f"{address} "
    assert [len(text) for text in texts("x" * 450)] == [200, 200, 50]
    assert [len(text) for text in texts("https://" + "x" * 1492)] == [MAX_SPAN_CHARS, 200, 200, 100]


def test_an_unclosed_bracket_is_plain_text_in_the_end() -> None:
    sentence = "And this is one more sentence. "
    clauses = texts("Look [here it is, " + sentence * 12)
    assert clauses[-1] == sentence
    assert all(len(text) <= 200 for text in clauses)


def test_many_unclosed_brackets_do_not_shatter_the_text() -> None:
    clauses = texts("[a " * 2000)
    assert max(len(text) for text in clauses) <= 200
    assert len(clauses) < 100


def test_a_long_run_of_spaces_is_not_waited_for() -> None:
    cutter = ClauseCutter()
    assert cutter.push("Well" + " " * MAX_SPAN_CHARS) != []
    assert cutter.push(" " * MAX_SPAN_CHARS)[0].silent


@pytest.mark.parametrize(
    ("word", "following", "expected"),
    [
        ("word", "n", Grade.SPACE), ("word.", "N", Grade.SENTENCE), ("word.", "n", Grade.SOFT),
        ("word,", "n", Grade.SOFT),
        ("Dr.", "S", Grade.GLUED), ("etc.", "T", Grade.SOFT), ("etc.", "t", Grade.SPACE), ("No.", "5", Grade.GLUED),
        ("No.", "I", Grade.SENTENCE), ("U.S.", "A", Grade.GLUED), ("J.", "K", Grade.GLUED), ("I.", "T", Grade.SENTENCE),
        ("5", "k", Grade.GLUED), ("word", "5", Grade.GLUED), ("15,", "2", Grade.GLUED), ("5.", "6", Grade.GLUED),
        ("so!", "N", Grade.SENTENCE), ("so?\"", "h", Grade.SPACE), ("so…", "N", Grade.SENTENCE),
        ("so...", "n", Grade.SOFT), ("so?", "n", Grade.SOFT),
        ("so", ".", Grade.GLUED), ("—", "n", Grade.SOFT), ("-", "5", Grade.GLUED), ("**", "n", Grade.SPACE),
    ],
)  # fmt: skip
def test_grades(word: str, following: str, expected: Grade) -> None:
    assert grade(word, following) is expected


PIECES = st.sampled_from([
    "word ", "Word ", "and ", "word, ", "word. ",
    "Word! ", "so? ", "3.5 ", "1,000 ", "55 ", "$5 ", "Dr. ", "e.g. ", "etc. ",
    "No. ", "10 a.m. ", "... ", "… ", ". . . ", "- ", "— ", "\n", "\n\n", "\n- ", "\n1. ", "\n# ",
    "\n```\n", "\n```py\n",
    "```", "~~~", "`", "``", "[", "]", "](", ")", "(", "<", "<a ", ">", "[a b](c d) ", "`a. B` ", "<b>",
    "http://x.y/z. ",
    "a@b.cd ", "https://" + "x" * 90, "x" * 70, "1" * 50, "[" + "y" * 120, "[" + "1" * 45 + "](", "😀 ", " " * 30,
    " " * 600, "\t", "\r\n", "| a | b |\n", "|---|\n", "é", "你好。", "",
    "word word word word word word word word word ",
])  # fmt: skip
REPLIES = st.lists(PIECES, max_size=60).map("".join)


def split(text: str, sizes: list[int]) -> list[str]:
    deltas, at = [], 0
    for size in sizes:
        deltas.append(text[at : at + size])
        at += size
    return [*deltas, text[at:]]


@settings(max_examples=examples(400), deadline=None)
@given(REPLIES, st.lists(st.integers(0, 25), max_size=60))
def test_the_deltas_do_not_matter(text: str, sizes: list[int]) -> None:
    whole = cut(text)
    assert cut(*split(text, sizes)) == whole
    assert cut(*text) == whole


@settings(max_examples=examples(400), deadline=None)
@given(REPLIES, st.integers(0, 99), st.sampled_from([0.1, 0.5, 1.0]))
def test_a_clause_holds_the_words_that_the_voice_has(text: str, seed: int, asked: float) -> None:
    random, cutter, begun, clauses, at = Random(seed), ClauseCutter(), "", [], 0
    while at < len(text):
        piece = text[at : at + random.randint(1, 9)]
        at += len(piece)
        for clause in cutter.push(piece):
            assert clause.text.startswith(begun)
            begun, clauses = "", [*clauses, clause]
        if random.random() < asked and (more := cutter.begun()):
            assert more.startswith(begun)
            begun = more
            assert more[-1].isspace()
    for clause in cutter.finish():
        assert clause.text.startswith(begun)
        begun, clauses = "", [*clauses, clause]
    assert "".join(clause.text for clause in clauses) == text


@given(REPLIES)
def test_clauses_are_the_reply_once_and_in_order(text: str) -> None:
    clauses = cut(text)
    assert "".join(clause.text for clause in clauses) == text
    at = 0
    for clause in clauses:
        assert (clause.start, clause.end) == (at, at + len(clause.text))
        assert clause.text
        at = clause.end


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.from_regex(r"[a-zA-Z]{1,12}[,.;:!?]?|[0-9]{1,6}(\.[0-9]{1,3})?%?", fullmatch=True), max_size=120))
def test_prose_is_never_longer_than_allowed(words: list[str]) -> None:
    policy = CutPolicy()
    for clause in cut(" ".join(words)):
        length = len(clause.text) + (DIGIT_LENGTH - 1) * sum(char in "0123456789" for char in clause.text)
        assert length <= policy.max_length + 1  # and the space behind it
        assert len(clause.text.split()) <= policy.max_words


ATOMS = st.sampled_from([
    "3.14", "1,000.50", "$4.20", "e.g.", "U.S.A.", "https://x.y/a.b?c=1,2", "a.b@c.de", "[a. B, c](http://x.y/z)",
    "`a. B, c`", "10:30", "192.168.0.1", "v1.2.3", "etc.", "...", '<a title="A. B">',
])  # fmt: skip


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.one_of(ATOMS, st.sampled_from(["one", "Two", "three,", "four.", "Five!", "and"])), max_size=60))
def test_no_cut_falls_inside_an_atom(words: list[str]) -> None:
    ends, at = {0}, 0
    for word in words:
        at += len(word) + 1
        ends.add(at)
    assert {clause.start for clause in cut("".join(f"{word} " for word in words))} <= ends
