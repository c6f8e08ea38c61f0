"""A cluster's plan: what a file says, what is refused in one sentence, and the command of a cell."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from voxlane.server.cli import _parser
from voxlane.server.cluster.plan import (
    ClusterPlan,
    check_known,
    in_order,
    places,
    read_plan,
    serve_command,
    spec_of,
    specs_of,
)
from voxlane.server.commands.cluster_arguments import EXAMPLES
from voxlane.server.errors import ConfigError


def plan(tmp_path: Path, text: str, **overrides: object) -> ClusterPlan:
    file = tmp_path / "cluster.toml"
    file.write_text(text)
    return read_plan(file, overrides)


def test_options_win_over_the_file_and_the_file_over_the_defaults(tmp_path: Path) -> None:
    read = plan(tmp_path, 'cells = 3\ngpus = 1\nserve = ["--processes", "8"]', gpus=2, serve=["--threads", "4"])
    assert (read.cells, read.gpus, read.serve, read.port) == (3, 2, ("--threads", "4"), 8000)


def test_the_help_shows_every_key_with_its_default() -> None:
    for key, value in msgspec.to_builtins(ClusterPlan()).items():
        assert f"  {key} = {msgspec.json.encode(value).decode()} " in EXAMPLES, key


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("cells = 0", "cells must be a whole number from 1 to 1000"),
        ("cell = 2", "cell"),
        ('name = "a b"', "name must be a short name"),
        ("cells = 3\nport = 65534", "port: 65534 leaves no ports for 3 cells"),
        ("cells = ", "is no TOML file"),
    ],
)
def test_a_wrong_plan_is_refused_in_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        plan(tmp_path, text)
    assert sentence in refused.value.hint
    assert "\n" not in refused.value.hint


def test_an_unknown_key_names_those_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there are cells, name, gpus"):
        plan(tmp_path, "sells = 2")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_plan(tmp_path / "none.toml", {})


def test_cells_have_names_and_ports_of_their_own() -> None:
    cells = specs_of(ClusterPlan(cells=3, agent_port=0))
    assert [(cell.name, cell.port, cell.agent_port) for cell in cells] == [
        ("cell1", 8000, 0),
        ("cell2", 8001, 0),
        ("cell3", 8002, 0),
    ]
    assert [cell.agent_port for cell in specs_of(ClusterPlan(cells=2, agent_port=9100))] == [9100, 9101]
    assert {cell.host for cell in cells} == {"auto"}
    assert specs_of(ClusterPlan(), local=True)[0].host == "127.0.0.1"
    assert specs_of(ClusterPlan(host="10.0.0.1"), local=True)[0].host == "10.0.0.1"


def test_a_spec_travels_as_plain_values() -> None:
    spec = specs_of(ClusterPlan(serve=("--threads", "2")))[0]
    carried = spec.as_dict()
    assert {type(value) for value in carried.values()} <= {str, int, float, list}
    assert spec_of(carried) == spec


def test_the_command_is_one_that_serve_takes_and_what_the_cluster_decides_holds() -> None:
    spec = specs_of(ClusterPlan(config="/etc/v.toml", serve=("--port", "1", "--processes", "8"), gpus=2))[0]
    command = serve_command(spec, "10.0.0.1", 8000, 9100, ["4", "5"])
    assert command[:3] == [sys.executable, "-m", "voxlane.server.cli"]
    parsed = vars(_parser(with_models=False).parse_args(command[3:]))
    assert parsed["config"] == Path("/etc/v.toml")
    decided = {key: parsed[f"server.{key}"] for key in ("host", "port", "at", "agent_check", "gpus", "processes")}
    assert decided == {
        "host": "10.0.0.1",
        "port": 8000,
        "at": "cell1",
        "agent_check": "10.0.0.1:9100",
        "gpus": ("4", "5"),
        "processes": 8,
    }
    assert "[::1]:9100" in serve_command(spec, "::1", 8000, 9100, [])


def test_names_are_counted_as_people_do_and_unknown_ones_refused() -> None:
    assert in_order(["cell10", "cell2", "a1", "cell1"]) == ["a1", "cell1", "cell2", "cell10"]
    check_known("cell1", ["cell1"])
    with pytest.raises(ConfigError, match="there is no cell cell9; there are cell1, cell2"):
        check_known("cell9", ["cell2", "cell1"])
    with pytest.raises(ConfigError, match="there are none"):
        check_known("cell9", [])


def test_a_cell_needs_all_its_resources_on_one_machine() -> None:
    machines = [{"CPU": 3.0, "GPU": 0.0}, {"CPU": 4.0, "GPU": 1.0}, {}]
    assert places(machines, cpus=3, gpus=0) == 2
    assert places(machines, cpus=1, gpus=0) == 7
    assert places(machines, cpus=1, gpus=1) == 1
    assert places(machines, cpus=0, gpus=1) == 1
    assert places(machines, cpus=5, gpus=0) == 0
    assert places([{"CPU": 0.9999}], cpus=1 / 3, gpus=0) == 3  # as Ray rounds
    assert places(machines, cpus=0, gpus=0) > 1000
    assert places([], cpus=0, gpus=0) == 0
