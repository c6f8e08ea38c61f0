"""Tells HAProxy where the cells are, over its runtime API. Nothing is reloaded: open sockets stay.

HAProxy's file has a line for each name (docs/deploying/haproxy-cells.cfg): addresses and states are set here.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from voxlane.server.cluster.facts import CellFacts
from voxlane.server.cluster.plan import joined
from voxlane.server.errors import ConfigError

BACKEND = "cells"
ANSWER_SECONDS = 10.0

_UNKNOWN = re.compile(r"no such (server|backend)|can't find (server|backend)", re.IGNORECASE)
_REFUSED = re.compile(r"permission denied|require|invalid|unknown|not allowed|failed|unable|can't", re.IGNORECASE)


_MAINT, _DRAIN = 0x01, 0x08
"""Bits of HAProxy's `srv_admin_state`: what its file or an order has said, not what checks have found."""


@dataclass(frozen=True, slots=True)
class ServerState:
    """What HAProxy says of one server."""

    host: str
    port: int
    agent_host: str
    agent_port: int
    check_port: int
    drains: bool
    is_out: bool  # `state maint`, or `disabled` in the file

    def is_at(self, cell: CellFacts) -> bool:
        """Return whether it has a cell's address."""
        host, ports = _plain(cell.host), (cell.port, cell.agent_port, cell.agent_port)
        return (self.host, self.agent_host) == (host, host) and (self.port, self.agent_port, self.check_port) == ports


def server_states(told: str) -> dict[str, ServerState]:
    """Return the servers of `show servers state BACKEND`."""
    head, *rows = [line.split() for line in told.splitlines()[1:] if line.strip()] or [[]]
    return {row["srv_name"]: _state_of(row) for row in (dict(zip(head[1:], row, strict=False)) for row in rows)}


def _state_of(row: dict[str, str]) -> ServerState:
    host, agent, admin = row["srv_addr"], row["srv_agent_addr"], int(row["srv_admin_state"])
    return ServerState(
        host=_plain(host),
        port=int(row["srv_port"]),
        agent_host=_plain(host if agent == "-" else agent),
        agent_port=int(row["srv_agent_port"]),
        check_port=int(row["srv_check_port"]),
        drains=bool(admin & _DRAIN),
        is_out=bool(admin & _MAINT),
    )


def _plain(host: str) -> str:
    """Return an address in the one way to write it."""
    try:
        return str(ip_address(host))
    except ValueError:
        return host


def place_orders(cell: CellFacts, backend: str = BACKEND) -> list[str]:
    """Return the orders that give a cell its address."""
    place = f"{backend}/{cell.name}"
    return [
        f"set server {place} addr {cell.host} port {cell.port}",
        f"set server {place} agent-addr {cell.host} port {cell.agent_port}",
        # The agent's, too: a cell that drains closes its own port, and its calls must not be cut for that.
        f"set server {place} check-port {cell.agent_port}",
    ]


def join_orders(cell: CellFacts, backend: str = BACKEND) -> list[str]:
    """Return the orders that give a cell its address and let clients in."""
    return [*place_orders(cell, backend), f"set server {backend}/{cell.name} state ready"]


def drain_orders(name: str, backend: str = BACKEND) -> list[str]:
    """Return the orders after which only clients that name the cell reach it."""
    return [f"set server {backend}/{name} state drain"]


def leave_orders(name: str, backend: str = BACKEND) -> list[str]:
    """Return the orders that take a stopped cell out."""
    return [f"set server {backend}/{name} state maint"]


def server_lines(cells: Sequence[CellFacts]) -> str:
    """Return the lines of HAProxy's file for these cells."""
    return "".join(
        f"    server {cell.name} {joined(cell.host, cell.port)} port {cell.agent_port}"
        f" agent-addr {cell.host} agent-port {cell.agent_port}\n"
        for cell in cells
        if cell.port
    )


class HaproxySocket:
    """HAProxy's `stats socket`, with `level admin`: a Unix socket of this machine."""

    def __init__(self, path: Path, backend: str = BACKEND) -> None:
        self._path, self._backend = path, backend
        self._joined: set[str] = set()  # cells that this HAProxy has let clients in to, as `sync` has seen
        self._life = ("", 0)  # HAProxy's process, and how long it runs

    def join(self, cell: CellFacts) -> None:
        """Give a cell its address and let clients in."""
        self._give(cell.name, join_orders(cell, self._backend))

    def sync(self, cells: Sequence[CellFacts]) -> list[CellFacts]:
        """Give those cells that serve their addresses where HAProxy has others; return them.

        A `drain` stays, and so does the `maint` of a cell that clients were let in to: a person has ordered it.
        """
        self._note_restart()
        states = server_states(self.order(f"show servers state {self._backend}"))
        self._joined &= {cell.name for cell in cells if cell.serves}
        return [cell for cell in cells if cell.serves and self._sync_one(cell, states.get(cell.name))]

    def _sync_one(self, cell: CellFacts, state: ServerState | None) -> bool:
        """Tell HAProxy of one cell; return whether that was news."""
        ordered = state is not None and (state.drains or (state.is_out and cell.name in self._joined))
        known = state is not None and state.is_at(cell) and (ordered or not state.is_out)
        if not known:
            orders = place_orders if ordered else join_orders
            self._give(cell.name, orders(cell, self._backend))
        self._joined.add(cell.name)
        return not known

    def _note_restart(self) -> None:
        """Forget what was seen of another HAProxy. In a container all of them may have the same number."""
        told = dict(line.split(": ", 1) for line in self.order("show info").splitlines() if ": " in line)
        pid, runs_s = told.get("Pid", ""), int(told.get("Uptime_sec", "0"))
        if pid != self._life[0] or runs_s < self._life[1]:
            self._joined.clear()
        self._life = (pid, runs_s)

    def drain(self, name: str) -> None:
        """Send only clients to a cell that name it."""
        self._give(name, drain_orders(name, self._backend))

    def leave(self, name: str) -> None:
        """Take a cell out."""
        self._give(name, leave_orders(name, self._backend))

    def _give(self, name: str, orders: Sequence[str]) -> None:
        for order in orders:
            answer = self.order(order)
            if _UNKNOWN.search(answer):
                raise ConfigError(
                    f"HAProxy has no server {self._backend}/{name}: its file needs the line"
                    f" `server {name} 0.0.0.0:8000 disabled` in `backend {self._backend}`"
                )
            if _REFUSED.search(answer):
                raise ConfigError(f"HAProxy refused `{order}`: {answer}")

    def order(self, command: str) -> str:
        """Give one order; return the answer, which is empty or tells what has changed."""
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(ANSWER_SECONDS)
                connection.connect(str(self._path))
                connection.sendall(f"{command}\n".encode())
                with connection.makefile(encoding="utf-8", errors="replace") as answer:
                    return answer.read().strip()
        except OSError as error:
            raise ConfigError(f"--haproxy-socket {self._path}: {error.strerror or error}") from error
