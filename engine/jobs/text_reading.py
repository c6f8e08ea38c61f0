"""The text of a reply while it is read: its pieces become words, a few milliseconds of work at a time."""

from __future__ import annotations

from collections import deque

from voxlane.engine.jobs.speech import MAX_CLAUSE_CHARS, TextPiece, halves
from voxlane.engine.text.incremental import Reader, Said


class TextReading:
    """The words of one reply so far."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.words: list[Said] = []
        self.closed = False  # no more words will come

    def read(self, queue: deque[TextPiece], *, ended: bool) -> bool:
        """Read the next piece of a queue, or `ended` its last words; return whether these were the last."""
        if queue:
            piece = queue.popleft()
            if len(piece.text) > MAX_CLAUSE_CHARS and (parts := halves(piece)):
                queue.extendleft(reversed(parts))
            else:
                self.words += self._reader.read(piece.text)
        if not ended or queue or self.closed:
            return False
        self.words += self._reader.finish()
        self.closed = True
        return True
