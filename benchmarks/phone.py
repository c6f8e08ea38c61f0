"""Telephone lines: many at once, and the assistant's own echo.

One table or two for each part; `support/phone/` holds the parts, and each module's text says how it measures.

    python benchmarks/phone.py                  all parts
    python benchmarks/phone.py lines            this one
        lines   20 and 50 lines on the real server with a scripted engine: CPU, lag, gaps
        echo    the assistant's voice fed back through mu-law: self-interruptions and missed ones; bars

Time: lines 2 minutes, echo 25, on two cores; clips take 15 minutes the first time.
"""

from __future__ import annotations

import importlib

from support.command_line import command_line

PARTS = ("lines", "echo")


def main() -> None:
    """Report the parts that were asked for."""
    parser = command_line(__doc__)
    parser.add_argument("part", nargs="*", help=f"one of {', '.join(PARTS)}; none: all")
    chosen = parser.parse_args().part
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; parts are {', '.join(PARTS)}")
    for name in chosen or PARTS:
        print(f"\n== {name}", flush=True)
        importlib.import_module(f"support.phone.{name}").report()


if __name__ == "__main__":
    main()
