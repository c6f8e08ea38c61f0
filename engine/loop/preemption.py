"""When commands are applied. Whatever the loop does, it calls this object every 0.2 ms or so.

Every method named `apply…`, and `between`, reads the socket and may apply commands: after such a call a request may be
paused, cancelled or new, and prompts may have been launched or delivered beside the steps. No other place reads the
socket. What a command does, and what the critical lane does, the caller says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from voxlane.engine.api import Append, ForgetVoice, FromEngine, KeepVoice, Submit, ToEngine
from voxlane.engine.loop.command_queue import CommandQueue, Receive
from voxlane.engine.loop.delivery import Outbox

DRAIN_BUDGET_S = 0.004
"""How long waiting commands are applied between two steps: three hundred prompts that come at once take some 200 ms to
be read into tokens, and voices must not stand still for that."""

COMMANDS_PER_POLL = 16
"""Cheap commands that are applied between two polls: some 0.2 ms."""

ROWS_PER_POLL = 16
"""Rows of a step that are delivered between two polls: some 0.2 ms."""

POLL_EVERY_S = 1.5e-4
"""Longest time between two polls while jobs work and plans are made."""

PROMPTS_BUDGET_S = 0.002
"""How long critical prompts are read in one poll, the last of them begun within it. One takes 0.7 ms, and a pause waits
for one of them at most."""

_SLOW = (Submit, KeepVoice, ForgetVoice)

Item = TypeVar("Item")


class Preemption:
    """Reads the socket and decides when each command is applied."""

    def __init__(
        self,
        session_of: Callable[[str], str],
        apply: Callable[[ToEngine], list[FromEngine]],
        serve_lane: Callable[[], None],
        outbox: Outbox,
        clock: Callable[[], float],
    ) -> None:
        """Apply commands with `apply`; after that `serve_lane` launches and delivers prompts beside the steps.

        `session_of` returns the session of a live request.
        """
        self._commands = CommandQueue(session_of)
        self._apply = apply
        self._serve_lane = serve_lane
        self._outbox = outbox
        self._clock = clock
        self._receive: Receive = tuple
        self._polled_s = clock()

    def __len__(self) -> int:
        """Return how many commands wait."""
        return len(self._commands)

    def read_from(self, receive: Receive) -> None:
        """Read commands with `receive` from now on."""
        self._receive = receive

    def apply_all(self, commands: Iterable[ToEngine]) -> list[FromEngine]:
        """Apply these commands and all that wait, in order; return the messages."""
        self._commands.add(commands)
        messages: list[FromEngine] = []
        while len(self._commands):
            messages += self._apply(self._commands.next())
        return messages

    def apply_urgent(self) -> None:
        """Poll: read the socket, apply the commands that cannot wait, and serve the critical lane."""
        begin = self._clock()
        self._read()
        in_time = True
        while len(self._commands) and (command := self._commands.urgent(prompts=in_time)) is not None:
            self._outbox.hurry(self._apply(command))
            if isinstance(command, _SLOW):
                in_time = self._clock() - begin <= PROMPTS_BUDGET_S
                self._read()
        self._serve_lane()
        self._polled_s = self._clock()

    def apply_urgent_if_due(self) -> None:
        """Poll if the last poll is long ago."""
        if self._clock() - self._polled_s > POLL_EVERY_S:
            self.apply_urgent()

    def between(self, items: Iterable[Item], every: int | None = None) -> Iterator[Item]:
        """Yield items, and poll before the first and after every so many; without `every`, whenever a poll is due.

        What an item refers to may have changed when it is yielded.
        """
        poll = self.apply_urgent_if_due if every is None else self.apply_urgent
        poll()
        for number, item in enumerate(items, start=1):
            yield item
            if every is None or number % every == 0:
                poll()

    def apply_waiting(self) -> None:
        """Apply what has come so far: first the cheap commands, then prompts, as many as there is time for."""
        begin = self._clock()
        self._apply_cheap(begin)
        for _ in range(len(self._commands)):
            self.apply_next()
            self.apply_urgent()
            if not len(self._commands) or self._clock() - begin > DRAIN_BUDGET_S:
                break
        self._apply_cheap(self._clock())  # a request that was cancelled before its prompt was read is in no step

    def apply_next(self) -> None:
        """Apply the first command that waits, if there is one."""
        if len(self._commands):
            self._outbox.add(self._apply(self._commands.next()))

    def apply_batch_changes(self) -> bool:
        """Apply cheap commands if one that waits may change a step's batch; return whether none may any more."""
        if self._commands.changes_batch:
            self._apply_cheap(self._clock())
        return not self._commands.changes_batch

    def _read(self) -> None:
        """Read the socket. Input that no other command has to go before is applied at once: most commands are sound."""
        applied = 0
        for command in self._receive():
            if type(command) is Append and applied < COMMANDS_PER_POLL and self._commands.lets_pass(command):
                applied += 1
                self._outbox.add(self._apply(command))
            else:
                self._commands.add((command,))

    def _apply_cheap(self, begin: float) -> None:
        while self._clock() - begin <= DRAIN_BUDGET_S and (commands := self._commands.cheap(COMMANDS_PER_POLL)):
            for command in commands:
                self._outbox.add(self._apply(command))
            self.apply_urgent()
