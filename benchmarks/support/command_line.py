"""The command line of every benchmark, and the environment for a support module that runs as a process."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

BENCHMARKS = Path(__file__).parents[1]
REPOSITORY = BENCHMARKS.parent


def command_line(page: str | None) -> argparse.ArgumentParser:
    """Return a parser without options whose --help prints the script's docstring as it is written."""
    return argparse.ArgumentParser(description=page, formatter_class=argparse.RawDescriptionHelpFormatter)


def module_environment() -> dict[str, str]:
    """Return this process's environment with benchmarks/ on the import path, for `python -m support.NAME`."""
    paths = [str(BENCHMARKS), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
