"""Speculation by prompt lookup: guess that a phrase seen before goes on as it did before. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from voxlane.engine.schedule.request import ChatPayload, Request

LONGEST = 3
"""Most tokens of the phrase that is looked for."""

SHORTEST = 2
"""Fewest tokens of that phrase. A guess from one token alone is right too rarely to be worth its cost."""

WINDOW = 2048
"""Tokens that are searched, newest first: this bounds the time of a guess."""

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
    """Return guesses of the tokens that follow a request's own, if a step ends at `stop` with the last of these.

    The drafts of a recognition are tried once. Else, for plain greedy text, up to `most` tokens are looked up.
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
    free = isinstance(payload, ChatPayload) and payload.constraint is None and not request.next_barred
    return free and sampling.is_plain_greedy and sampling.logprobs < 0
