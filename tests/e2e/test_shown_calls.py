"""The commands of README and docs that hold calls in real time, with agents that have a fault, in their order."""

from __future__ import annotations

from pathlib import Path

import pytest
from shown_commands import HERE, Shown, run

pytestmark = pytest.mark.weights


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where results are written; each command finds those of the one before."""
    return tmp_path_factory.mktemp("lab")


@pytest.mark.parametrize("one", [one for one in HERE if one.by_the_clock], ids=lambda one: one.command)
def test_a_command_runs(one: Shown, folder: Path) -> None:
    run(one, f"{one.command} {one.further}", folder)
