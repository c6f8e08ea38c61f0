"""docs/security.md names tests that exist, and names one for each threat and each of the sixteen defects."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs" / "security.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`([\w/]+\.py)(?:::(\w+))?`")


def rows(heading: str) -> list[list[str]]:
    """Return the cells of each row of the table under a heading."""
    part = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in part.splitlines() if line[:2] == "| "][
        1:
    ]


ROWS = rows("Threats, controls, tests") + rows("Sixteen defects and their tests")


@cache
def functions(path: Path) -> set[str]:
    """Return the names of the functions in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}


def exists(file: str, name: str) -> bool:
    """Return whether a test, or a file of tests, is there; a file may be named from tests/ or from tests/server/."""
    found = [path for path in (TESTS / file, TESTS / "server" / file) if path.is_file()]
    return bool(found) and (not name or name in functions(found[0]))


def test_each_row_names_tests_that_exist() -> None:
    for threat, control, tests in ROWS:
        named = NAMED.findall(tests)
        assert control, threat
        assert named, threat
        assert [f"{file}::{name}" for file, name in named if not exists(file, name)] == [], threat


def test_there_are_sixteen_defects() -> None:
    assert len(rows("Sixteen defects and their tests")) == 16
