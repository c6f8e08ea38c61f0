"""Run every benchmark whose figures are published, or the named ones, one after the other.

    make bench                                   # all that need no GPU
    make bench ARGS="cpu_llm interrupt_lane"
    make bench ARGS=--gpu                        # those that need one
    python benchmarks/cpu_llm.py --help          # what one of them measures, against what, and how long it takes

The output of each also goes to NAME.txt in the folder that $OUT names, if it is set.

Time: on two cores 12 minutes for all but `ears`, `phone` and `barge_in`, which take half an hour each, and
`partner`, 3 to 25 minutes for each installed chat model; 18 minutes with a GPU.
No script begins after --seconds. Nothing else should run on the machine meanwhile.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TextIO

from support.command_line import command_line

FOLDER = Path(__file__).parent
ALL = (
    "cpu_llm",
    "interrupt_lane",
    "int8_pages",
    "listening",
    "speaking",
    "voice_to_voice",
    "barge_in",
    "many_sessions",
    "microphone",
    "partner",
    "ears",
    "phone",
    "rolling_restart",
    "killed_engine",
)
GPU = {
    "gpu_kernels": ("--table --check",),
    "gpu_engine": ("",),
    "gpu_parity": ("",),
    "gpu_interrupt": ("",),
    "gpu_lfm2": ("",),
    "gpu_tts": ("", "--exact --codec"),
    "gpu_memory": ("",),
    "gpu_conversations": ("--people 128,256,512 --talkers 6",),
}
"""The options of each run of a script."""


def first_line(name: str) -> str:
    """Return the first line of a script's docstring."""
    page = ast.get_docstring(ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))) or ""
    return page.partition("\n")[0]


def run(name: str) -> int:
    """Run a script once for each of its options; return the worst exit status."""
    folder = os.environ.get("OUT")
    with open(Path(folder) / f"{name}.txt" if folder else os.devnull, "w", encoding="utf-8") as kept:
        return max(abs(run_once(name, options, kept)) for options in GPU.get(name, ("",)))


def run_once(name: str, options: str, kept: TextIO) -> int:
    """Run a script in a process of its own, so that it inherits no threads or memory; return its exit status."""
    command = [sys.executable, "-u", str(FOLDER / f"{name}.py"), *options.split()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            print(line, end="", flush=True)
            kept.write(line)
    return child.returncode


def main() -> int:
    """Run the named scripts; return the worst exit status."""
    parser = command_line(__doc__)
    parser.epilog = "\n".join(f"{name:16}{first_line(name)}" for name in (*ALL, *GPU))
    parser.add_argument("names", nargs="*", metavar="NAME", help="a script of the list below")
    parser.add_argument("--gpu", action="store_true", help="if none is named, run those that need a GPU")
    parser.add_argument("--seconds", type=float, default=3600.0, help="begin no script after this long (%(default)g)")
    asked = parser.parse_args()
    if unknown := set(asked.names) - {*ALL, *GPU}:
        parser.error(f"{', '.join(sorted(unknown))}: not in the list of --help")
    names = asked.names or list(GPU if asked.gpu else ALL)
    end = time.monotonic() + asked.seconds
    worst = 0
    for at, name in enumerate(names):
        if time.monotonic() > end:
            print(f"no time is left for {', '.join(names[at:])}")
            return worst or 1
        print(f"[{at + 1}/{len(names)}] {name}", flush=True)
        worst = max(worst, run(name))
    return worst


if __name__ == "__main__":
    sys.exit(main())
