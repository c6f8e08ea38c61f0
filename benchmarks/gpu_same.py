"""Whether answers come out again as they were. It knows texts alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Same:
    """How many answers come out again as they were, and how soon the others part from that."""

    same: int
    asked: int
    words: int  # compared, up to where one parts; a word is a token

    @property
    def parted(self) -> float:
        """How many part in a thousand tokens."""
        return round(1e3 * (self.asked - self.same) / max(1, self.words), 2)


def compare(pairs: Sequence[tuple[str, str]]) -> Same:
    """Compare answers with what came out when they were asked for again."""
    same = words = 0
    for first, second in pairs:
        both = list(zip(first.split(" "), second.split(" "), strict=False))
        words += next((number + 1 for number, (one, other) in enumerate(both) if one != other), len(both))
        same += first == second
    return Same(same, len(pairs), words)
