"""Commands that have come and were not carried out. It knows what cannot wait, and carries out nothing.

What cannot wait is taken first, and with it whatever else of its session has come: the commands of a session, and those
about one request, keep their order. Others may be overtaken. What is about no request says what a voice's name means
from now on, which matters to submissions alone: those before it and those after it stay so.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from voxlane.engine.api import Append, Interrupt, Priority, Rewind, Submit, ToEngine

Receive = Callable[[], Iterable[ToEngine]]
Name = tuple[str, str]
_ALL: Name = ("all", "")  # of what is about no request: submissions that come later may depend on it


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    """A command, which of all it is, and the session and the request it is about."""

    number: int
    about: frozenset[Name]
    command: ToEngine


class Inbox:
    """Commands in the order they came. What it does to each takes no longer the more there are, but for `urgent`.

    Those stay that take time, which is to say submissions, whose prompts have to be read; what names mean to them; and
    what is about somebody who stays. All others may be carried out before them.
    """

    def __init__(self, session_of: Callable[[str], str]) -> None:
        """Ask `session_of` for the session of a request that was opened, "" if there is none."""
        self._session_of = session_of
        self._light: list[tuple[int, _Entry]] = []  # a heap, by number
        self._staying: OrderedDict[int, _Entry] = OrderedDict()
        self._lines: dict[Name, deque[_Entry]] = {}  # those who stay, by what they are about
        self._sessions: dict[str, str] = {}  # of requests that are not opened yet
        self._came = 0
        self._stirring = 0
        self._urgent = False

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._light) + len(self._staying)

    def add(self, commands: Iterable[ToEngine]) -> None:
        """Take commands that have come."""
        for command in commands:
            self._came += 1
            self._stirring += stirs(command)
            self._urgent = self._urgent or _cannot_wait(command)
            self._put(_Entry(self._came, self._about(command), command))

    def next(self) -> ToEngine:
        """Return the first that waits."""
        first = next(iter(self._staying), self._came + 1)
        if self._light and self._light[0][0] < first:
            return self._taken(heapq.heappop(self._light)[1])
        return self._taken(self._leave(self._staying[first]))

    def light(self, most: int) -> list[ToEngine]:
        """Return the first of those, in order, that take no time and depend on none that stays before them."""
        return [self._taken(heapq.heappop(self._light)[1]) for _ in range(min(most, len(self._light)))]

    def urgent(self) -> list[ToEngine]:
        """Return those that cannot wait and those that must not be overtaken by them, in order; usually none."""
        if not self._urgent:
            return []
        self._urgent = False
        entries = self._all()
        wanted: set[Name] = set()
        wanted.update(*(entry.about for entry in entries if _cannot_wait(entry.command)))
        known = 0
        while known < len(wanted):  # a request of theirs may be known by another session, too
            known = len(wanted)
            for entry in entries:
                if not wanted.isdisjoint(entry.about):
                    wanted |= entry.about
        asked = [one.number for one in entries if isinstance(one.command, Submit) and not wanted.isdisjoint(one.about)]
        renamed = max(
            (one.number for one in entries if _ALL in one.about and one.number < max(asked, default=0)), default=0
        )
        found: list[ToEngine] = []
        for entry in entries:
            if entry.number <= renamed or not wanted.isdisjoint(entry.about):
                found.append(self._taken(entry))
            else:
                self._put(entry)
        return found

    @property
    def stirs(self) -> bool:
        """Whether one of them could change who is in a step."""
        return self._stirring > 0

    def _put(self, entry: _Entry) -> None:
        """Let an entry stay, or not, behind those that came before it."""
        lines = self._lines
        if _takes_its_turn(entry) or not lines.keys().isdisjoint(entry.about):
            self._staying[entry.number] = entry
            for name in entry.about:
                lines.setdefault(name, deque()).append(entry)
        else:
            heapq.heappush(self._light, (entry.number, entry))

    def _leave(self, first: _Entry) -> _Entry:
        """Take out the first that stays, and let those go that stayed because of it."""
        leaving, lines = [first], self._lines
        while leaving:
            entry = leaving.pop()
            del self._staying[entry.number]
            for name in entry.about:
                lines[name].popleft()
                if not lines[name]:
                    del lines[name]
            if entry is not first:
                heapq.heappush(self._light, (entry.number, entry))
            heads = {lines[name][0] for name in entry.about if name in lines}
            leaving += [head for head in heads if self._may_leave(head)]
        return first

    def _may_leave(self, entry: _Entry) -> bool:
        return not _takes_its_turn(entry) and all(self._lines[name][0] is entry for name in entry.about)

    def _all(self) -> list[_Entry]:
        """Take everything out; return it in order."""
        entries = sorted([*(entry for _, entry in self._light), *self._staying.values()], key=lambda one: one.number)
        self._light.clear()
        self._staying.clear()
        self._lines.clear()
        return entries

    def _taken(self, entry: _Entry) -> ToEngine:
        self._stirring -= stirs(entry.command)
        if isinstance(entry.command, Submit):
            self._sessions.pop(entry.command.request_id, None)  # it is opened now, or refused
        return entry.command

    def _about(self, command: ToEngine) -> frozenset[Name]:
        """Return the session and the request a command is about."""
        if isinstance(command, Interrupt):
            return frozenset({("session", command.session)})
        request_id: str | None = getattr(command, "request_id", None)
        if request_id is None:
            return frozenset({_ALL})
        if isinstance(command, Submit):
            self._sessions[request_id] = command.session
        session = self._sessions.get(request_id) or self._session_of(request_id)
        return frozenset({("request", request_id), *([("session", session)] if session else [])})


def stirs(command: ToEngine) -> bool:
    """Return whether a command could change who is in a step that was planned ahead.

    Sound and text that come do not, nor what is said again: such plans are of the chat model, and who listens or speaks
    is not in them.
    """
    return not isinstance(command, Append | Rewind)


def _takes_its_turn(entry: _Entry) -> bool:
    return isinstance(entry.command, Submit) or _ALL in entry.about


def _cannot_wait(command: ToEngine) -> bool:
    return isinstance(command, Interrupt) or (isinstance(command, Submit) and command.priority is Priority.CRITICAL)
