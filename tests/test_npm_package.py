"""The browser client as an npm package: packed in a fresh copy, installed in an empty project, imported there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# An old Node on the PATH comes after the one that `make test` may have installed.
ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
IMPORT = """
import { VoiceClient } from "voxlane";
import { Resampler } from "voxlane/resample.js";
console.log(typeof VoiceClient, typeof Resampler);
"""


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.soak
def test_the_package_is_made_installed_and_imported(tmp_path: Path) -> None:
    passing = shutil.ignore_patterns("node_modules", "types", "*.tgz")  # a fresh clone has none of them
    shutil.copytree(ROOT / "client_js", tmp_path / "client_js", ignore=passing)
    run(tmp_path / "client_js", "npm", "pack", "--loglevel=error")
    (packed,) = (tmp_path / "client_js").glob("voxlane-*.tgz")
    assert packed.name in (ROOT / "docs" / "client.md").read_text(encoding="utf-8"), "the document names the file"
    project = tmp_path / "project"
    project.mkdir()
    (project / "package.json").write_text('{"private": true, "type": "module"}')
    run(project, "npm", "install", "--no-audit", "--no-fund", "--loglevel=error", str(packed))
    assert run(project, "node", "--input-type=module", "-e", IMPORT) == "function function\n"
    held = {path.name for path in (project / "node_modules" / "voxlane").iterdir()}
    assert {"types", "capture-worklet.js", "playback-worklet.js", "LICENSE"} <= held
    assert not held & {"demo", "test"}
