"""What README and docs show for a running server is run: its curl commands, its Python, its configuration files."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from page_server import page_server

from voxlane.server import config as configuration
from voxlane.server.config import Config

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
USUAL = "http://127.0.0.1:8000"
SECTIONS = {field.name for field in dataclasses.fields(Config)}


def blocks(page: Path, kind: str) -> list[str]:
    return [text for name, text in BLOCK.findall(page.read_text(encoding="utf-8")) if name == kind]


def configurations() -> Iterator[tuple[str, str]]:
    """Yield the configurations of all pages; other TOML, such as the lab's scenarios, has other sections."""
    for page in (README, *sorted(ROOT.glob("docs/*.md"))):
        for text in blocks(page, "toml"):
            if tomllib.loads(text).keys() <= SECTIONS:
                yield page.name, text


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Return the address of a server around the scripted engine."""
    with page_server() as address:
        yield address


def test_the_commands_over_http(url: str, tmp_path: Path) -> None:
    (text,) = [block for block in blocks(README, "") if f"curl {USUAL}" in block]
    script = f"set -eo pipefail\n{text.replace('curl ', 'curl --fail-with-body -sS ').replace(USUAL, url)}"
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "hello.wav").read_bytes().startswith(b"RIFF")
    assert '"choices"' in done.stdout
    assert '"text"' in done.stdout


def test_the_python(url: str) -> None:
    (code,) = [block for block in blocks(README, "python") if USUAL in block]
    done = subprocess.run([sys.executable, "-c", code.replace(USUAL, url)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Why is the sky blue?" in done.stdout, "the scripted engine repeats the question"


@pytest.mark.parametrize(("page", "text"), list(configurations()))
def test_a_configuration_is_understood(page: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / "voxlane.toml"
    file.write_text(text, encoding="utf-8")
    configuration.load(file)
