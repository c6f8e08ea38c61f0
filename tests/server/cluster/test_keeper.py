"""A keeper and its cell's process, without Ray: a small program stands in for `voxlane serve`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cell_process import wait_gone
from examples import sweep
from waiting import until

from voxlane.server.cluster import keeper as keeping
from voxlane.server.cluster.facts import CellFacts, facts_of_cell
from voxlane.server.cluster.keeper import (
    LONGEST_PAUSE_SECONDS,
    CellKeeper,
    cell_environment,
    pause_after,
    reason_of,
)
from voxlane.server.cluster.plan import ClusterPlan, specs_of

PROGRAM = (sys.executable, str(Path(__file__).parents[2] / "support/cells/small_cell.py"))
GONE_S = 20.0

Keep = Callable[..., CellKeeper]


def facts(keeper: CellKeeper) -> CellFacts:
    return facts_of_cell(keeper.facts())


@pytest.fixture
def keep() -> Iterator[Keep]:
    """Keep cells, which end with the test."""
    kept: list[CellKeeper] = []

    def keep(*serve: str, program: tuple[str, ...] = PROGRAM, port: int = 0, agent_port: int = 0) -> CellKeeper:
        plan = ClusterPlan(port=port, agent_port=agent_port, serve=serve, program=program)
        kept.append(CellKeeper(specs_of(plan)[0], "127.0.0.1"))
        kept[-1].start()
        return kept[-1]

    yield keep
    for keeper in kept:
        keeper.drain()
        keeper.join()


def test_a_cell_is_started_asked_and_drained(keep: Keep) -> None:
    keeper = keep()
    until(lambda: facts(keeper).serves, "the cell is ready")
    ready = facts(keeper)
    assert (ready.state, ready.calls, ready.percent, ready.more, ready.restarts) == ("ready", 2, 80, 7, 0)
    keeper.drain()
    keeper.join()
    assert facts(keeper).state == "stopped"
    assert wait_gone([ready.pid], GONE_S) == []


def test_a_killed_cell_is_started_again_at_the_same_port(keep: Keep) -> None:
    keeper = keep()
    until(lambda: facts(keeper).serves, "the cell is ready")
    first = facts(keeper)
    os.kill(first.pid, signal.SIGKILL)
    until(lambda: facts(keeper).serves and facts(keeper).pid != first.pid, "it is ready again")
    assert (facts(keeper).port, facts(keeper).restarts) == (first.port, 1)


def test_a_cell_that_hangs_is_killed_and_started_again(
    keep: Keep, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(keeping, "ANSWER_SECONDS", 0.5)
    keeper = keep()
    until(lambda: facts(keeper).serves, "the cell is ready")
    first = facts(keeper)
    os.kill(first.pid, signal.SIGSTOP)  # connections are still taken, by the kernel
    until(lambda: facts(keeper).restarts == 1, "it was killed")
    assert wait_gone([first.pid], GONE_S) == []
    until(lambda: facts(keeper).serves, "it is ready again")
    assert (facts(keeper).port, facts(keeper).restarts) == (first.port, 1)
    assert "cell hangs" in caplog.text


def test_a_cell_that_cannot_start_is_tried_again(keep: Keep) -> None:
    keeper = keep("--fail", "the port is in use")
    until(lambda: facts(keeper).restarts >= 2, "it was tried again")
    assert not facts(keeper).serves
    assert facts(keeper).reason


@pytest.fixture
def other() -> Iterator[int]:
    """Another program that says it is ready, at this port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = (*PROGRAM, "serve", "--host", "127.0.0.1", "--port", str(port), "--at", "cell1")
    with subprocess.Popen(command) as program:
        until(lambda: keeping.is_taken("127.0.0.1", port), "the other program listens")
        yield port
        program.kill()


@pytest.mark.parametrize("which", ["port", "agent_port"])
def test_a_port_of_another_program_is_a_failed_start(
    keep: Keep, other: int, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "FREE_SECONDS", 0.0)
    keeper = keep(**{which: other})
    until(lambda: facts(keeper).restarts >= 2, "it was tried again")
    assert not facts(keeper).serves
    assert facts(keeper).reason == f"port {other} of 127.0.0.1 is in use by another program"
    assert keeper._failures >= 2  # so that the pauses grow


