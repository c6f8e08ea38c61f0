"""The engine's process with a sampling profiler: every few milliseconds it notes the position of the engine's thread.

    python -m support.engines.sampled FILE FD      # FD: the engine's socket, as for voxlane.engine.process

"within" is a function's share of the time, with the functions that it called; "alone" is the share of a line, without
them. Time in one call to a library counts when the call returns. This costs far less than a profiler that follows every
call.
"""

from __future__ import annotations

import signal
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import TypeVar

from support.command_line import command_line
from support.engines import switched

from voxlane.engine import process

Place = TypeVar("Place")

EVERY_S = 0.003
SHOWN = 45
STARTING = frozenset({"assemble", "_find_and_load"})


class Samples:
    """Seconds by function and by line."""

    def __init__(self) -> None:
        self._within: defaultdict[CodeType, float] = defaultdict(float)  # by function
        self._alone: defaultdict[tuple[CodeType, int], float] = defaultdict(float)  # by line
        self._last_s = time.monotonic()

    def take(self, number: int, frame: FrameType | None) -> None:
        """Add the time since the last sample to the running functions, unless the engine is still starting."""
        now = time.monotonic()
        spent, self._last_s = now - self._last_s, now
        leaf, codes = frame, set[CodeType]()
        while frame is not None:
            codes.add(frame.f_code)
            frame = frame.f_back
        if leaf is not None and STARTING.isdisjoint(code.co_name for code in codes):
            self._alone[leaf.f_code, leaf.f_lineno] += spent
            for code in codes:
                self._within[code] += spent

    def report(self) -> str:
        """Return both tables."""
        total = max(self._within.values(), default=1)
        lines = ["within"]
        lines += [f"  {spent / total:6.1%}  {_name(code)}" for code, spent in _most(self._within)]
        lines.append("alone")
        for (code, line), spent in _most(self._alone):
            lines.append(f"  {spent / total:6.1%}  {_name(code)}:{line}")
        return "\n".join(lines) + "\n"


def _most(spent: Mapping[Place, float]) -> list[tuple[Place, float]]:
    return sorted(spent.items(), key=lambda item: item[1], reverse=True)[:SHOWN]


def _name(code: CodeType) -> str:
    path = Path(code.co_filename)
    return f"{path.parent.name}/{path.name}:{code.co_name}"


def main() -> int:
    """Run the engine; write the tables to the file at the end."""
    parser = command_line(__doc__)
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("fd", type=int, metavar="FD")
    target: Path = parser.parse_args().file
    del sys.argv[1]
    samples = Samples()
    switched.listen()
    signal.signal(signal.SIGALRM, samples.take)
    signal.setitimer(signal.ITIMER_REAL, EVERY_S, EVERY_S)
    try:
        return process.main()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        target.write_text(samples.report(), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
