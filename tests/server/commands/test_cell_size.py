"""How many server processes run where the configuration leaves it open, and what the command line says."""

from __future__ import annotations

import os

import pytest

from voxlane.server import cli
from voxlane.server.commands import serve as single
from voxlane.server.commands import supervisor
from voxlane.server.commands.supervisor import MOST_CHOSEN, cell_size
from voxlane.server.config import Config, ServerConfig, load
from voxlane.server.errors import ConfigError


@pytest.mark.parametrize(
    ("cores", "gpus", "asked", "expected"),
    [
        (2, (), 0, 1),
        (64, (), 0, 1),  # no GPU
        (4, ("0",), 0, 1),
        (8, ("0",), 0, 4),
        (16, ("0", "1"), 0, 8),
        (256, ("0",), 0, MOST_CHOSEN),
        (2, (), 3, 3),
        (64, ("0",), 1, 1),
    ],
)
def test_cores_and_device_choose(
    monkeypatch: pytest.MonkeyPatch, cores: int, gpus: tuple[str, ...], asked: int, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(supervisor, "GPU_FILE", supervisor.GPU_FILE.with_name("no such device"))
    assert cell_size(Config(ServerConfig(processes=asked, gpus=gpus))) == expected


def test_what_seals_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.setattr(supervisor, "can_seal", lambda: False)
    config = Config(ServerConfig(gpus=("0",)))
    assert cell_size(config) == 1
    with pytest.raises(ConfigError, match="pip install"):
        supervisor.check_cell(config, supervisor.Secrets())


@pytest.mark.parametrize("gpus", [("0",) * 17, ("",), ("0 1",), tuple(map(str, range(65)))])
def test_gpus_are_checked(gpus: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=r"server\.gpus"):
        load(None, {"server.gpus": gpus})


def test_the_command_line_chooses_between_one_process_and_several(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, object]] = []

    async def alone(config: Config, *_: object, **__: object) -> None:
        ran.append(("one", config.server.gpus))

    async def several(config: Config, secrets: object, processes: int, **_: object) -> None:
        ran.append((f"{processes}", config.server.gpus))

    monkeypatch.setattr(single, "serve", alone)
    monkeypatch.setattr(supervisor, "serve_cell", several)
    for arguments in (
        [],
        ["--processes", "3"],
        ["--gpus", "0,1", "--processes", "1"],
        ["--gpus", "1", "--processes", "1"],
    ):
        assert cli.main(["serve", "--port", "0", "--device", "cpu", *arguments]) == 0
    assert ran == [("one", ()), ("3", ()), ("1", ("0", "1")), ("one", ("1",))]
