"""`voxlane cluster` without Ray: what it says when something is missing, and in which order it drains and upgrades."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from voxlane.codecs.extras import install_command
from voxlane.server import cli
from voxlane.server.cluster import fleet as ray_fleet
from voxlane.server.cluster import local_ray
from voxlane.server.cluster.facts import CellFacts
from voxlane.server.cluster.plan import CellSpec, ClusterPlan, specs_of
from voxlane.server.commands import cluster
from voxlane.server.errors import ConfigError


class FakeFleet:
    """Cells that become ready and stop at the second look."""

    def __init__(self, **states: str) -> None:
        self.local = True
        self.did: list[str] = []
        self._cells = {name: [state] for name, state in states.items()}
        self._specs = {spec.name: spec for spec in specs_of(ClusterPlan(cells=9), local=True)}
        self.machines = {"one": {"CPU": 8.0, "GPU": 0.0}}

    def names(self) -> list[str]:
        return list(self._cells)

    def facts(self, names: list[str] | None = None) -> list[CellFacts]:
        return [self._told(name, self._next(name)) for name in names or self.names()]

    def _told(self, name: str, state: str) -> CellFacts:
        """Return a state; that of `restarting!` is told by the cell's actor, as all others but two."""
        answers = state not in ("restarting", "no answer")
        return CellFacts(name, state.rstrip("!"), actor_pid=9 if answers else 0)  # type: ignore[arg-type]

    def _next(self, name: str) -> str:
        states = self._cells[name]
        return states.pop(0) if len(states) > 1 else states[0]

    def spec(self, name: str) -> CellSpec:
        return self._specs[name]

    def create(self, spec: CellSpec) -> None:
        self.did.append(f"create {spec.name}")
        self._specs[spec.name] = spec
        self._cells[spec.name] = ["starting", "ready"]

    def drain(self, name: str) -> None:
        self.did.append(f"drain {name}")
        self._cells[name] = ["draining", "stopped"]

    def remove(self, name: str) -> None:
        self.did.append(f"remove {name}")
        del self._cells[name]

    def free(self) -> dict[str, float]:
        return {"CPU": 1.0, "GPU": 0.0}

    def free_by_machine(self) -> dict[str, dict[str, float]]:
        return self.machines

    def unplaced(self) -> set[str]:
        return {name for name, states in self._cells.items() if states == ["no answer"]}

    def close(self) -> None:
        self.did.append("close")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(cluster, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(cluster, "ROOM_SECONDS", 0.0)
    monkeypatch.setattr(local_ray, "folder", lambda: tmp_path)


def use(monkeypatch: pytest.MonkeyPatch, fleet: FakeFleet) -> None:
    monkeypatch.setattr(ray_fleet, "check_installed", lambda: None)
    monkeypatch.setattr(ray_fleet, "connect", lambda address: fleet)
    monkeypatch.setattr(ray_fleet, "connect_or_start", lambda address, **_: fleet)


def test_without_ray_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ray_fleet.importlib.util, "find_spec", lambda name: None)  # type: ignore[attr-defined]
    assert cli.main(["cluster", "status"]) == 2
    assert install_command("cluster") in capsys.readouterr().err


def test_without_a_cluster_it_says_how_to_start_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ray_fleet, "check_installed", lambda: None)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    assert cli.main(["cluster", "status"]) == 2
    assert "no Ray cluster was found on this machine" in capsys.readouterr().err
    assert cli.main(["cluster", "up", "--address", "127.0.0.1:1"]) == 2  # none is started for a wrong address
    assert "no Ray cluster was found at 127.0.0.1:1" in capsys.readouterr().err


def test_up_creates_what_is_missing_and_tells_what_differs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = FakeFleet(cell1="ready")
    use(monkeypatch, fleet)
    assert cli.main(["cluster", "up", "--cells", "2", "--", "--processes", "4"]) == 0
    assert fleet.did == ["create cell2", "close"]
    assert fleet.spec("cell2").serve == ("--processes", "4")
    said = capsys.readouterr()
    assert "cell2" in said.out
    assert "cell1: runs with other settings" in said.err


