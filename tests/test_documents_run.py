"""What README and docs show for a running server is run: its curl commands, its Python, its configuration files."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import subprocess
import tomllib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from house import start

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


async def test_the_commands_over_http(tmp_path: Path) -> None:
    (text,) = [block for block in blocks(README, "") if f"curl {USUAL}" in block]
    async with start() as running:
        script = f"set -eo pipefail\n{text.replace('curl ', 'curl --fail-with-body -sS ').replace(USUAL, running.url)}"
        command = partial(subprocess.run, ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True)
        done = await asyncio.to_thread(command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "hello.wav").read_bytes().startswith(b"RIFF")
    assert '"choices"' in done.stdout
    assert '"text"' in done.stdout


async def test_the_python(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = [block for block in blocks(README, "python") if USUAL in block]
    async with start() as running:
        await asyncio.to_thread(exec, code.replace(USUAL, running.url), {})
    assert "Why is the sky blue?" in capsys.readouterr().out, "the scripted engine repeats the question"


def test_the_configurations_are_understood(tmp_path: Path) -> None:
    texts = list(configurations())
    assert len(texts) > 10
    for page, text in texts:
        file = tmp_path / page  # an error names it
        file.write_text(text, encoding="utf-8")
        configuration.load(file)
