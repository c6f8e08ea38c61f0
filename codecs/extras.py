"""The command that installs one of voxlane's optional parts, in the way that voxlane itself was installed."""

from __future__ import annotations

from pathlib import Path

PACKAGE = "voxlane"
PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
"""In a clone, the project's own file; an installed package has none."""


def install_command(extra: str) -> str:
    """Return the command that adds an extra: from the clone if voxlane runs from one, else by its name."""
    return f"pip install -e '.[{extra}]'" if PROJECT.is_file() else f"pip install '{PACKAGE}[{extra}]'"
