"""How many examples a property test tries: few in `make test`, all of them in `make soak`; the seed of fuzzers."""

from __future__ import annotations

import os
from datetime import UTC, datetime

SOAK = bool(os.environ.get("VOXLANE_SOAK"))
_SHARE = 6


def examples(count: int) -> int:
    """Return `count` in a soak, else a sixth of it and at least ten."""
    return count if SOAK else max(min(count, 10), count // _SHARE)


def seed_of_today() -> int:
    """Return the fuzzers' seed: another one every day, the same all day."""
    return int(f"{datetime.now(UTC):%Y%m%d}")
