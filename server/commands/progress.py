"""A line on a terminal that shows how far the engine's start is; silent if the output is no terminal."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self, TextIO

from voxlane.engine.api import Loading
from voxlane.server.engine_client.engine_client import Observer

BAR_CHARACTERS = 24


class Progress(Observer):
    """Draws Loading messages over one another; closing wipes the line."""

    def __init__(self, stream: TextIO = sys.stderr) -> None:
        self._stream = stream
        self._draws = stream.isatty()
        self._shown = False

    def loading(self, message: Loading) -> None:
        """Draw one step of the start."""
        if self._draws:
            full = round(min(max(message.done, 0.0), 1.0) * BAR_CHARACTERS)
            bar = "█" * full + "░" * (BAR_CHARACTERS - full)
            self._stream.write(f"\r\x1b[K{bar} {message.what[:48]}")
            self._stream.flush()
            self._shown = True

    def close(self) -> None:
        """Wipe the line."""
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
