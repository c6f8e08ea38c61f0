"""Every character of the plain text keeps its place in the source."""

from __future__ import annotations

from itertools import pairwise

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from voxlane.engine.text.normalise.markup import INLINE, may_have_markup, plain

MARKUP = st.lists(
    st.sampled_from([
        "word", "Two words", "# ", "- ", "1. ", "> ", "**", "*", "_", "__", "`", "``", "```", "~~~", "\n", "\n\n", " ",
        "[a label](http://x.y/z_w)", "[", "](", ")", "![", "<b>", "</b>", "<br>", "<", ">", "<!--", "-->", "&amp;", "&",
        "|", "| --- |", "\\", ":)", "1️⃣", "😀", "<https://x.y/a_b>", "a_b@c.de", "[^1]", "---", "5 * 3",
    ]),
    max_size=25,
).map("".join)  # fmt: skip
INSERTED = " \n,×&"


@settings(max_examples=examples(300), deadline=None)
@given(MARKUP)
def test_every_character_stands_where_it_says(source: str) -> None:
    page = plain(source)
    assert len(page.text) == len(page.origin)
    assert all(before <= after for before, after in pairwise(page.origin))
    for char, index in zip(page.text, page.origin, strict=True):
        assert char == source[index] or char in INSERTED


@given(st.text(alphabet=st.characters(categories=["L"]), max_size=80))
def test_letters_pass_through(source: str) -> None:
    assert plain(source).text == source


@pytest.mark.parametrize(
    "mark",
    ["`a`", "http://a", "www.a", "a@b.c", "C:\\a", "a_b.py", "[a](b)", "[^1]", "<mailto:a>", "<!-- a -->", "<b>",
     "&lt;", "1\u20e3", ":)", ";)", "=)", "<3", "^^", "xD", "XD", "*", "~~", "_", "|", "\\", "`"],
)  # fmt: skip
def test_a_line_with_markup_is_searched(mark: str) -> None:
    assert INLINE.search(f"a {mark} b")
    assert may_have_markup(f"a {mark} b")


@settings(max_examples=examples(600), deadline=None)
@given(MARKUP | st.text("aw.xD3(:;=^`@\\\\_[<&#*~|'\u20e3 ", max_size=8))
def test_a_line_that_is_not_searched_has_no_markup(line: str) -> None:
    assert may_have_markup(line) or INLINE.search(line) is None


def test_an_address_keeps_its_underscores() -> None:
    assert plain("see https://x.y/a_b_c or a_b@x.y").text == "see https://x.y/a_b_c or a_b@x.y"


def test_a_wrapped_line_goes_on_and_a_short_one_ends() -> None:
    long = "This line of prose was wrapped by an editor at its right edge"
    assert plain(f"{long}\nJohn did it").text == f"{long} John did it"
    assert plain(f"{long}.\nJohn did it").text == f"{long}.\nJohn did it"
    assert plain("A list:\nJohn").text == "A list:\nJohn"
    assert plain(f"- {long}\nJohn").text == f"{long}\nJohn"
