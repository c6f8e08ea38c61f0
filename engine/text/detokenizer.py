"""Tokens in, text out, incrementally: whole characters only, no part of a stop string. Pure; it knows no tokenizer."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextStream:
    """The text of one request, in pieces that are final."""

    __slots__ = ("_begun", "_held", "_stops", "stopped")

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._begun = b""  # the first bytes of a character
        self._stops = tuple(stops)
        self._held = ""  # text that may be the start of a stop string
        self.stopped = False

    def push(self, piece: bytes) -> str:
        """Take a token's bytes; return the text that is now final."""
        if self._begun:
            piece = self._begun + piece
        text, used = codecs.utf_8_decode(piece, "replace")
        self._begun = piece[used:]
        return self._release(text) if self._stops else text

    def finish(self) -> str:
        """Return the text that was held back; an unfinished character becomes U+FFFD."""
        begun, self._begun = self._begun, b""
        text = self._release(begun.decode(errors="replace"))
        held, self._held = self._held, ""
        return text if self.stopped else text + held

    def _release(self, text: str) -> str:
        if self.stopped:
            return ""
        if not self._stops:
            return text
        self._held += text
        ends = [position for stop in self._stops if (position := self._held.find(stop)) >= 0]
        if ends:
            self.stopped = True
            certain, self._held = self._held[: min(ends)], ""
            return certain
        keep = max(_overlap(self._held, stop) for stop in self._stops)
        certain, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return certain


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that begins `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
