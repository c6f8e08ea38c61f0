"""Speculation by prompt lookup: guess that a phrase seen before goes on as it did then. Pure."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST = 3
SHORTEST = 2
"""Lengths of the phrase looked for, in tokens. One token alone is right too rarely to be worth a row."""

WINDOW = 2048
"""Tokens searched, newest first: bounds the time of a guess."""


def propose(tokens: Sequence[int], count: int) -> list[int]:
    """Return up to `count` tokens that followed the most recent earlier occurrence of the last few tokens."""
    if count <= 0:
        return []
    oldest = max(0, len(tokens) - WINDOW)
    for length in range(LONGEST, SHORTEST - 1, -1):
        if len(tokens) <= length:
            continue
        phrase = list(tokens[-length:])
        for start in range(len(tokens) - length - 1, oldest - 1, -1):
            if tokens[start] == phrase[0] and list(tokens[start : start + length]) == phrase:
                return list(tokens[start + length : start + length + count])
    return []


def accepted(drafts: Sequence[int], greedy: Sequence[int]) -> list[int]:
    """Return the tokens a verified guess yields: the drafts the model agrees with, then its own next token."""
    agreed = 0
    while agreed < len(drafts) and drafts[agreed] == greedy[agreed]:
        agreed += 1
    return list(greedy[: agreed + 1])
