"""Calls written as Python: what is read, what is refused, and that nothing of it is run."""

from __future__ import annotations

import json
from typing import Any

import hypothesis.strategies as st
import pytest
from examples import examples
from hypothesis import given, settings

from voxlane.engine.text.python_calls import MAX_CHARACTERS, NotCallsError, read_calls, write_call

numbers = st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
keys = st.from_regex(r"[A-Za-z_][A-Za-z0-9_-]{0,8}", fullmatch=True)
names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,12}", fullmatch=True)


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(names, st.dictionaries(keys, values, max_size=4)), max_size=4))
def test_what_is_written_is_read(calls: list[tuple[str, dict[str, Any]]]) -> None:
    text = ", ".join(write_call(name, arguments) for name, arguments in calls)
    found = read_calls(f"[{text}]")
    # As JSON: a whole number may be a float with the same text.
    assert json.dumps(found) == json.dumps(calls)


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('[get_weather(city="Paris")]', [("get_weather", {"city": "Paris"})]),
        ("get_weather(city='Paris')", [("get_weather", {"city": "Paris"})]),
        ("[a(), b()]", [("a", {}), ("b", {})]),
        ("[a(x=1,), ]", [("a", {"x": 1})]),
        (" [ a( x = -2.5 , y = [1, (2, None)] ) ]\n", [("a", {"x": -2.5, "y": [1, [2, None]]})]),
        ("[a(x=true, y=null, z=False)]", [("a", {"x": True, "y": None, "z": False})]),
        ('[tools.get-time(zone={"name": "UTC"})]', [("tools.get-time", {"zone": {"name": "UTC"}})]),
        ('[a(x="f(]), b(", y="\\"\\u00e9")]', [("a", {"x": "f(]), b(", "y": '"é'})]),
        ('[a(x="two\nlines")]', [("a", {"x": "two\nlines"})]),
        ("[a(x=1e999)]", [("a", {"x": 1.7976931348623157e308})]),
        ('[fly(from="A", to="B")]', [("fly", {"from": "A", "to": "B"})]),
        ('[a(x="\\d")]', [("a", {"x": "\\d"})]),
        ("[]", []),
    ],
)
def test_what_is_read(text: str, calls: list[tuple[str, dict[str, Any]]]) -> None:
    assert read_calls(text) == calls


@pytest.mark.parametrize(
    "text",
    [
        "hello", "[a(1)]", "[a(**{})]", "[a(*[])]", "[a(x=b)]", "[a(x=b())]", "[a(x=1 + 1)]", "[a(x=1, x=2)]",
        "[a(x={1: 2})]", "[a(x={**{}})]", "[a(x=b'bytes')]", "[a(x=1j)]", "[a(x=...)]", '[a(x=f"{1}")]',
        "[a(x=lambda: 1)]", "[a(x=[y for y in []])]", "[a(x=-True)]", "[a(x=1) b(y=2)]", "[a(x=1)", '[a(x="open)]',
        "[a(]", "[a(x=" + "[" * 3000 + "]" * 3000 + ")]", "[a(x=" + "9" * 10_000 + ")]",
        '[a(x="' + "y" * MAX_CHARACTERS + '")]', "[a(x='\\ud800', y=\\)]", "[a(x=1)\0]",
    ],
)  # fmt: skip
def test_what_is_refused(text: str) -> None:
    with pytest.raises(NotCallsError):
        read_calls(text)


@settings(max_examples=examples(100))
@given(st.text(alphabet="[]()=,'\"\\ab1.-{}: \n", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        for _, arguments in read_calls(text):
            json.dumps(arguments, allow_nan=False)
    except NotCallsError:
        pass
