"""How many examples a property test tries: few in `make test`, all of them in `make soak`."""

from __future__ import annotations

import os

SOAK = bool(os.environ.get("VOXLANE_SOAK"))
_SHARE = 6


def examples(count: int) -> int:
    """Return `count` in a soak, else a sixth of it and at least ten."""
    return count if SOAK else max(min(count, 10), count // _SHARE)
