"""Speculation by prompt lookup: guess that a phrase seen before goes on as it did then. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from voxlane.engine.schedule.request import ChatPayload, Request

LONGEST = 3
SHORTEST = 2
"""Lengths of the phrase looked for, in tokens. One token alone is right too rarely to be worth a row."""

WINDOW = 2048
"""Tokens searched, newest first: bounds the time of a guess."""

_GUESSED_TASKS = frozenset({"chat", "complete"})  # the others write no text that could be guessed


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


def guess(request: Request, stop: int, tokens_left: int, most: int) -> list[int]:
    """Return what may follow a request's tokens if a step comes to their end: what was heard before, else a lookup.

    Only a plain greedy text is looked up, `most` tokens of it; what was heard is tried once.
    """
    if stop < len(request.tokens) or not (request.drafts or most):
        return []
    sampling = request.sampling
    room = min(tokens_left, sampling.max_tokens - request.output_tokens - 1, request.limit - len(request.tokens) - 1)
    if request.drafts:
        drafts, request.drafts = request.drafts[: max(room, 0)], []
        return drafts
    if not (request.decoding and request.task in _GUESSED_TASKS and _is_plain(request)):
        return []
    return propose(request.tokens, min(room, most))


def _is_plain(request: Request) -> bool:
    """Return whether a token's choice needs nothing but its own logits."""
    payload, sampling = request.payload, request.sampling
    free = isinstance(payload, ChatPayload) and payload.constraint is None
    return free and sampling.is_plain_greedy and sampling.logprobs < 0
