"""A Ray of this machine alone: a small program stands in for `ray start`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import until

from voxlane.server.cluster import local_ray
from voxlane.server.errors import ConfigError

RAY = """\
import json, os, pathlib, signal, sys, time
if os.environ.get("DEAF"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
names = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH", "RAY_USAGE_STATS_ENABLED")
pathlib.Path(os.environ["TOLD"]).write_text(json.dumps([sys.argv[1:], {name: os.environ.get(name) for name in names}]))
if "--num-gpus" in sys.argv:
    sys.exit("no")
print("Ray runtime started.", flush=True)
time.sleep(600)
"""


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program `ray.scripts.scripts` that writes down how it was started, and where it does."""
    package = tmp_path / "programs" / "ray" / "scripts"
    package.mkdir(parents=True)
    for folder in (package.parent, package):  # a package, which goes before an installed Ray
        (folder / "__init__.py").write_text("")
    (package / "scripts.py").write_text(RAY)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "programs"), *filter(None, sys.path)]))
    monkeypatch.setenv("TOLD", str(tmp_path / "told"))
    monkeypatch.setattr(local_ray, "folder", lambda: tmp_path / "state")
    return tmp_path / "told"


def test_the_token_is_private_and_rays_programs_are_told_to_ask_for_it(told: Path) -> None:
    ray = local_ray.start(cpus=3.5, gpus=0)
    try:
        token = local_ray.folder() / "token"
        assert token.stat().st_mode & 0o777 == 0o600
        assert len(token.read_text()) == 64
        assert f'"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "{token}"' in told.read_text()
        assert '"RAY_USAGE_STATS_ENABLED": "0"' in told.read_text()
        assert token.read_text() not in told.read_text()
        assert local_ray.find() == ray
    finally:
        local_ray.stop(ray)
    assert local_ray.find() is None
    assert not ray.runs


def test_a_ray_that_does_not_start_is_told_with_its_log(told: Path) -> None:
    with pytest.raises(ConfigError, match=r"could not be started on this machine: see .*ray\.log"):
        local_ray.start(cpus=1, gpus=1)
    assert local_ray.find() is None


@pytest.mark.parametrize("deaf", ["", "yes"])
def test_a_ray_whose_start_is_interrupted_does_not_stay(told: Path, deaf: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEAF", deaf)
    monkeypatch.setattr(local_ray, "STOP_SECONDS", 0.1 if deaf else 60.0)
    started: list[subprocess.Popen[bytes]] = []

    def interrupt(process: subprocess.Popen[bytes], log: Path) -> None:
        started.append(process)
        until(told.exists, "it runs")
        raise KeyboardInterrupt

    monkeypatch.setattr(local_ray, "_wait_started", interrupt)
    with pytest.raises(KeyboardInterrupt):
        local_ray.start(cpus=1, gpus=0)
    assert local_ray.find() is None
    assert started[0].returncode == (-9 if deaf else -15)