NO_ROOM = ('{"at": "cell2", "room": {}}', '{"at": "cell1", "room": {"percent": "x"}}', '{"at": "cell1", "room": 1}')
ANSWERS = (*NO_ROOM, "{}", "[]", "[1]", "null", "no JSON")


@pytest.mark.parametrize("answer", sweep(ANSWERS, here=2))
def test_only_the_cells_own_answer_makes_it_ready(keep: Keep, answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    ask = CellKeeper._ask
    monkeypatch.setattr(CellKeeper, "_ask", lambda keeper: asked.append(ask(keeper)))
    keeper = keep("--answer", answer)
    until(lambda: keeping.is_taken("127.0.0.1", facts(keeper).port), "the cell listens")
    known = len(asked)
    until(lambda: len(asked) > known + 2, "it was asked")
    assert set(asked) == {None}
    assert keeper._scheme == "http"
    assert facts(keeper).state == "starting"


def test_whatever_fails_in_the_keeper_the_cell_is_tried_again(keep: Keep, monkeypatch: pytest.MonkeyPatch) -> None:
    look, pids = CellKeeper._look, list[int]()

    def fail_once(keeper: CellKeeper, *, served: bool) -> None:
        pids.append(facts(keeper).pid)
        if len(pids) == 1:
            raise LookupError("not foreseen")
        look(keeper, served=served)

    monkeypatch.setattr(CellKeeper, "_look", fail_once)
    keeper = keep()
    until(lambda: facts(keeper).serves, "it is ready at the second try")
    assert facts(keeper).restarts == 1
    assert wait_gone(pids[:1], GONE_S) == []
    environment = Path(f"/proc/{facts(keeper).pid}/environ").read_bytes().split(b"\0")
    assert b"VOXLANE_KEEPER_FAILURES=1" in environment  # the cell counts it


def test_a_program_that_is_not_there_is_told(keep: Keep) -> None:
    keeper = keep(program=("/no/such/program",))
    until(lambda: facts(keeper).restarts, "the start has failed")
    assert facts(keeper).reason


def test_a_cell_ends_with_its_keepers_process() -> None:
    code = (
        "import sys, time\n"
        "from voxlane.server.cluster.keeper import CellKeeper\n"
        "from voxlane.server.cluster.plan import ClusterPlan, specs_of\n"
        f"keeper = CellKeeper(specs_of(ClusterPlan(port=0, agent_port=0, program={PROGRAM!r}))[0], '127.0.0.1')\n"
        "keeper.start()\n"
        "while keeper.facts()['state'] != 'ready':\n"
        "    time.sleep(0.02)\n"
        "print(keeper.facts()['pid'], flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    assert wait_gone([child], GONE_S) == []


def test_a_process_whose_parent_is_gone_does_not_begin(tmp_path: Path) -> None:
    told = tmp_path / "told"
    command = (sys.executable, "-m", "voxlane.server.cluster.launch", "1", "touch", str(told))
    assert subprocess.run(command, check=False).returncode == 3
    assert not told.exists()


def test_pauses_grow_and_end() -> None:
    pauses = [pause_after(failures) for failures in range(40)]
    assert pauses == sorted(pauses)
    assert pauses[0] < 1
    assert pauses[-1] == LONGEST_PAUSE_SECONDS


def test_the_reason_is_the_programs_own_sentence_else_its_status() -> None:
    assert reason_of(2, "info x\nvoxlane: first\nvoxlane: the port is in use\n") == "the port is in use"
    assert reason_of(-9, "") == "its process was ended by signal 9"
    assert reason_of(69, "Traceback") == "its process ended with status 69"


def test_a_cell_gets_nothing_of_rays_environment() -> None:
    given = {"RAY_AUTH_TOKEN": "secret", "OMP_NUM_THREADS": "1", "PATH": "/bin", "CUDA_VISIBLE_DEVICES": "3"}
    assert cell_environment(given) == {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "3"}
