"""What a person states about themselves is kept in their words; what they ask, want or feel is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxlane.server.conversation.replies.memory import FACT_CHARACTERS, MEMORY_CHARACTERS, RememberedFacts, facts


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ("My name is Peter.", ["My name is Peter."]),
        ("Hi, I'm Maria and I live in Berlin.", ["I'm Maria.", "I live in Berlin."]),
        ("no, my name is Paul", ["My name is Paul."]),
        ("You can call me Pete!", ["You can call me Pete."]),
        ("I like strawberries but I hate cheese.", ["I like strawberries.", "I hate cheese."]),
        ("My dog is called Rex, and my sister's name is Anna.", ["My dog is called Rex.", "My sister's name is Anna."]),
        ("My wife's a doctor.", ["My wife's a doctor."]),
        ("Remember that the door code is 1234.", ["Remember that the door code is 1234."]),
        ("Please remember that my name is Bo.", ["Remember that my name is Bo."]),
        ("I am 34 years old", ["I am 34 years old."]),
        ("I'm a teacher from Ohio.", ["I'm a teacher from Ohio."]),
        ("I was born in St. Louis. It was cold.", ["I was born in St. Louis."]),
        ("By the way, I moved to Hamburg last year.", ["I moved to Hamburg last year."]),
        ("I've got a cat named Tom. I don't eat meat.", ["I've got a cat named Tom.", "I don't eat meat."]),
        ("We have two kids.", ["We have two kids."]),
        ("I'm allergic to nuts.", ["I'm allergic to nuts."]),
        ("What is my name?", []),
        ("I live in which city?", []),
        ("I'm feeling a bit sad today. I'm a bit tired. I'm going home. I'm in a hurry.", []),
        ("I have a question. I have to go. I like it. I'd like to know more. I have no idea.", []),
        ("My question is a hard one. My god is it late.", []),
        ("Remember to buy milk. Tell me a joke. Yes. No. ", []),
        ("I like " + "very " * 60 + "long stories.", []),
        ("", []),
    ],
)
def test_what_is_kept(words: str, kept: list[str]) -> None:
    assert [fact.text for fact in facts(words)] == kept


def told(*said: str) -> str:
    memory = RememberedFacts()
    for place, words in enumerate(said):
        memory.note(f"u{place}", words)
    return memory.text


def test_the_newest_of_a_subject_counts() -> None:
    assert told("My name is Ann.", "I live in Rome.", "No, my name is Anna.") == "I live in Rome. My name is Anna."
    assert told("I live in Rome.", "I live in Oslo now.") == "I live in Oslo now."
    assert told("I am 34 years old.", "I'm 35 years old today.") == "I'm 35 years old today."
    assert told("My dog is called Rex.", "My dog is old.", "My dog has fleas.") == "My dog is old. My dog has fleas."


def test_a_people_is_no_name() -> None:
    assert told("I'm Maria.", "I'm Spanish.") == "I'm Maria. I'm Spanish."


def test_what_was_said_in_a_dropped_item_is_forgotten() -> None:
    memory = RememberedFacts()
    memory.note("u1", "My name is Ada. I live in Rome.")
    memory.note("u2", "I like tea.")
    memory.forget("u1")
    assert memory.text == "I like tea."
    memory.forget("u3")
    assert memory.text == "I like tea."


def test_a_name_outlives_everything_else() -> None:
    hobbies = [
        f"I like the hobby of number {number}, of all the many that there are to be had." for number in range(40)
    ]
    text = told("My name is Ada.", *hobbies)
    assert text.startswith("My name is Ada. ")
    assert "number 39," in text
    assert "number 1," not in text


WORDS = st.sampled_from(
    ["I", "my", "name", "is", "am", "I'm", "like", "live", "in", "Rome", "Ada", "call", "me", "and", "but", "remember",
     "that", "a", "dog", ".", "?", "!", ",", "'s", "\n", "we", "have", "to", "from", "years old", "x" * 90]
)  # fmt: skip


@given(st.lists(st.one_of(st.text(max_size=30), st.lists(WORDS, max_size=30).map(" ".join)), max_size=12))
def test_memory_is_bounded_and_repeatable(said: list[str]) -> None:
    text = told(*said)
    assert len(text) <= MEMORY_CHARACTERS
    assert text == told(*said)
    for words in said:
        assert all(len(fact.text) <= FACT_CHARACTERS + 1 for fact in facts(words))


@given(st.lists(WORDS, max_size=12).map(" ".join))
def test_a_question_states_nothing(words: str) -> None:
    assert not list(facts(words.replace(".", "").replace("!", "").replace("?", "").replace("\n", " ") + "?"))


def test_long_words_take_no_time() -> None:
    for words in ("my " * 5000, "I'm " + "A" * 16_000, "my " + "a " * 8000 + "is"):
        assert list(facts(words)) == []
    assert [fact.text for fact in facts("and " * 4000 + "I like tea")] == ["I like tea."]
