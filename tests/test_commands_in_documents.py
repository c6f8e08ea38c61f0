"""The commands that README and docs show exist as they are written: options, subcommands, make's targets, extras."""

from __future__ import annotations

import contextlib
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from voxlane.server import cli
from voxlane_lab.arguments import parser

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))]
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`]+)`")
SHELLS = ("", "sh", "bash", "console", "yaml")
OWN = re.compile(r"(?:^|[\s;&|(])((?:voxlane(?:-lab)? [a-z]+|voxlane --)[^|;&<>\n]*)")
MAKE = re.compile(r"^ *make ([a-z-]+)\b", re.MULTILINE)
EXTRA = re.compile(r"pip install[^`\n]*?(?:voxlane(?:-lab)?|\.)\[([a-z,]+)\]")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LAB = tomllib.loads((ROOT / "benchmarks" / "lab" / "pyproject.toml").read_text(encoding="utf-8"))
ELLIPSES = ("…", "...")


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(page: Path) -> Iterator[str]:
    """Yield a page's blocks of commands; a backslash joins a line with the next one."""
    for kind, text in BLOCK.findall(read(page)):
        if kind in SHELLS:
            yield text.replace("\\\n", " ")


def commands(page: Path) -> list[str]:
    """Return our own commands in a page's blocks."""
    lines = (line for block in blocks(page) for line in block.splitlines())
    found = (match.group(1).strip() for line in lines for match in OWN.finditer(line.split(" #")[0]))
    return [one for one in found if not any(dots in one for dots in ELLIPSES)]


ALL = sorted({(page.relative_to(ROOT).as_posix(), command) for page in PAGES for command in commands(page)})


def test_there_are_commands_to_check() -> None:
    assert len(ALL) > 30
    assert ("README.md", "voxlane talk --in question.wav --out answer.wav") in ALL


def test_the_commands_are_understood(capsys: pytest.CaptureFixture[str]) -> None:
    parsers = {name: cli._parser(with_models=name == "models") for name in ("", "models")} | {"lab": parser()}
    complaints = {}
    for page, command in ALL:
        of, *arguments = shlex.split(command.replace("voxlane lab ", "voxlane-lab "))
        chosen = "lab" if of == "voxlane-lab" else "models" if arguments[0] == "models" else ""
        with contextlib.suppress(SystemExit):  # --help and --version end it too, without a complaint
            parsers[chosen].parse_args(arguments)
        complaints[page, command] = capsys.readouterr().err
    assert {one: told for one, told in complaints.items() if told} == {}


def test_make_has_the_targets() -> None:
    targets = set(re.findall(r"^([a-z-]+):", read(ROOT / "Makefile"), re.MULTILINE))
    told = {page.name: [*blocks(page), *SPAN.findall(BLOCK.sub("", read(page)))] for page in PAGES}
    named = {(page, name) for page, texts in told.items() for text in texts for name in MAKE.findall(text)}
    assert {one for one in named if one[1] not in targets} == set()


def test_the_package_has_the_extras() -> None:
    known = {name for one in (PROJECT, LAB) for name in one["project"]["optional-dependencies"]}
    named = {(page.name, name) for page in PAGES for names in EXTRA.findall(read(page)) for name in names.split(",")}
    assert {one for one in named if one[1] not in known} == set()
