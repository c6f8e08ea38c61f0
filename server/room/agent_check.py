"""Tells a balancer the room of this server or cell: HAProxy's agent-check, one line for each TCP connection.

    up 80% maxconn:278   takes new conversations; 80 % of its room is left
    up 0% maxconn:300    is full, drains or has no engine just now: only clients that name it in `?at=` are sent to it
    down                 has not been ready yet

In a cell the kernel chooses the process that answers. A process that drains alone answers for the others.

`drain` is not said: it is an administrative state that lasts until `ready` is said, and `ready` would also lift
the drain that an operator has ordered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Self

from voxlane.server import limits
from voxlane.server.config import ServerConfig, socket_address
from voxlane.server.errors import ConfigError
from voxlane.server.log import line
from voxlane.server.room.meter import RoomReport

logger = logging.getLogger(__name__)


def answer_of(report: RoomReport | None) -> str:
    """Return the answer for a balancer; None: the server has not been ready yet."""
    if report is None:
        return "down"
    percent = max(1, report.room.percent) if report.state == "open" else 0
    # Connections for HTTP requests and for resumes count at the balancer, too, and must not wait there.
    most = report.conversations + report.room.more_resumed + limits.AGENT_SPARE_CONNECTIONS
    return f"up {percent}% maxconn:{most}"


class AgentCheck:
    """Listens on server.agent_check while its context lasts; does nothing where that is empty."""

    def __init__(self, config: ServerConfig, report: Callable[[], RoomReport | None], *, shared: bool = False) -> None:
        """Tell what `report` says; with `shared`, any process of the cell answers for all."""
        self._config = config
        self._shared = shared or config.reuse_port
        self._report = report
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        if self._config.agent_check:
            host, port = socket_address(self._config.agent_check, "server.agent_check")
            try:
                self._server = await asyncio.start_server(self._answer, host, port, reuse_port=self._shared or None)
            except OSError as error:
                raise ConfigError(
                    f"server.agent_check: {self._config.agent_check}: {error.strerror or error}"
                ) from error
            logger.info(line("agent check listens", address=self._config.agent_check))
        return self

    @property
    def port(self) -> int:
        """The port that is listened on; 0: none."""
        return self._server.sockets[0].getsockname()[1] if self._server is not None else 0

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Write one line and close. Nothing is read, so nothing can be asked."""
        writer.write(f"{answer_of(self._report())}\n".encode())
        writer.close()
