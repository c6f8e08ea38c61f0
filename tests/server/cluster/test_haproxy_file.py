"""The documented file in a real HAProxy: what it takes for a lost cell, and what it does not."""

from __future__ import annotations

import csv
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cells import Balancer, haproxy_binary
from waiting import until

HOST = "127.0.1.1"
CHECKED_S = 2.5
"""Two checks and more: a port that they asked would have been found closed."""


def listening() -> socket.socket:
    """Return a port where connections are made and nothing is answered: the kernel's part of a process that hangs."""
    listener = socket.socket()
    listener.bind((HOST, 0))
    listener.listen(1000)
    return listener


@pytest.fixture
def cell() -> Iterator[socket.socket]:
    """The port for clients."""
    with listening() as listener:
        yield listener


@pytest.fixture
def agent() -> Iterator[socket.socket]:
    """The agent's port."""
    with listening() as listener:
        yield listener


@pytest.fixture
def balancer(cell: socket.socket, agent: socket.socket, tmp_path: Path) -> Iterator[Balancer]:
    try:
        haproxy_binary()
    except RuntimeError as error:
        pytest.skip(str(error))
    made = Balancer(tmp_path, (cell.getsockname()[1], agent.getsockname()[1]), cells=(HOST, HOST))
    yield made
    made.end()


def checked(balancer: Balancer) -> tuple[str, str]:
    """Return the state of cell1 and the result of its last check; that is "" while the first one runs."""
    rows = csv.DictReader(balancer.order("show stat cells 4 -1").removeprefix("# ").splitlines())
    row = next(row for row in rows if row["svname"] == "cell1")
    return row["status"].split()[0], row["check_status"].strip("* ").removeprefix("INI")


def test_a_process_that_hangs_is_no_lost_cell_and_one_without_an_agent_is(
    balancer: Balancer, agent: socket.socket
) -> None:
    until(lambda: checked(balancer)[1] != "", "the first check has ended")
    assert checked(balancer) == ("UP", "L4OK")
    agent.close()
    until(lambda: checked(balancer) == ("DOWN", "L4CON"), "the cell is down")


def test_the_calls_of_a_cell_that_drains_are_not_cut(balancer: Balancer, cell: socket.socket) -> None:
    """It takes no connection any more, and its agent still answers: no socket that is open is closed."""
    until(lambda: checked(balancer)[1] != "", "the first check has ended")
    address = balancer.url.removeprefix("http://").split(":")
    with socket.create_connection((address[0], int(address[1])), 10) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: cell\r\n\r\n")
        call, _ = cell.accept()
        with call:
            call.settimeout(10)
            assert call.recv(4096).startswith(b"GET /")
            cell.close()
            time.sleep(CHECKED_S)
            assert checked(balancer) == ("UP", "L4OK")
            call.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nover")
            client.settimeout(10)
            with client.makefile("rb") as answer:
                assert answer.readline().startswith(b"HTTP/1.1 200")
