"""Commands that have come and were not carried out. It knows what cannot wait, and carries out nothing.

What cannot wait is taken first, and with it whatever else of its session has come: the commands of a session, and those
about one request, keep their order. Others may be overtaken, but for what is about no request and no session, which
anybody before or after it may depend on: that is overtaken by nobody, and overtakes nobody.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from voxlane.engine.api import Append, Interrupt, Priority, Submit, ToEngine

Receive = Callable[[], Iterable[ToEngine]]
Name = tuple[str, str]
_ALL: Name = ("all", "")  # of what is about no request: whoever comes later may depend on it


class Inbox:
    """Commands in the order they came."""

    def __init__(self, session_of: Callable[[str], str]) -> None:
        """Ask `session_of` for the session of a request that was opened, "" if there is none."""
        self._session_of = session_of
        self._waiting: deque[ToEngine] = deque()
        self._urgent = False

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._waiting)

    def add(self, commands: Iterable[ToEngine]) -> None:
        """Take commands that have come."""
        for command in commands:
            self._waiting.append(command)
            self._urgent = self._urgent or _cannot_wait(command)

    def next(self) -> ToEngine:
        """Return the first that waits."""
        return self._waiting.popleft()

    def urgent(self) -> list[ToEngine]:
        """Return those that cannot wait and those that must not be overtaken by them, in order; usually none."""
        if not self._urgent:
            return []
        self._urgent = False
        names = self._names()
        urgent = (own for command, own in zip(self._waiting, names, strict=True) if _cannot_wait(command))
        wanted: set[Name] = set()
        wanted.update(*urgent)
        known = 0
        while known < len(wanted):  # a request of theirs may be known by another session, too
            known = len(wanted)
            for own in names:
                if not wanted.isdisjoint(own):
                    wanted |= own
        barrier = max((place for place, own in enumerate(names) if _ALL in own), default=-1)
        marked = [
            (place <= barrier or not wanted.isdisjoint(own), command)
            for place, (own, command) in enumerate(zip(names, self._waiting, strict=True))
        ]
        self._waiting = deque(command for taken, command in marked if not taken)
        return [command for taken, command in marked if taken]

    @property
    def stirs(self) -> bool:
        """Whether one of them could change who is in a step."""
        return any(map(stirs, self._waiting))

    def _names(self) -> list[set[Name]]:
        """Return the session and the request each command is about."""
        sessions: dict[str, str] = {}  # of requests that are not opened yet
        found: list[set[Name]] = []
        for command in self._waiting:
            if isinstance(command, Interrupt):
                found.append({("session", command.session)})
                continue
            request_id: str | None = getattr(command, "request_id", None)
            if request_id is None:
                found.append({_ALL})
                continue
            if isinstance(command, Submit):
                sessions[request_id] = command.session
            session = sessions.get(request_id) or self._session_of(request_id)
            found.append({("request", request_id), *([("session", session)] if session else [])})
        return found


def stirs(command: ToEngine) -> bool:
    """Return whether a command could change who is in a step that was planned ahead.

    Sound and text that come do not: such plans are of the chat model, and who listens or speaks is not in them.
    """
    return not isinstance(command, Append)


def _cannot_wait(command: ToEngine) -> bool:
    return isinstance(command, Interrupt) or (isinstance(command, Submit) and command.priority is Priority.CRITICAL)
