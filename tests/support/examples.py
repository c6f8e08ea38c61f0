"""How much a test tries: a few cases in `make test`, all of them in `make soak`; the seed of fuzzers."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pytest

SOAK = bool(os.environ.get("VOXLANE_SOAK"))
_SHARE, _LEAST = 10, 5


def examples(count: int) -> int:
    """Return how many examples a property test draws: `count` in a soak, else a tenth and at least five."""
    return count if SOAK else max(min(count, _LEAST), count // _SHARE)


def sweep(cases: Iterable[Any], here: int = 1) -> list[Any]:
    """Return the cases of a parametrised test, all but the first `here` of them left to the soak."""
    return [
        one if place < here else pytest.param(*(one if isinstance(one, tuple) else (one,)), marks=pytest.mark.soak)
        for place, one in enumerate(cases)
    ]


def seed_of_today() -> int:
    """Return the fuzzers' seed: another one every day, the same all day."""
    return int(f"{datetime.now(UTC):%Y%m%d}")
