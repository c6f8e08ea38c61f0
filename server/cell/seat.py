"""A server process's place in its cell. A server with one process has the place `alone`."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from voxlane.server.cell.counts import CellCounts


async def _tell_none(session: str) -> None:
    """Do nothing: there is no other process."""


@dataclass(frozen=True, slots=True)
class CellSeat:
    """What a server process shares with the others of its cell."""

    counts: CellCounts = field(default_factory=CellCounts)
    secret: bytes = field(
        default_factory=lambda: secrets.token_bytes(32)
    )  # signs what another process may have to check
    folder: Path | None = None  # where passes and client secrets are kept for all; None: in memory
    let_go: Callable[[str], Awaitable[None]] = _tell_none  # have other processes release a conversation

    @property
    def shared(self) -> bool:
        """Whether there are other processes."""
        return self.folder is not None
