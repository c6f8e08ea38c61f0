"""Run every benchmark that has a figure in the README and needs no GPU, or the ones named, one after the other.

    make bench                                   # all of them
    make bench ARGS="cpu_llm interrupt_lane"
    python benchmarks/cpu_llm.py --help          # what one of them measures, against what, and how long it takes

Time: 18 minutes for all of them, on two cores. Nothing else should run on the machine meanwhile.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from command_line import command_line

FOLDER = Path(__file__).parent
ALL = (
    "cpu_llm",
    "interrupt_lane",
    "int8_pages",
    "listening",
    "speaking",
    "mixed_load",
    "resampling",
    "voice_to_voice",
    "barge_in",
    "many_sessions",
    "killed_engine",
)


def first_line(name: str) -> str:
    """Return what a benchmark says of itself first."""
    page = ast.get_docstring(ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))) or ""
    return page.partition("\n")[0]


def main() -> int:
    """Run each in a process of its own, so that none inherits another's threads or memory."""
    parser = command_line(__doc__)
    parser.epilog = "\n".join(f"{name:16}{first_line(name)}" for name in ALL)
    parser.add_argument("names", nargs="*", choices=ALL, metavar="NAME", help="of those below; all, if none is named")
    wanted = parser.parse_args().names or ALL
    return max(subprocess.call([sys.executable, str(FOLDER / f"{name}.py")]) for name in wanted)


if __name__ == "__main__":
    sys.exit(main())
