"""Checks of values from outside: the place is named, the rule is said, and nothing of the sender's is repeated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from voxlane.server.validation import InvalidValue, checked, description_of, fields_of, is_list, rule_of

Short = Annotated[str, Meta(min_length=1, max_length=3)]


class Leaf(msgspec.Struct, forbid_unknown_fields=True):
    name: Short
    kind: Annotated[Literal["a"], Meta(extra={"unsupported": "only a is supported"})] = "a"


class First(msgspec.Struct, tag_field="type", tag="first"):
    pass


class Second(msgspec.Struct, tag_field="type", tag="second"):
    leaf: Leaf


class Spot(msgspec.Struct, array_like=True):
    row: int
    leaf: Leaf


class Tree(msgspec.Struct, forbid_unknown_fields=True):
    level: Annotated[float, Meta(ge=0, le=2.5, description="How much.")] | None = None
    count: Annotated[int, Meta(ge=1, le=8)] = 1
    on: bool = False
    leaves: Annotated[list[Leaf], Meta(min_length=1, max_length=4)] | None = None
    words: Short | Annotated[list[Short], Meta(max_length=2)] | None = None
    pairs: Annotated[dict[Annotated[str, Meta(pattern="^x")], int], Meta(max_length=2)] | None = None
    either: First | Second | None = None
    colours: list[Literal["red", "blue"]] = msgspec.field(name="colours[]", default_factory=list)
    whole: Annotated[float, Meta(ge=0, le=9, multiple_of=1)] = 0
    spot: Spot | None = None
    own: Annotated[str, Meta(max_length=1, extra={"rule": "must be one letter"})] = ""


@pytest.mark.parametrize(
    ("value", "path", "rule", "kind"),
    [
        (3, "", "must be an object", "type"),
        ({"level": 3}, "level", "must be a number from 0 to 2.5", "value"),
        ({"level": "SECRET"}, "level", "must be a number from 0 to 2.5", "type"),
        ({"count": 1.5}, "count", "must be a whole number from 1 to 8", "type"),
        ({"count": True}, "count", "must be a whole number from 1 to 8", "type"),
        ({"on": "SECRET"}, "on", "must be true or false", "type"),
        ({"leaves": []}, "leaves", "must be a list of 1 to 4 objects", "value"),
        ({"leaves": [{"name": "n"}, "SECRET"]}, "leaves[1]", "must be an object with name", "type"),
        ({"leaves": [{}]}, "leaves[0].name", "must be a string of 1 to 3 characters", "missing"),
        ({"leaves": [{"name": "SECRET"}]}, "leaves[0].name", "must be a string of 1 to 3 characters", "value"),
        (
            {"words": ["a", "SECRET"]},
            "words",
            "must be a string of 1 to 3 characters or a list of up to 2 strings of 1 to 3 characters",
            "value",
        ),
        ({"pairs": {"SECRET": 1}}, "pairs", "must be an object of up to 2 entries", "value"),
        ({"pairs": {"x": "SECRET"}}, "pairs", "must be an object of up to 2 entries", "type"),
        ({"either": {}}, "either", "must be an object whose type is first or second", "value"),
        ({"either": {"type": "SECRET"}}, "either", "must be an object whose type is first or second", "value"),
        ({"either": {"type": "second"}}, "either.leaf", "must be an object with name", "type"),
        (
            {"either": {"type": "second", "leaf": {"name": ""}}},
            "either.leaf.name",
            "must be a string of 1 to 3 characters",
            "value",
        ),
        ({"colours[]": ["red", "SECRET"]}, "colours[]", "must be a list of blue or red", "value"),
        ({"own": "SECRET"}, "own", "must be one letter", "value"),
        ({"leaves": [{"name": None}]}, "leaves[0].name", "must be a string of 1 to 3 characters", "missing"),
        ({"leaves": [{"name": "n", "kind": 5}]}, "leaves[0].kind", "only a is supported", "unsupported"),
        ({"colours[]": ["red", 5]}, "colours[]", "must be a list of blue or red", "value"),
        ({"whole": 2.5}, "whole", "must be a whole number from 0 to 9", "type"),
        ({"whole": 10}, "whole", "must be a whole number from 0 to 9", "value"),
        ({"spot": ["SECRET", 1]}, "spot.row", "must be a whole number", "type"),
        ({"spot": [1, {"name": "SECRET"}]}, "spot.leaf.name", "must be a string of 1 to 3 characters", "value"),
        ({"spot": [1]}, "spot", "must be a list of row and leaf", "value"),
        ({"spot": "SECRET"}, "spot", "must be a list of row and leaf", "type"),
    ],
)
def test_the_place_the_rule_and_the_mistake_are_named(value: object, path: str, rule: str, kind: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        checked(Tree, value)
    assert (caught.value.path, caught.value.rule, caught.value.kind) == (path, rule, kind)
    assert "SECRET" not in str(caught.value)
    assert caught.value.__cause__ is caught.value.__context__ is None
    with pytest.raises(InvalidValue) as below:
        checked(Tree, value, at="here")
    assert below.value.path == (f"here.{path}" if path else "here")


def test_what_is_unknown_or_unsupported_is_told_apart() -> None:
    with pytest.raises(InvalidValue) as caught:
        checked(Tree, {"leaves": [{"name": "n", "kind": "SECRET"}]})
    assert (caught.value.path, caught.value.kind) == ("leaves[0].kind", "unsupported")
    assert caught.value.rule == "only a is supported"
    for key, shown in (("colour", "colour"), ("a` - at `$.level", '"a` - at `$.level"'), ("a\nb", '"a\\nb"')):
        with pytest.raises(InvalidValue) as caught:
            checked(Tree, {"leaves": [{"name": "n", key: 1}]})
        assert (caught.value.path, caught.value.kind) == (f"leaves[0].{shown}", "unknown")
        assert caught.value.rule == "is not known; known are name, kind"


def test_values_that_fit() -> None:
    tree = checked(Tree, {"level": 2, "words": "abc", "either": {"type": "second", "leaf": {"name": "n"}}})
    assert (tree.level, tree.words, tree.either) == (2.0, "abc", Second(Leaf("n")))
    form = checked(Tree, {"level": "0.5", "count": "3", "on": "True", "colours[]": ["red"]}, text=True)
    assert (form.level, form.count, form.on, form.colours) == (0.5, 3, True, ["red"])
    for wrong in ({"level": "nan"}, {"level": "inf"}, {"on": "yes"}, {"count": "1e9"}):
        with pytest.raises(InvalidValue):
            checked(Tree, wrong, text=True)


@dataclass
class Plain:
    port: Annotated[int, Meta(ge=0, le=9, description="Where to listen.")] = 0
    names: tuple[str, ...] = ()


def test_dataclasses_and_descriptions() -> None:
    assert checked(Plain, {"names": ["a"]}) == Plain(names=("a",))
    fields = fields_of(Plain)
    assert description_of(fields["port"].type) == "Where to listen."
    assert description_of(fields["names"].type) == ""
    assert [is_list(field) for field in fields.values()] == [False, True]
    assert rule_of(fields["names"].type) == "must be a list of strings"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.just("SECRET"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "type", "leaf", "x"]), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(sorted(fields_of(Tree))), JSON, max_size=3), st.booleans())
def test_any_value_fits_or_is_refused_in_our_own_words(value: dict[str, Any], text: bool) -> None:
    told = ""
    try:
        checked(Tree, value, text=text)
    except InvalidValue as error:
        told = str(error)
    assert "SECRET" not in told
    assert told.isprintable()
