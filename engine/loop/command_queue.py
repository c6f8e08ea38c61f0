"""Commands that have come and were not carried out. It knows what cannot wait, and carries out nothing.

What cannot wait is taken first, and before it what else of its session has come: the commands of a session, and those
about one request, keep their order. Others may be overtaken. What is about no request says what a voice's name means
from now on, which matters to what is to be said alone: submissions before it and those after it stay so.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain

from voxlane.engine.api import (
    Cancel,
    ForgetVoice,
    KeepVoice,
    Pause,
    Priority,
    Resume,
    Submit,
    ToEngine,
)

Receive = Callable[[], Iterable[ToEngine]]
Name = tuple[str, str]
_VOICES: Name = ("voices", "")  # of what is about no request: what is to be said later may depend on it

# Tuples, not unions: thousands of commands come in a second, and a union is made anew at every question.
_RENAMES = (KeepVoice, ForgetVoice)
_TURNS = (Submit, *_RENAMES)  # what takes its turn
_STOPS = (Pause, Cancel)
_STIRRING = (*_STOPS, Resume)


@dataclass(slots=True, eq=False)
class _Entry:
    """A command, which of all it is, and the sessions and requests it is about."""

    number: int
    about: frozenset[Name]
    command: ToEngine


_Entries = OrderedDict[int, _Entry]  # by number, in order
_Heap = list[tuple[int, _Entry]]  # by number; some may have been taken


class CommandQueue:
    """Commands in the order they came. What it does to each takes no longer the more there are.

    Each stands in the lines of what it is about, and may be taken when it is the first in all of them. Submissions take
    time, for their prompts have to be read: they, and what names mean, take turns. All others may be carried out before
    those of others.
    """

    def __init__(self, session_of: Callable[[str], str]) -> None:
        """Ask `session_of` for the session of a request that was opened, "" if there is none."""
        self._session_of = session_of
        self._waiting: _Entries = OrderedDict()
        self._lines: dict[Name, deque[_Entry]] = {}
        self._voiced: _Entries = OrderedDict()  # submissions that ask for a voice, and what names mean to them
        self._light: _Heap = []  # those that may be taken
        self._pauses: _Entries = OrderedDict()
        self._stops: tuple[_Heap, _Heap] = ([], [])  # pauses, cancels
        self._parked: dict[int, list[tuple[_Heap, _Entry]]] = {}  # stops, by who takes a turn before them
        self._critical: _Entries = OrderedDict()  # submissions, and what came about them since
        self._sessions: dict[str, deque[str]] = {}  # of requests that are not opened yet; an id may be used again
        self._came = 0
        self._stirring = 0

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._waiting)

    def add(self, commands: Iterable[ToEngine]) -> None:
        """Take commands that have come."""
        for command in commands:
            self._came += 1
            self._stirring += changes_batch(command)
            entry = _Entry(self._came, self._about(command), command)
            self._sort(entry)
            for name in entry.about:
                self._lines.setdefault(name, deque()).append(entry)
            self._note_light(entry)

    def next(self) -> ToEngine:
        """Return the first that waits."""
        return self._take(next(iter(self._waiting.values())))

    def cheap(self, most: int) -> list[ToEngine]:
        """Return the first of those, in order, that take no time and depend on none that takes its turn before them."""
        found: list[ToEngine] = []
        while self._light and len(found) < most:
            number, entry = heapq.heappop(self._light)
            if number in self._waiting:
                found.append(self._take(entry))
        return found

    def urgent(self, *, prompts: bool = True) -> ToEngine | None:
        """Return the next that cannot wait, or must not be overtaken by such a one; usually none.

        Pauses come first. A cancel waits for no critical prompt, except its own request's. Without `prompts`, nothing
        is returned that takes time.
        """
        pauses, cancels = self._stops
        if (first := self._free(pauses, looks=True) or self._free(cancels, looks=bool(self._critical))) is not None:
            return self._take(first)
        pressing = next(chain(self._pauses.values(), self._critical.values()), None)
        if pressing is None:
            return None
        first = self._first_before(pressing)
        return self._take(first) if prompts or not isinstance(first.command, _TURNS) else None

    def _free(self, stops: _Heap, *, looks: bool) -> _Entry | None:
        """Return what is to be taken for the first stop that waits for nobody's turn, if it looks for one.

        Those that do are parked until that turn is over: the next call does not come by them.
        """
        while stops:
            number, entry = stops[0]
            if number in self._waiting:
                if not looks:
                    return None
                first = self._first_before(entry)
                if not isinstance(first.command, _TURNS):
                    return first
                self._parked.setdefault(first.number, []).append((stops, entry))
            heapq.heappop(stops)
        return None

    @property
    def changes_batch(self) -> bool:
        """Whether one of them could change who is in a step."""
        return self._stirring > 0

    def _sort(self, entry: _Entry) -> None:
        """Note what kind of command has come; it is not in its lines yet."""
        command, number = entry.command, entry.number
        self._waiting[number] = entry
        if _asks_for_a_voice(command) or isinstance(command, _RENAMES):
            self._voiced[number] = entry
        if isinstance(command, Pause):
            self._pauses[number] = entry
        if isinstance(command, _STOPS):
            heapq.heappush(self._stops[isinstance(command, Cancel)], (number, entry))
        lines = (self._lines.get(("request", request_id)) for request_id in _request_ids(command))
        if _is_critical(command) or any(line and line[-1].number in self._critical for line in lines):
            self._critical[number] = entry

    def _first_before(self, entry: _Entry) -> _Entry:
        """Return what has to be taken first for an entry's sake, itself if it may be taken."""
        while True:
            renamed = self._lines.get(_VOICES)
            if renamed and _asks_for_a_voice(entry.command) and renamed[0].number < entry.number:
                entry = next(iter(self._voiced.values()))
            ahead = next((line[0] for line in map(self._lines.__getitem__, entry.about) if line[0] is not entry), None)
            if ahead is None:
                return entry
            entry = ahead

    def _take(self, entry: _Entry) -> ToEngine:
        """Take an entry out, which is the first in all its lines."""
        number, command, lines = entry.number, entry.command, self._lines
        for entries in (self._waiting, self._voiced, self._pauses, self._critical):
            entries.pop(number, None)
        for stops, parked in self._parked.pop(number, ()):
            heapq.heappush(stops, (parked.number, parked))
        for name in entry.about:
            first = lines[name].popleft()
            assert first is entry, "one was overtaken"
            if not lines[name]:
                del lines[name]
        for follower in {lines[name][0] for name in entry.about if name in lines}:
            self._note_light(follower)
        self._stirring -= changes_batch(command)
        if isinstance(command, Submit):  # it is opened now, or refused
            self._sessions[command.request_id].popleft()
            if not self._sessions[command.request_id]:
                del self._sessions[command.request_id]
        return command

    def _note_light(self, entry: _Entry) -> None:
        if isinstance(entry.command, _TURNS):
            return
        for name in entry.about:
            if self._lines[name][0] is not entry:
                return
        heapq.heappush(self._light, (entry.number, entry))

    def _about(self, command: ToEngine) -> frozenset[Name]:
        """Return the requests a command is about, and every session that each may belong to by then."""
        if isinstance(command, _RENAMES):
            return frozenset({_VOICES})
        if isinstance(command, Submit):
            self._sessions.setdefault(command.request_id, deque()).append(command.session)
        names: set[Name] = set()
        for request_id in _request_ids(command):
            names.add(("request", request_id))
            for session in (self._session_of(request_id), *self._sessions.get(request_id, ())):
                if session:
                    names.add(("session", session))
        return frozenset(names)


def changes_batch(command: ToEngine) -> bool:
    """Return whether a command could change who is in a step that was planned ahead.

    Who is new does not: prompts are added to such a plan at the end. Nor does what listens or speaks, which has steps
    of its own.
    """
    return isinstance(command, _STIRRING)


def _request_ids(command: ToEngine) -> tuple[str, ...]:
    """Return the ids of the requests that a command is about."""
    if isinstance(command, Pause):
        return command.request_ids
    request_id: str | None = getattr(command, "request_id", None)
    return () if request_id is None else (request_id,)


def _asks_for_a_voice(command: ToEngine) -> bool:
    return isinstance(command, Submit) and command.task == "tts"


def _is_critical(command: ToEngine) -> bool:
    return isinstance(command, Submit) and command.priority is Priority.CRITICAL
