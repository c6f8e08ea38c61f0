"""A page of shared memory on which the engine's step thread shows that it goes on, for the server to read.

The server makes the page. The engine counts on it inside steps and while it is idle; a thread beside the steps never
does. No message could show this: a step that takes long sends none until it ends.
"""

from __future__ import annotations

import ctypes
import mmap

PAGE_BYTES = 4096

_COUNT, _ALLOWED_MS = 0, 1


class ProgressPage:
    """A count that only grows, and how long it may stand still."""

    def __init__(self, descriptor: int = -1) -> None:
        """Map the page of a file descriptor, which may be closed afterwards; without one, a page of our own."""
        self._memory = mmap.mmap(descriptor, PAGE_BYTES)
        self._words = memoryview(self._memory).cast("Q")

    @property
    def count(self) -> int:
        """How often the step thread has shown that it goes on; 0: never, the engine does not use the page."""
        return self._words[_COUNT]

    @property
    def allowed_s(self) -> float:
        """How long the count may stand still now, in seconds; 0: as long as the server allows."""
        return self._words[_ALLOWED_MS] / 1e3

    @allowed_s.setter
    def allowed_s(self, seconds: float) -> None:
        self._words[_ALLOWED_MS] = round(seconds * 1e3)

    def advance(self) -> None:
        """Count on."""
        self._words[_COUNT] += 1

    def clear(self) -> None:
        """Begin anew, for another engine."""
        self._words[_COUNT] = self._words[_ALLOWED_MS] = 0

    @property
    def address(self) -> int:
        """Where the count is in memory, for native code that counts on."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    def close(self) -> None:
        """Give the memory back."""
        self._words.release()  # both may be done twice
        self._memory.close()
