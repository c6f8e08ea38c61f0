"""The report of a GPU benchmark: lines that are printed again at the end, parts that may fail, figures for a file."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from support.gpu.clock import FAILURES


def write_out(name: str, content: object) -> None:
    """Write figures to a file of that name in the folder that $OUT names, if it is set."""
    if folder := os.environ.get("OUT"):
        (Path(folder) / f"{name}.json").write_text(json.dumps(content, indent=1), encoding="utf-8")


@dataclass(kw_only=True)
class Report:
    """The figures by name, and the lines of the table so far."""

    found: dict[str, float] = field(default_factory=dict)
    table: list[str] = field(default_factory=list)

    def say(self, line: str) -> None:
        """Print a line of the table now, and again at the end."""
        print(line, flush=True)
        self.table.append(line)

    def attempt(self, name: str, work: Callable[[], None]) -> bool:
        """Do a piece of a part; print its failure, if any; return whether it succeeded."""
        try:
            work()
        except FAILURES as error:
            self.say(f"{name} FAILED: {type(error).__name__}: {str(error)[:300]}")
            traceback.print_exc()
            return False
        return True

    def close(self, name: str) -> None:
        """Print the table once more, and write everything to $OUT."""
        print("\n==== table", *self.table, sep="\n")
        write_out(name, {"found": self.found, "table": self.table})
