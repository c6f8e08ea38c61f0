"""Commands that have come and are not applied yet, and in which order they may be applied. It applies none itself.

Urgent commands are taken first, each after the earlier commands about its requests and their sessions: the commands
about one request, and those of one session, keep their order. Commands of other sessions may be overtaken.

KeepVoice and ForgetVoice are about no request: they change what a voice's name means. Only submissions of speech depend
on that, so only these keep their order with them.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain

from voxlane.engine.api import (
    Append,
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
"""The name of a line: ("request", id), ("session", name), or the line of all voices."""

_VOICES: Name = ("voices", "")  # the line of commands that change what a voice's name means

# Tuples, not unions: thousands of commands come in a second, and a union is made anew at every question.
_RENAMES = (KeepVoice, ForgetVoice)
_SLOW = (Submit, *_RENAMES)  # a prompt has to be read; voices keep their order with submissions
_STOPS = (Pause, Cancel)
_CHANGES_BATCH = (*_STOPS, Resume)


@dataclass(slots=True, eq=False)
class _Entry:
    """A command in the queue."""

    # Commands are numbered as they come.
    number: int
    # The requests and sessions it is about: it stands in the line of each.
    about: frozenset[Name]
    command: ToEngine


_Entries = OrderedDict[int, _Entry]  # by number, in order
_Heap = list[tuple[int, _Entry]]  # by number; some entries may have been taken since


class CommandQueue:
    """Commands in the order they came. The time for each does not grow with their number.

    A command stands in a line for each request and session it is about, and may be taken when it is the first in all
    its lines. Slow commands are applied in turn; all others are cheap, and may overtake those of other sessions.
    """

    def __init__(self, session_of: Callable[[str], str]) -> None:
        """Make an empty queue; `session_of` returns the session of a live request, "" if there is no such request."""
        self._session_of = session_of
        self._waiting: _Entries = OrderedDict()
        self._lines: dict[Name, deque[_Entry]] = {}
        # Submissions of speech, and commands that change what a voice's name means.
        self._voiced: _Entries = OrderedDict()
        # Cheap commands that are the first in all their lines.
        self._cheap: _Heap = []
        self._pauses: _Entries = OrderedDict()
        # Pauses, and cancels.
        self._stops: tuple[_Heap, _Heap] = ([], [])
        # Pauses and cancels that wait for a slow command, by its number, with the heap they return to.
        self._parked: dict[int, list[tuple[_Heap, _Entry]]] = {}
        # Critical submissions, and commands that came about the same requests since.
        self._critical: _Entries = OrderedDict()
        # Sessions of requests that are submitted but not opened yet, by id; an id may be used again.
        self._sessions: dict[str, deque[str]] = {}
        self._came = 0
        self._batch_changes = 0

    def __len__(self) -> int:
        """Return how many commands wait."""
        return len(self._waiting)

    def add(self, commands: Iterable[ToEngine]) -> None:
        """Put commands at the end of the queue."""
        for command in commands:
            self._came += 1
            self._batch_changes += changes_batch(command)
            entry = _Entry(self._came, self._about(command), command)
            self._sort(entry)
            for name in entry.about:
                self._lines.setdefault(name, deque()).append(entry)
            self._note_cheap(entry)

    def lets_pass(self, command: Append) -> bool:
        """Return whether no command waits that is about the same request or its session."""
        if not self._waiting:
            return True
        request_id = command.request_id
        if ("request", request_id) in self._lines:
            return False
        session = self._session_of(request_id)
        return not session or ("session", session) not in self._lines

    def next(self) -> ToEngine:
        """Take the first command."""
        return self._take(next(iter(self._waiting.values())))

    def cheap(self, most: int) -> list[ToEngine]:
        """Take up to `most` cheap commands, in order, that depend on no slow command before them."""
        found: list[ToEngine] = []
        while self._cheap and len(found) < most:
            number, entry = heapq.heappop(self._cheap)
            if number in self._waiting:
                found.append(self._take(entry))
        return found

    def urgent(self, *, prompts: bool = True) -> ToEngine | None:
        """Take the next command that cannot wait, or that has to go before such a one; usually there is none.

        Pauses come first. A cancel waits for no critical prompt, except its own request's. Without `prompts`, no slow
        command is taken.
        """
        pauses, cancels = self._stops
        first = self._first_free(pauses) or self._first_free(cancels, wanted=bool(self._critical))
        if first is not None:
            return self._take(first)
        pressing = next(chain(self._pauses.values(), self._critical.values()), None)
        if pressing is None:
            return None
        first = self._first_before(pressing)
        return self._take(first) if prompts or not isinstance(first.command, _SLOW) else None

    def _first_free(self, stops: _Heap, *, wanted: bool = True) -> _Entry | None:
        """Return what is to be taken for the first of some stops that waits for no slow command, if that is `wanted`.

        Stops that do are parked until that command is taken: later calls do not come by them.
        """
        while stops:
            number, entry = stops[0]
            if number in self._waiting:
                if not wanted:
                    return None
                first = self._first_before(entry)
                if not isinstance(first.command, _SLOW):
                    return first
                self._parked.setdefault(first.number, []).append((stops, entry))
            heapq.heappop(stops)
        return None

    @property
    def changes_batch(self) -> bool:
        """Whether one of the commands may change which requests a step holds."""
        return self._batch_changes > 0

    def _sort(self, entry: _Entry) -> None:
        """Note what kind of command has come; it is not in its lines yet."""
        command, number = entry.command, entry.number
        self._waiting[number] = entry
        if type(command) is Append:  # nearly all of them: sound
            line = self._lines.get(("request", command.request_id))
            if line and line[-1].number in self._critical:
                self._critical[number] = entry
            return
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
        """Return the entry that has to be taken first for an entry's sake, itself if it may be taken."""
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
        del self._waiting[number]
        for entries in (self._voiced, self._pauses, self._critical):
            if entries:
                entries.pop(number, None)
        for stops, parked in self._parked.pop(number, ()):
            heapq.heappush(stops, (parked.number, parked))
        for name in entry.about:
            first = lines[name].popleft()
            assert first is entry, "a command was overtaken by one of its own line"
            if not lines[name]:
                del lines[name]
        for follower in {lines[name][0] for name in entry.about if name in lines}:
            self._note_cheap(follower)
        self._batch_changes -= changes_batch(command)
        if isinstance(command, Submit):  # it is opened now, or refused
            self._sessions[command.request_id].popleft()
            if not self._sessions[command.request_id]:
                del self._sessions[command.request_id]
        return command

    def _note_cheap(self, entry: _Entry) -> None:
        if isinstance(entry.command, _SLOW):
            return
        for name in entry.about:
            if self._lines[name][0] is not entry:
                return
        heapq.heappush(self._cheap, (entry.number, entry))

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
    """Return whether a command may change which requests a step that was planned ahead holds.

    A new request does not: prompts are added to such a plan at its launch. Speech does not: it has steps of its own.
    """
    return isinstance(command, _CHANGES_BATCH)


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
