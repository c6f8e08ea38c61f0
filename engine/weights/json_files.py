"""JSON from model directories: bounded in size, strict, and a WeightsError when it is malformed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from voxlane.engine.errors import WeightsError

MAX_JSON_BYTES = 64 * 1024 * 1024
"""The largest tokenizer.json in use has 33 MB."""


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object from a file of bounded size, or raise WeightsError."""
    try:
        size = path.stat().st_size
        if size > MAX_JSON_BYTES:
            raise WeightsError(path, f"{size} bytes of JSON are over the limit of {MAX_JSON_BYTES}")
        return parse_json(path, path.read_bytes())
    except OSError as error:
        raise WeightsError(path, f"cannot be read: {error.strerror or error}") from error


def parse_json(path: Path, data: bytes) -> dict[str, Any]:
    """Return the JSON object in `data`; duplicate keys, NaN and deep nesting are refused."""
    try:
        value = json.loads(data, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise WeightsError(path, f"not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise WeightsError(path, "not a JSON object")
    return value


def _unique(pairs: list[tuple[str, object]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key occurs twice")
    return result


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not a JSON number")
