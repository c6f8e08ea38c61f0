"""The words to expect: the client's own, then names from instructions, tools, replies and typed turns."""

from __future__ import annotations

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from voxlane.engine.api import Tool
from voxlane.server.conversation.turns.hot_words import MOST_WORDS, hot_words, names_in
from voxlane.server.conversation.values import INSTRUCTIONS, Item, SessionConfig


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("You are Voxlane, a friendly assistant.", ["Voxlane"]),
        (
            "Today is Tuesday. You work for Brackenhurst Limited in Poughkeepsie.",
            ["Brackenhurst Limited", "Poughkeepsie"],
        ),
        ("Nobody is home. Ask Siobhan's sister.", ["Siobhan"]),
        ("- Answer briefly\n- Never say no\n* Be kind", []),
        ("NEVER mention the API. I think I'm late in May.", []),
        ("GitHub and the iPhone.", ["GitHub", "iPhone"]),
        ('He said: "Come in." Then Ngozi left.', ["Ngozi"]),
        ("1. Greet them\n2. Ask Thaddeus", ["Thaddeus"]),
        ("with Siobhan and then Siobhan again", ["Siobhan"]),
        ("", []),
    ],
)
def test_names_are_found_by_their_capitals(text: str, names: list[str]) -> None:
    assert list(names_in(text)) == names


def test_the_client_comes_first_and_the_newest_reply_before_older_ones() -> None:
    config = SessionConfig(
        hot_words=("Okonkwo",),
        instructions="You help at Brackenhurst.",
        tools=(Tool("look", "Looks up a guest of the Wojcik house."),),
    )
    items = [
        Item("1", "assistant", "We met in Reykjavik."),
        Item("2", "user", "I am Akonquo.", spoken=True),
        Item("3", "user", "I am from Llandudno."),
        Item("4", "assistant", "Welcome to Ngozi."),
        Item("5", "result", "the Gewurztraminer"),
    ]
    wanted = ("Okonkwo", "Brackenhurst", "Wojcik", "Ngozi", "Llandudno", "Reykjavik")
    assert hot_words(config, items) == wanted


def test_capitals_mean_names_in_english_only() -> None:
    config = SessionConfig(language="de", hot_words=("Siobhan",), instructions="Du hilfst den Leuten im Haus.")
    assert hot_words(config, [Item("1", "assistant", "Guten Tag, schönes Wetter heute in Berlin.")]) == ("Siobhan",)


def test_by_default_the_assistant_expects_its_name() -> None:
    assert hot_words(SessionConfig(instructions=INSTRUCTIONS.replace("{date}", "Tuesday, 17 November 2026")), []) == (
        "Voxlane",
    )


@settings(max_examples=examples(200))
@given(st.text(), st.lists(st.text(min_size=1), max_size=64))
def test_any_text_gives_few_and_different_words_that_occur_in_it(text: str, own: list[str]) -> None:
    for name in names_in(text):
        assert all(part in text for part in name.split(" "))
    found = hot_words(SessionConfig(hot_words=tuple(own), instructions=text), [])
    assert len(found) <= MOST_WORDS
    assert len(set(found)) == len(found)
