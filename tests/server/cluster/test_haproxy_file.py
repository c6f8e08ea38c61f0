"""The documented file in a real HAProxy: what it takes for a lost cell."""

from __future__ import annotations

import csv
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from cells import Balancer, free_port, haproxy_binary
from waiting import until

HOST = "127.0.1.1"


@pytest.fixture
def hung() -> Iterator[socket.socket]:
    """A port where connections are made and nothing is answered: the kernel's part of a process that hangs."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        listener.listen(1000)
        yield listener


@pytest.fixture
def balancer(hung: socket.socket, tmp_path: Path) -> Iterator[Balancer]:
    try:
        haproxy_binary()
    except RuntimeError as error:
        pytest.skip(str(error))
    made = Balancer(tmp_path, (hung.getsockname()[1], free_port(HOST)), cells=(HOST, HOST))
    yield made
    made.end()


def checked(balancer: Balancer) -> tuple[str, str]:
    """Return the state of cell1 and the result of its last check; that is "" while the first one runs."""
    rows = csv.DictReader(balancer.order("show stat cells 4 -1").removeprefix("# ").splitlines())
    row = next(row for row in rows if row["svname"] == "cell1")
    return row["status"].split()[0], row["check_status"].strip("* ").removeprefix("INI")


def test_a_process_that_hangs_is_no_lost_cell_and_a_closed_port_is(balancer: Balancer, hung: socket.socket) -> None:
    until(lambda: checked(balancer)[1] != "", "the first check has ended")
    assert checked(balancer) == ("UP", "L4OK")
    hung.close()
    until(lambda: checked(balancer) == ("DOWN", "L4CON"), "the cell is down")
