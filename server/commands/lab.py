"""`voxlane lab`: hands its arguments to voxlane-lab, a distribution of its own, where that is installed."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from voxlane.server.commands.options import Commands
from voxlane.server.errors import ConfigError


def add_lab(commands: Commands) -> None:
    """Add `voxlane lab` to the list of commands; its own parser knows the arguments."""
    commands.add_parser("lab", help="test the interruptions of any voice server (voxlane-lab)", add_help=False)


def run_lab(arguments: Sequence[str]) -> int:
    """Run a command of the lab."""
    if find_spec("voxlane_lab") is None:
        raise ConfigError("the lab is a package of its own: pip install voxlane-lab")
    from voxlane_lab.cli import main

    return main(arguments)
