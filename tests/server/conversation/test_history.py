"""What is remembered of a conversation gets shorter, whatever is in it, and stays what a model can be shown."""

from __future__ import annotations

import json

import hypothesis.strategies as st
import pytest
from hypothesis import given

from voxlane.server.conversation.history import History
from voxlane.server.conversation.values import Item

WORDS = st.one_of(st.text("ab ", max_size=6), st.integers(0, 3000).map(lambda size: "x" * size))
CALLS = st.integers(0, 400).map(lambda size: json.dumps({"text": "y" * size}))
ITEMS = st.one_of(
    st.tuples(st.sampled_from(["user", "assistant", "system", "result"]), WORDS), st.tuples(st.just("call"), CALLS)
)


def size(history: History) -> int:
    return sum(len(item.text) for item in history.items)


@given(st.lists(ITEMS, max_size=8))
def test_half_is_forgotten_and_calls_stay_whole(items: list[tuple[str, str]]) -> None:
    history = History()
    for place, (kind, text) in enumerate(items):
        history.place(Item(f"i{place}", kind, text, "book", f"c{place}"))  # type: ignore[arg-type]
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
