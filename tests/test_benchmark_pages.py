"""What `--help` of a benchmark prints is its docstring, read here from the source: no torch and no peer is imported."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"
STARTED_BY_OTHERS = {"crowded_server", "fake_engine", "pretended_engine", "sampled_engine", "switched_engine"}
TIME = re.compile(r"^Time: [\w-].+", re.MULTILINE)
PAGE_IS_HELP = re.compile(r"\b(command_line|parser)\(__doc__[,)]")


def test_every_script_has_a_page_that_says_how_long_it_takes() -> None:
    scripts = {
        path.stem: source
        for path in sorted(FOLDER.glob("*.py"))
        if 'if __name__ == "__main__":' in (source := path.read_text(encoding="utf-8"))
    }
    assert len(scripts) > 25
    pages = {name: ast.get_docstring(ast.parse(source)) or "" for name, source in scripts.items()}
    assert [name for name, source in scripts.items() if not PAGE_IS_HELP.search(source)] == []
    assert [name for name in pages.keys() - STARTED_BY_OTHERS if not TIME.search(pages[name])] == []


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
