"""Whether an output goes round in circles: the same few tokens, over and over. Pure; it knows tokens, not text.

Small models fall into such loops and never leave them. A list or a refrain is no loop: all of the tail must repeat,
token by token, at least REPEATS times.
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST_PERIOD = 64
"""Tokens that a repeated stretch may have: a long sentence."""

REPEATS = 4
"""How often a stretch must have been said before it is a loop."""

CHECK_TOKENS = 8
"""Tokens between two looks at the tail. A look takes 4 µs on a Xeon at 2.5 GHz: half a microsecond a token."""

LEAST_LOOP_TOKENS = 2 * CHECK_TOKENS
"""The shortest loop that can be asked for: one that a look sees begin before another sees it complete."""


class LoopGuard:
    """Watches one output: it may be `repeating`, and then turn out to be `looping`."""

    __slots__ = ("_least", "_seen", "looping", "repeating")

    def __init__(self, least_tokens: int) -> None:
        """Call it a loop when a stretch repeated REPEATS times has at least so many tokens in all."""
        self._least = least_tokens
        self._seen = 0  # tokens of the output at the last look
        self.repeating = False  # half of what makes a loop is there
        self.looping = False

    def look(self, tokens: Sequence[int], start: int) -> bool:
        """Look at an output, which begins at `start` of `tokens`, if it has grown enough; return whether it loops."""
        count = len(tokens) - start
        if count - self._seen < CHECK_TOKENS:
            return self.looping
        self._seen = count
        self.repeating = self.looping = False
        last = tokens[-1]
        for period in range(1, min(LONGEST_PERIOD, count - 1) + 1):
            if tokens[-1 - period] != last or not self._repeats(tokens, count, period, 2):
                continue
            self.repeating = True
            if self._repeats(tokens, count, period, 1):
                self.looping = True
                break
        return self.looping

    def _repeats(self, tokens: Sequence[int], count: int, period: int, share: int) -> bool:
        """Return whether the tail is a loop of this period, or so large a share of one."""
        length = max(self._least, REPEATS * period) // share
        return length <= count and tokens[-length:-period] == tokens[period - length :]
