"""What `--help` of a benchmark prints is its docstring, read here from the source: no torch and no peer is imported."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"
SCRIPTS = sorted([*FOLDER.glob("*.py"), *FOLDER.glob("training/*.py")])
TIME = re.compile(r"^Time: [\w-].+", re.MULTILINE)
PAGE_IS_HELP = re.compile(r"\b(command_line|parser)\(__doc__[,)]|ArgumentParser\(description=__doc__,")
ROW = re.compile(r"^\| `([\w/]+)\.py`", re.MULTILINE)


def test_every_script_has_a_page_that_says_how_long_it_takes() -> None:
    for path in SCRIPTS:
        source = path.read_text(encoding="utf-8")
        assert 'if __name__ == "__main__":' in source, f"{path.name} is not run by a person: it belongs into support/"
        assert PAGE_IS_HELP.search(source), path.name
        assert TIME.search(ast.get_docstring(ast.parse(source)) or ""), path.name


def test_every_script_has_a_line_in_the_readme() -> None:
    lines = ROW.findall((FOLDER / "README.md").read_text(encoding="utf-8"))
    assert sorted(lines) == [path.relative_to(FOLDER).with_suffix("").as_posix() for path in SCRIPTS]


@pytest.mark.parametrize(("options", "first", "last"), [([], "cpu_llm", "killed_engine"), (["--gpu"], "gpu_", "gpu_")])
def test_all_are_run_if_none_is_named(options: list[str], first: str, last: str) -> None:
    found = subprocess.run(
        [sys.executable, FOLDER / "run.py", *options, "--seconds", "-1"], capture_output=True, text=True
    )
    names = found.stdout.strip().removeprefix("no time is left for ").split(", ")
    assert found.stderr == ""
    assert names[0].startswith(first)
    assert names[-1].startswith(last)
    assert all((FOLDER / f"{name}.py").exists() for name in names)
