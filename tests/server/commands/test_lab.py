"""`voxlane lab` hands its arguments on to voxlane-lab, or says what to install."""

from __future__ import annotations

import sys

import pytest

from voxlane.server.cli import main


def test_the_lab_gets_the_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "agent", "--list"]) == 0
    assert "stops_for_mhm" in capsys.readouterr().out


def test_help_is_the_labs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["lab", "--help"])
    assert "voxlane-lab run quick" in capsys.readouterr().out


def test_without_the_lab_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "voxlane_lab", None)
    assert main(["lab", "run", "mhm", "--url", "planted:none"]) == 2
    assert "pip install voxlane-lab" in capsys.readouterr().err
