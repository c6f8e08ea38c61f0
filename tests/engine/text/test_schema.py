"""Schemas from clients: bounded, closed where that is meant, and without settings of the compiler."""

from __future__ import annotations

import json
from typing import Any

import pytest

from voxlane.engine.text.schema import MAX_DEPTH, MAX_REFERENCES, MAX_SCHEMA_BYTES, SchemaError, read, steering

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name"],
}


def test_objects_that_list_their_properties_are_closed() -> None:
    assert steering(PERSON)["additionalProperties"] is False
    nested = steering({"anyOf": [PERSON, {"type": "array", "items": PERSON}], "$defs": {"p": PERSON}})
    assert nested["anyOf"][0]["additionalProperties"] is False
    assert nested["anyOf"][1]["items"]["additionalProperties"] is False
    assert nested["$defs"]["p"]["additionalProperties"] is False


@pytest.mark.parametrize(
    "schema",
    [
        {**PERSON, "additionalProperties": {"type": "integer"}},
        {**PERSON, "required": ["name", "other"]},
        {**PERSON, "minProperties": 3},
        {"properties": {"a": {}}, "$ref": "#/$defs/b", "$defs": {"b": {"properties": {"b": {}}}}},
        {"properties": {"a": {}}, "allOf": [{"properties": {"b": {}}}]},
    ],
)
def test_objects_that_need_other_properties_stay_open(schema: dict[str, Any]) -> None:
    assert steering(schema).get("additionalProperties") == schema.get("additionalProperties")


def test_unknown_formats_are_annotations_and_settings_are_ours() -> None:
    sent = {"type": "string", "format": "city", "x-guidance": {"whitespace_pattern": "x*"}}
    made = steering({"properties": {"a": sent, "b": {"type": "string", "format": "date"}}})
    assert made["properties"] == {"a": {"type": "string"}, "b": {"type": "string", "format": "date"}}


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", '"json"', '{"maximum": NaN}', '{"a": "' + "x" * MAX_SCHEMA_BYTES + '"}',
        '{"a":' * (MAX_DEPTH + 2) + "{}" + "}" * (MAX_DEPTH + 2), '{"a":' + "[" * 100_00 + "]" * 100_00 + "}",
        json.dumps({"anyOf": [{"$ref": "#"}] * (MAX_REFERENCES + 1)}),
    ],
)  # fmt: skip
def test_what_is_no_schema_or_too_much_of_one_is_refused(text: str) -> None:
    with pytest.raises(SchemaError):
        read(text)
