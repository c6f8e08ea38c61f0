"""Messages that a step leads to: they wait until it returns, unless one of them cannot. It makes none."""

from __future__ import annotations

from collections.abc import Callable

from voxlane.engine.api import FromEngine

Tell = Callable[[list[FromEngine]], object]


class Outbox:
    """Keeps messages in order."""

    def __init__(self) -> None:
        self._tell: Tell | None = None
        self._waiting: list[FromEngine] = []

    def open(self, tell: Tell | None) -> None:
        """Begin anew; what is told at once is told by `tell`, and waits like the rest if there is none."""
        self._tell = tell
        self._waiting = []

    def add(self, messages: list[FromEngine]) -> None:
        """Keep messages until they are taken."""
        self._waiting += messages

    def hurry(self, messages: list[FromEngine]) -> None:
        """Tell messages at once, and all that wait before them."""
        self._waiting += messages
        if self._tell is not None and messages:
            told, self._waiting = self._waiting, []
            self._tell(told)

    def overtake(self, messages: list[FromEngine]) -> None:
        """Tell messages at once, and what waits about others after them: a step's are hundreds."""
        about = {getattr(message, "request_id", None) for message in messages}
        if self._tell is None or any(getattr(message, "request_id", None) in about for message in self._waiting):
            self.hurry(messages)
        elif messages:
            self._tell(messages)

    def take(self) -> list[FromEngine]:
        """Return what waits."""
        return self._waiting
