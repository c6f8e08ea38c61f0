"""The tokens of texts that were read before: a conversation's prompt repeats all its earlier messages.

Each tenant has entries of its own: how soon a prompt is read tells nothing about another tenant's texts.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Sequence

MAX_BYTES = 16_000_000
"""Memory of all texts that are kept, about: a character and its share of a token take two bytes."""

ENTRY_BYTES = 250
"""What a text takes beside its characters and tokens."""

MAX_TEXT = 20_000
"""Longest text that is kept: it must not push out all the others."""

Encode = Callable[[list[str]], list[list[int]]]


class KnownTexts:
    """Texts and their tokens, the oldest forgotten first. Several threads may use it."""

    def __init__(self, encode: Encode, most: int = MAX_BYTES) -> None:
        """Begin with none; `encode` returns the tokens of each of some texts."""
        self._encode = encode
        self._most = most
        self._tokens: dict[tuple[str, str], array[int]] = {}
        self._bytes = 0
        self._changes = threading.Lock()

    def encode(self, texts: Sequence[str], tenant: str) -> list[Sequence[int]]:
        """Return the tokens of each text; those that are new are encoded together."""
        found = {text: self._tokens.get((tenant, text)) for text in texts}
        new = [text for text, tokens in found.items() if tokens is None]
        for text, tokens in zip(new, self._encode(new) if new else (), strict=True):
            found[text] = kept = array("I", tokens)
            if len(text) <= MAX_TEXT:
                self._keep((tenant, text), kept)
        return [tokens for tokens in map(found.__getitem__, texts) if tokens is not None]

    def _keep(self, key: tuple[str, str], tokens: array[int]) -> None:
        with self._changes:
            if key not in self._tokens:
                self._tokens[key] = tokens
                self._bytes += _size(key[1])
            while self._bytes > self._most:
                oldest = next(iter(self._tokens))
                del self._tokens[oldest]
                self._bytes -= _size(oldest[1])


def _size(text: str) -> int:
    return 2 * len(text) + ENTRY_BYTES
