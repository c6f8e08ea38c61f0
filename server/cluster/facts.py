"""What is known of a cell, and the table that shows it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from msgspec import Struct

from voxlane.server.cluster.plan import joined
from voxlane.server.validation import checked

CellState = Literal[
    "starting",  # its process runs, its engine loads
    "ready",
    "full",  # serves, and takes nothing new
    "not ready",  # its engine is being restarted
    "restarting",  # its process has ended and is started again, or the actor is
    "draining",
    "stopped",  # drained, and not started again
    "no answer",  # no machine has room for it yet, or its machine does not answer
]
SERVING: frozenset[str] = frozenset({"ready", "full"})
STATES: tuple[str, ...] = get_args(CellState)


class CellFacts(Struct, frozen=True):
    """One cell as its actor tells of it."""

    name: str
    state: CellState
    node: str = ""
    host: str = ""
    port: int = 0
    agent_port: int = 0
    scheme: str = "http"
    calls: int = 0  # conversations, parked ones too
    percent: int = 0  # of its room
    more: int = 0  # how many more conversations it would take
    restarts: int = 0  # of its process, in the actor's life
    pid: int = 0
    actor_pid: int = 0
    reason: str = ""  # why its process has ended
    log: str = ""  # the file, on its machine

    @property
    def serves(self) -> bool:
        """Whether clients are served."""
        return self.state in SERVING

    @property
    def answers(self) -> bool:
        """Whether this is what its actor has told just now."""
        return self.actor_pid > 0

    @property
    def address(self) -> str:
        """Where clients reach it; "" if it has no place yet."""
        return f"{self.scheme}://{joined(self.host, self.port)}" if self.port else ""


def facts_of_cell(values: Mapping[str, Any]) -> CellFacts:
    """Return facts that were carried as plain values."""
    return checked(CellFacts, dict(values))


HEAD = ("cell", "node", "address", "state", "calls", "room", "restarts")


def table(cells: Sequence[CellFacts]) -> str:
    """Return the cells as a table, with the reason of what is wrong below it."""
    rows = [HEAD, *map(_row, cells)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    lines += [f"{cell.name}: {cell.reason}" for cell in cells if cell.reason and not cell.serves]
    return "".join(f"{line}\n" for line in lines)


def _row(cell: CellFacts) -> tuple[str, ...]:
    room = f"{cell.percent} % ({cell.more} more)" if cell.serves else "-"
    calls = str(cell.calls) if cell.serves or cell.state == "draining" else "-"
    return (cell.name, cell.node or "-", cell.address or "-", cell.state, calls, room, str(cell.restarts))
