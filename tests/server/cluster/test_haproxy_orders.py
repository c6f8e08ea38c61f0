"""What HAProxy is told of the cells, and what is said when it refuses; and the table of the cells."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from voxlane.server.cluster.facts import CellFacts, facts_of_cell, table
from voxlane.server.cluster.haproxy import (
    HaproxySocket,
    drain_orders,
    join_orders,
    leave_orders,
    place_orders,
    server_lines,
    server_states,
)
from voxlane.server.errors import ConfigError

CELL = CellFacts("cell2", "ready", "vm", "10.0.1.2", 8001, 9101, calls=12, percent=80, more=40)


HEAD = (
    "# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight srv_iweight"
    " srv_time_since_last_change srv_check_status srv_check_result srv_check_health srv_check_state srv_agent_state"
    " bk_f_forced_id srv_f_forced_id srv_fqdn srv_port srvrecord srv_use_ssl srv_check_port srv_check_addr"
    " srv_agent_addr srv_agent_port"
)


class FakeHaproxy:
    """A runtime API with the server cell2, as in the documented file; it writes down what it is told."""

    def __init__(self, path: Path) -> None:
        self.path, self.orders, self.answer = path, list[str](), ""
        self.pid, self.runs_s = 7, 100
        self.restart()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            with connection:
                order = connection.recv(4096).decode()
                if not order:
                    return
                connection.sendall(f"{self._answer(order.split())}\n\n".encode())

    def restart(self) -> None:
        """Forget everything but the file."""
        self.address, self.agent, self.admin, self.runs_s = ["0.0.0.0", "8000"], ["-", "9100"], 5, 0
        self.check_port = "9100"

    def _answer(self, words: list[str]) -> str:
        if words[:2] == ["show", "info"]:
            return f"Name: HAProxy\nPid: {self.pid}\nUptime_sec: {self.runs_s}"
        if words[0] == "show":
            (host, port), (agent, agent_port) = self.address, self.agent
            row = (
                f"2 cells 2 cell2 {host} 2 {self.admin} 100 100 0 1 0 2 6 22 0 0 - {port} - 0"
                f" {self.check_port} - {agent} {agent_port}"
            )
            return f"1\n{HEAD}\n{row}"
        self.orders.append(" ".join(words))
        if words[3] == "state":
            self.admin = {"ready": 4, "drain": 12, "maint": 5}[words[4]]
        elif words[3] == "check-port":
            self.check_port = words[4]
        else:
            setattr(self, {"addr": "address", "agent-addr": "agent"}[words[3]], [words[4], words[6]])
        return self.answer

    def end(self) -> None:
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(str(self.path))
        self._thread.join()
        self._listener.close()


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeHaproxy]:
    made = FakeHaproxy(tmp_path / "admin.sock")
    yield made
    made.end()


def test_a_cell_joins_by_its_address_and_leaves_by_its_state() -> None:
    assert join_orders(CELL) == [
        "set server cells/cell2 addr 10.0.1.2 port 8001",
        "set server cells/cell2 agent-addr 10.0.1.2 port 9101",
        "set server cells/cell2 check-port 9101",
        "set server cells/cell2 state ready",
    ]
    assert drain_orders("cell2", "b") == ["set server b/cell2 state drain"]
    assert leave_orders("cell2") == ["set server cells/cell2 state maint"]


def test_the_lines_of_the_file_leave_out_a_cell_without_a_place() -> None:
    lines = server_lines([CELL, CellFacts("cell3", "no answer")])
    assert lines == "    server cell2 10.0.1.2:8001 port 9101 agent-addr 10.0.1.2 agent-port 9101\n"


def test_haproxy_is_told_once_until_the_cell_moves(fake: FakeHaproxy) -> None:
    haproxy = HaproxySocket(fake.path)
    assert haproxy.sync([CELL, CellFacts("cell3", "starting")]) == [CELL]
    assert haproxy.sync([CELL]) == []
    assert fake.orders == join_orders(CELL)
    moved = replace(CELL, host="fd00::1")
    assert haproxy.sync([moved]) == [moved]
    assert haproxy.sync([replace(CELL, host="fd00:0::1")]) == []


@pytest.mark.parametrize(("pid", "address"), [(8, None), (7, ["10.0.1.2", "8001"])])
def test_a_haproxy_that_was_restarted_is_told_again(fake: FakeHaproxy, pid: int, address: list[str] | None) -> None:
    haproxy = HaproxySocket(fake.path)
    haproxy.sync([CELL])
    fake.runs_s = 50
    haproxy.sync([CELL])
    fake.orders.clear()
    fake.restart()
    fake.pid, fake.address, fake.agent = pid, address or fake.address, ["10.0.1.2", "9101"] if address else fake.agent
    assert haproxy.sync([CELL]) == [CELL]
    assert fake.orders == join_orders(CELL)


@pytest.mark.parametrize("order", ["drain", "maint"])
def test_what_an_operator_has_ordered_stays_wherever_the_cell_goes(fake: FakeHaproxy, order: str) -> None:
    haproxy = HaproxySocket(fake.path)
    haproxy.sync([CELL])
    haproxy.order(f"set server cells/cell2 state {order}")
    fake.orders.clear()
    assert haproxy.sync([CELL]) == []
    moved = replace(CELL, port=8009)
    assert haproxy.sync([moved]) == [moved]
    assert fake.orders == place_orders(moved)


def test_a_cell_that_was_taken_out_when_it_stopped_is_let_in_again(fake: FakeHaproxy) -> None:
    haproxy = HaproxySocket(fake.path)
    haproxy.sync([CELL])
    haproxy.leave("cell2")
    assert haproxy.sync([replace(CELL, state="starting")]) == []
    assert haproxy.sync([CELL]) == [CELL]
    assert fake.orders[-1] == "set server cells/cell2 state ready"


def test_a_file_without_the_name_is_told(fake: FakeHaproxy) -> None:
    assert server_states("") == server_states("Can't find backend.") == {}
    fake.answer = "No such server."
    with pytest.raises(ConfigError, match="HAProxy has no server cells/cell9"):
        HaproxySocket(fake.path).sync([replace(CELL, name="cell9")])


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [("No such server.", "HAProxy has no server cells/cell2"), ("Permission denied", "Permission denied")],
)
def test_a_refusal_is_told(fake: FakeHaproxy, answer: str, sentence: str) -> None:
    fake.answer = answer
    with pytest.raises(ConfigError, match=sentence):
        HaproxySocket(fake.path).leave("cell2")


def test_a_socket_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--haproxy-socket .*none: No such file"):
        HaproxySocket(tmp_path / "none").drain("cell1")


def test_the_table_shows_each_cell_and_why_one_is_not_ready() -> None:
    waiting = CellFacts("cell10", "restarting", "vm", "10.0.1.3", 8002, restarts=3, reason="the port is in use")
    assert table([CELL, waiting, CellFacts("cell11", "no answer")]).splitlines() == [
        "cell    node  address               state       calls  room            restarts",
        "cell2   vm    http://10.0.1.2:8001  ready       12     80 % (40 more)  0",
        "cell10  vm    http://10.0.1.3:8002  restarting  -      -               3",
        "cell11  -     -                     no answer   -      -               0",
        "cell10: the port is in use",
    ]


def test_facts_travel_as_plain_values() -> None:
    assert facts_of_cell({"name": "cell1", "state": "full", "port": 1, "host": "::1"}).address == "http://[::1]:1"
