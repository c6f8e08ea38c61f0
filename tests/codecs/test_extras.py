"""Hints name the package as it was installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from voxlane.codecs import extras


def test_a_clone_installs_from_its_folder() -> None:
    assert extras.install_command("opus") == "pip install -e '.[opus]'"


def test_an_installed_package_goes_by_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(extras, "PROJECT", tmp_path / "pyproject.toml")
    assert extras.install_command("opus") == "pip install 'voxlane[opus]'"
