"""What the model is shown keeps to its budget, exchange by exchange, and what the person said of themselves stays."""

from __future__ import annotations

import json
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from voxlane.server.conversation.replies import history as memory_of_talk
from voxlane.server.conversation.replies.history import (
    EARLIER,
    HISTORY_TOKENS,
    ITEM_TOKENS,
    History,
    TokenCount,
    characters_of,
    exchanges,
)
from voxlane.server.conversation.values import Item, ItemKind

WORDS = st.one_of(st.text("ab ", max_size=6), st.integers(0, 3000).map(lambda size: "x" * size))
CALLS = st.integers(0, 400).map(lambda size: json.dumps({"text": "y" * size}))
ITEMS = st.one_of(
    st.tuples(st.sampled_from(["user", "assistant", "system", "result"]), WORDS), st.tuples(st.just("call"), CALLS)
)
TALKS = st.lists(ITEMS, max_size=12)


def filled(items: list[tuple[str, str]], history: History | None = None) -> History:
    history = history or History()
    for place, (kind, text) in enumerate(items):
        history.place(Item(f"i{place}", kind, text, "book", f"c{place - place % 2}"))  # type: ignore[arg-type]
    return history


def size(history: History) -> int:
    return sum(len(item.text) for item in history.shown)


def tokens(history: History) -> int:
    return sum(ITEM_TOKENS + -(-len(item.text) // 3) for item in history.shown if item.text)


@given(TALKS)
def test_half_is_forgotten_and_calls_stay_whole(items: list[tuple[str, str]]) -> None:
    history = filled(items)
    while size(history):
        before = size(history)
        history.shorten()
        assert size(history) <= before // 2
        assert all(isinstance(json.loads(item.text), dict) for item in history.items if item.kind == "call")


@pytest.mark.parametrize("length", range(1, 9))
def test_a_single_short_turn_can_be_forgotten(length: int) -> None:
    history = History()
    history.place(Item("u", "user", "Hi there!"[:length]))
    history.shorten()
    assert size(history) <= length // 2


@given(TALKS, st.integers(10, 2000))
def test_the_budget_holds_unless_one_turn_is_larger(items: list[tuple[str, str]], budget: int) -> None:
    history = filled(items, History(budget))
    assert tokens(history) <= budget or sum(item.kind == "user" for item in history.shown) <= 1


@given(TALKS, st.integers(10, 2000))
def test_exchanges_are_shown_whole_in_their_order(items: list[tuple[str, str]], budget: int) -> None:
    history = filled(items, History(budget))
    names = [item.id for item in history.shown]
    assert names == [item.id for item in history.items if item.id in names]
    opening = [item.id for item in history.items]
    for exchange in exchanges(history.items):
        inside = {item.id for item in exchange}
        several = sum(item.kind == "user" for item in exchange) > 1
        assert inside <= set(names) or not inside & set(names) or several
        opening = [name for name in opening if name not in inside]
    assert names[: len(opening)] == opening, "a client's own instructions stay"


@given(TALKS, st.integers(10, 500))
def test_instructions_come_first_and_no_result_stands_alone(items: list[tuple[str, str]], budget: int) -> None:
    prompt = filled(items, History(budget)).prompt("Be kind.", "And now?")
    assert prompt[0].role == "system"
    assert prompt[0].content.startswith("Be kind.")
    assert prompt[-1].content.endswith("And now?")
    known: set[str] = set()
    for message in prompt:
        known |= {use.call_id for use in message.tool_calls}
        assert message.role != "tool" or message.call_id in known


@given(TALKS)
def test_what_is_placed_is_remembered_shown_or_not(items: list[tuple[str, str]]) -> None:
    history = filled(items, History(10))
    assert [item.id for item in history.items] == [f"i{place}" for place in range(len(items))]
    for place in range(len(items)):
        history.drop(f"i{place}")
    assert not history.items
    assert not history.facts


def talk(history: History, said: str, answer: str, place: int) -> None:
    history.place(Item(f"u{place}", "user", "", spoken=True, whole=False))
    history.fill(f"u{place}", said)
    history.place(Item(f"r{place}", "assistant", whole=False))
    history.fill(f"r{place}", answer)


def test_a_name_survives_a_long_talk() -> None:
    history, moved = History(300), 0
    talk(history, "Hi, my name is Peter. I live in Berlin.", "Hello Peter.", 0)
    for place in range(1, 100):
        before = history.shown[0].id
        talk(history, f"Tell me about the number {place}, please.", f"It is {place}, and a fine number.", place)
        moved += history.shown[0].id != before
    assert history.with_facts("Be kind.") == f"Be kind.\n{EARLIER}My name is Peter. I live in Berlin."
    assert history.prompt("")[0].content == f"{EARLIER}My name is Peter. I live in Berlin."
    assert moved < 100 * 2 * 30 // 150, "exchanges go in large steps"
    history.drop("u0")
    assert history.with_facts("Be kind.") == "Be kind."


def test_exchanges_go_after_a_reply_and_not_when_the_person_has_spoken() -> None:
    history = History(400)
    shown = []
    for place in range(60):
        history.place(Item(f"u{place}", "user", "w" * 60))
        shown.append(history.shown[0].id)
        history.place(Item(f"r{place}", "assistant", ""))
        shown.append(history.shown[0].id)
        assert shown[-1] == shown[-2] == shown[max(0, len(shown) - 3)]
        history.fill(f"r{place}", "w" * 60)
        shown.append(history.shown[0].id)
    assert len(set(shown)) > 3


def test_words_that_come_late_are_noted_all_the_same() -> None:
    history = History(60)
    history.place(Item("u", "user", "", whole=False))
    history.place(Item("r", "assistant", "x" * 90))
    history.place(Item("u1", "user", "y" * 150))
    assert "u" not in [item.id for item in history.shown]
    history.fill("u", "My name is Ada.")
    assert history.facts == "My name is Ada."


def test_room_is_made_for_long_instructions() -> None:
    history = filled([(kind, "x" * 300) for _ in range(5) for kind in ("user", "assistant")], History(2000, 2048))
    assert len(history.shown) == 10
    history.make_room(300, 256)
    assert len(history.shown) == 10
    history.make_room(3000, 256)
    assert 2 <= len(history.shown) < 10
    assert tokens(history) <= (2048 - 1000 - 256) // 2 + 1
    history.make_room(30_000, 256)
    assert len(history.shown) == 2
    unknown = filled([("user", "x" * 300)] * 3)
    unknown.make_room(10**6, 256)
    assert len(unknown.shown) == 3


def test_a_denser_language_is_shown_less_of() -> None:
    history = History(1000)
    history.learn(1000, 1000)  # a character is a token
    filled([(kind, "語" * 100) for _ in range(8) for kind in ("user", "assistant")], history)
    assert sum(len(item.text) + ITEM_TOKENS for item in history.shown) <= 1000


@given(st.lists(st.tuples(st.integers(-1, 10_000), st.integers(-1, 10_000))))
def test_token_counts_stay_within_reason(seen: list[tuple[int, int]]) -> None:
    count = TokenCount()
    for characters, number in seen:
        before = count.of(6000)
        count.learn(characters, number)
        if characters > 0 and number > 0:
            assert count.of(characters) >= min(number, characters) - 1 or characters / number > TokenCount.MOST
        else:
            assert count.of(6000) == before
    assert 1000 <= count.of(6000) <= 6000


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_of_talk, "MAX_ITEMS", 40)
    monkeypatch.setattr(memory_of_talk, "MAX_CHARS", 2000)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("kind", ["user", "assistant", "system", "result"])
@pytest.mark.parametrize("length", [0, 10, 70])
def test_memory_is_bounded(kind: ItemKind, length: int) -> None:
    history = History()
    for place in range(60):
        history.place(Item(f"i{place}", kind, "z" * length, call_id="c"))
        assert len(history.items) <= 40
        assert sum(len(item.text) for item in history.items) <= 2000
    history.place(Item("large", kind, "z" * 5000))
    assert sum(len(item.text) for item in history.items) <= 2000


@pytest.mark.usefixtures("small")
def test_what_is_lost_for_good_is_noted_too() -> None:
    history = History(10**6)
    talk(history, "My name is Ada.", "Hello.", 0)
    for place in range(1, 30):
        talk(history, "Go on.", "I do.", place)
    assert "u0" not in history
    assert history.facts == "My name is Ada."


def test_the_server_tells_how_much_a_prompt_holds() -> None:
    messages = filled([("user", "abc"), ("call", "{}")]).messages
    assert characters_of(messages) == 3 + len("book") + 2
    assert History()._budget == HISTORY_TOKENS


@pytest.mark.parametrize(
    ("behind", "stays"),
    [
        ([], False),
        ([("assistant", "")], False),  # a reply that had only begun
        ([("user", "later")], False),
        ([("assistant", "Yes,")], True),
        ([("assistant", ""), ("call", "{}")], True),  # what was done is not asked for again
    ],
)
def test_words_that_will_be_said_again_are_forgotten_unless_something_answers_them(behind: Any, stays: bool) -> None:
    history = filled([("user", "one"), ("assistant", "two"), ("user", "three"), *behind])
    history.drop_unanswered("i2")
    history.drop_unanswered("of no one")
    assert ("i2" in history) == stays
    assert [item.text for item in history.items] == ["one", "two", *["three"] * stays, *(text for _, text in behind)]
