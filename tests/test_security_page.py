"""docs/security.md names a test for each threat, and the tests exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs" / "security.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`([\w/]+\.py)(?:::(\w+))?`")


ROWS = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| ")][1:]


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
    assert len(ROWS) > 50
    for threat, control, tests in ROWS:
        named = NAMED.findall(tests)
        assert control, threat
        assert named, threat
        assert [f"{file}::{name}" for file, name in named if not exists(file, name)] == [], threat