def test_cells_without_room_are_refused_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two cells of three cores fit on the two machines, though seven cores are free."""
    fleet = FakeFleet(cell1="ready")
    fleet.local, fleet.machines = False, {"one": {"CPU": 3.0, "GPU": 0.0}, "two": {"CPU": 4.0, "GPU": 1.0}}
    use(monkeypatch, fleet)
    assert cli.main(["cluster", "up", "--cells", "5", "--cpus-per-cell", "3"]) == 2
    assert fleet.did == ["close"]
    assert capsys.readouterr().err.splitlines()[-1] == (
        "voxlane: no room for 2 of 4 cells that need 3 cores each (free: one: 3 cores, 0 GPUs; two: 4 cores, 1 GPUs); "
        "add a machine (`ray start --address …`), or lower --cells or --cpus-per-cell"
    )
    assert cli.main(["cluster", "up", "--cells", "3", "--cpus-per-cell", "3"]) == 0


def test_a_cell_that_waits_for_a_machine_already_needs_room(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = FakeFleet(cell1="no answer")
    fleet.machines = {"one": {"CPU": 0.5, "GPU": 0.0}}
    use(monkeypatch, fleet)
    assert cli.main(["cluster", "up", "--cells", "1", "--gpus-per-cell", "2"]) == 2
    told = capsys.readouterr().err
    assert "no room for 1 of 1 cells that need 1 cores and 2 GPUs each (free: one: 0.5 cores, 0 GPUs)" in told
    assert "`voxlane cluster down` and `up` start a Ray with more" in told


def test_machines_that_join_later_are_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = FakeFleet()
    fleet.machines = {}
    use(monkeypatch, fleet)
    assert cli.main(["cluster", "up", "--cells", "1", "--wait-for-machines"]) == 0
    assert "(free: no machine); " in capsys.readouterr().err
    assert fleet.did == ["create cell1", "close"]


def test_a_cell_that_is_not_ready_in_time_is_explained() -> None:
    with pytest.raises(ConfigError, match="cell1 is not ready after 0 s, but starting"):
        cluster.wait_ready(FakeFleet(cell1="starting"), ["cell1"], 0)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="cell1 has stopped"):
        cluster.wait_ready(FakeFleet(cell1="stopped"), ["cell1"], 60)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="cell1 has no machine after 0 s: Ray has 1 cores and 0 GPUs left"):
        cluster.wait_ready(FakeFleet(cell1="no answer"), ["cell1"], 0)  # type: ignore[arg-type]


def test_drain_stops_one_cell_and_refuses_an_unknown_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = FakeFleet(cell1="ready", cell2="ready")
    use(monkeypatch, fleet)
    assert cli.main(["cluster", "drain", "cell2"]) == 0
    assert fleet.did == ["drain cell2", "remove cell2", "close"]
    assert cli.main(["cluster", "drain", "cell2"]) == 2
    assert "there is no cell cell2; there are cell1" in capsys.readouterr().err


def test_a_cell_that_does_not_answer_may_have_calls_and_is_killed_only_when_told_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = FakeFleet(cell1="no answer")
    use(monkeypatch, fleet)
    assert cli.main(["cluster", "drain", "cell1", "--timeout", "0.01"]) == 2
    assert "`voxlane cluster drain cell1 --now` cuts its calls" in capsys.readouterr().err
    assert fleet.did == ["close"]
    assert cli.main(["cluster", "drain", "cell1", "--now"]) == 0
    assert fleet.did == ["close", "remove cell1", "close"]


def test_a_cell_whose_process_cannot_start_is_drained_if_its_actor_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = FakeFleet(cell1="restarting!")
    use(monkeypatch, fleet)
    assert cli.main(["cluster", "drain", "cell1", "--timeout", "5"]) == 0
    assert fleet.did == ["drain cell1", "remove cell1", "close"]


def test_haproxy_drains_a_cell_that_has_taken_the_question(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    fleet = FakeFleet(cell1="ready", cell2="no answer")
    use(monkeypatch, fleet)
    for order in ("drain", "leave"):
        note: Any = lambda _, name, order=order: fleet.did.append(f"haproxy {order} {name}")  # noqa: E731
        monkeypatch.setattr(cluster.HaproxySocket, order, note)
    assert cli.main(["cluster", "down", "--timeout", "0.2", "--haproxy-socket", str(tmp_path / "x")]) == 2
    steps = ("drain cell1", "haproxy drain cell1", "haproxy leave cell1", "remove cell1", "close")
    assert fleet.did == list(steps)  # clients still reach cell2


def test_upgrade_restarts_one_after_the_other_and_those_that_do_not_serve_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = FakeFleet(cell1="ready", cell2="restarting", cell3="full")
    fleet._cells["cell2"] = ["restarting", "restarting", "starting"]
    use(monkeypatch, fleet)
    assert cli.main(["cluster", "upgrade"]) == 0
    each = [f"{step} {name}" for name in ("cell2", "cell1", "cell3") for step in ("drain", "remove", "create")]
    assert fleet.did == [*each, "close"]


def test_an_upgrade_stops_at_a_cell_that_does_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = FakeFleet(cell1="ready", cell2="ready")
    use(monkeypatch, fleet)

    def broken(spec: CellSpec) -> None:
        fleet._cells[spec.name] = ["starting"]

    monkeypatch.setattr(fleet, "create", broken)
    assert cli.main(["cluster", "upgrade", "--timeout", "0.01"]) == 2
    assert "drain cell2" not in fleet.did


def test_down_drains_all_and_now_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = FakeFleet(cell1="ready", cell2="ready")
    use(monkeypatch, fleet)
    assert cli.main(["cluster", "down"]) == 0
    assert sorted(fleet.did) == ["close", "drain cell1", "drain cell2", "remove cell1", "remove cell2"]
    fleet = FakeFleet(cell1="ready")
    use(monkeypatch, fleet)
    assert cli.main(["cluster", "down", "--now"]) == 0
    assert fleet.did == ["remove cell1", "close"]


def test_sync_needs_a_socket(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    use(monkeypatch, FakeFleet())
    assert cli.main(["cluster", "sync"]) == 2
    assert "--haproxy-socket" in capsys.readouterr().err


def test_sync_goes_on_while_haproxy_is_restarted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, FakeFleet(cell1="ready"))
    rounds = [None, ConfigError("refused"), ConfigError("refused"), None, KeyboardInterrupt()]

    def sync(haproxy: object, cells: list[CellFacts]) -> list[CellFacts]:
        if (error := rounds.pop(0)) is not None:
            raise error
        return cells

    monkeypatch.setattr(cluster, "SYNC_SECONDS", 0.0)
    monkeypatch.setattr(cluster.HaproxySocket, "sync", sync)
    with pytest.raises(KeyboardInterrupt):
        cluster.run_sync(argparse.Namespace(address=None, once=False, haproxy_socket="x", backend="cells"))
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(" is at")[0] for line in said] == ["cell1", "refused", "cell1"]


def test_a_ray_that_has_ended_is_not_found(tmp_path: Any) -> None:
    assert local_ray.find() is None
    own = local_ray.LocalRay(1, "no such start", "127.0.0.1:1")
    assert not own.runs
    (tmp_path / "running.json").write_text("{}")
    assert local_ray.find() is None


def test_every_action_has_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    parser: argparse.ArgumentParser = cli._parser(with_models=False)
    for action in ("up", "status", "drain", "upgrade", "sync", "down"):
        with pytest.raises(SystemExit):
            parser.parse_args(["cluster", action, "--help"])
        assert "--address" in capsys.readouterr().out
