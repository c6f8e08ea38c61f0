"""The ears of a conversation: murmurs and interruptions, echo, and voices in the background.

One table for each part, before and after in one run. Speech, rooms, lines and noise are made from fixed seeds; clips
are kept in build/ears. Most parts feed sound to the real modules without a server, faster than real time.

    python benchmarks/ears.py                   all parts
    python benchmarks/ears.py echo              these

Time: half an hour on two cores for everything the first time; `--help` of a part is its module's text.
"""

from __future__ import annotations

import importlib

from support.command_line import command_line

PARTS = ("backchannels", "echo", "background")


def main() -> None:
    """Report the parts that were asked for."""
    parser = command_line(__doc__)
    parser.add_argument("part", nargs="*", help=f"one of {', '.join(PARTS)}; none: all")
    chosen = parser.parse_args().part
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; parts are {', '.join(PARTS)}")
    for name in chosen or PARTS:
        print(f"\n== {name}", flush=True)
        importlib.import_module(f"support.ears.{name}").report()


if __name__ == "__main__":
    main()
