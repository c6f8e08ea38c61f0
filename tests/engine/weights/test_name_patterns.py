"""Patterns for module names match like PEFT's regular expressions, and never take long."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxlane.engine.weights.name_patterns import NamePattern

NAME = "model.layers.12.self_attn.q_proj"


def by_peft(pattern: str, name: str) -> bool:
    """Match as PEFT does."""
    return re.match(rf"(.*\.)?({pattern})$", name) is not None


@pytest.mark.parametrize(
    "pattern",
    [
        "q_proj", "proj", "^q_proj", "^model.layers.12.self_attn.q_proj", "self_attn.q_proj", "attn.q_proj",
        ".*q_proj", r"layers\.(1|12)\..*", r"layers\.(1|2)\..*", "(q|k)_proj", "(?:v|k)_proj", "[qk]_proj", "[^q]_proj",
        r"layers\.\d+\.self_attn\.(q|v)_proj", r"layers\.[0-9]+\.self_attn\.\w_pro[a-z]", "model.*proj$", "", ".*",
        "model|q_proj", "q_pro?j", "q_proj+?", r"q\_proj", "q-proj", "(q_)*proj", "((q|_)+)proj", "(model)?.*",
    ],
)  # fmt: skip
def test_what_people_write(pattern: str) -> None:
    assert NamePattern(pattern).matches(NAME) == by_peft(pattern, NAME)


atoms = st.sampled_from(["a", "b", "ab", ".", r"\.", "[ab]", "[^a]", r"\w", "^", "$"])
patterns = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map("|".join).map("({})".format),
        st.tuples(inner, st.sampled_from("*+?")).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
    ),
    max_leaves=5,
)


@given(patterns, st.text("ab.", max_size=8))
def test_any_pattern_matches_what_re_matches(pattern: str, name: str) -> None:
    try:
        found = NamePattern(pattern).matches(name)
    except ValueError as error:
        assert "deep" in str(error)  # noqa: PT017  # the only thing that is refused of these
    else:
        assert found == by_peft(pattern, name)


@pytest.mark.parametrize("pattern", ["((((.*)*)*)*)*x", "(.|.)" * 50 + "x", "(a|a)*" * 40 + "b", "(.*.*.*.*)+x"])
def test_patterns_that_would_keep_re_busy_for_years(pattern: str) -> None:
    assert not NamePattern(pattern).matches("a" * 200)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(", "not closed"), ("(a", "not closed"), ("a)", "too many"), ("a{2}", r"'\{2\}'"), ("(?=a)", "'[(][?]=a[)]'"),
        (r"(.)\1", "not supported"), (r"\b", "not supported"), ("[z-a]", "bad character range"), ("*", "not supported"),
        ("a**", "not supported"), ("a|*", "not supported"), ("^*", "not supported"), ("[", "not supported"),
        ("(" * 6 + "a" + ")" * 6, "deep"), ("x" * 300, "longer than 256"), ("(*a)", "not supported"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_said(pattern: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        NamePattern(pattern)
