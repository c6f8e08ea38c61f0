"""What `--help` of a benchmark prints is its docstring, read here from the source: no torch and no peer is imported."""

from __future__ import annotations

import ast
import re
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "benchmarks"
STARTED_BY_OTHERS = {"crowded_server", "fake_engine", "sampled_engine", "switched_engine"}
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
