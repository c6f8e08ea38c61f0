"""Run every benchmark, or the ones named: `make bench ARGS="cpu_llm interrupt_lane"`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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


def main() -> int:
    """Run each in a process of its own, so that none inherits another's threads or memory."""
    wanted = sys.argv[1:] or list(ALL)
    unknown = [name for name in wanted if name not in ALL]
    if unknown:
        print(f"no benchmark named {unknown[0]}; there are: {', '.join(ALL)}", file=sys.stderr)
        return 2
    folder = Path(__file__).parent
    return max(subprocess.call([sys.executable, str(folder / f"{name}.py")]) for name in wanted)


if __name__ == "__main__":
    sys.exit(main())
