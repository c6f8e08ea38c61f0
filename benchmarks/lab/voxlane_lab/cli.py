"""The command `voxlane-lab`: arguments in, one of the commands run, one line and an exit code when it fails."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

from voxlane_lab.arguments import PROGRAM, parser
from voxlane_lab.errors import LabError
from voxlane_lab.terminal import write_text

NOT_MEASURABLE, INTERRUPTED, NO_READER = 2, 130, 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code. What goes wrong is not measurable, never a missed gate."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a character that the encoding lacks is no reason to fail
    parsed = parser().parse_args(arguments)
    from voxlane_lab.commands import run  # --help need not wait for it

    try:
        return run(parsed)
    except LabError as error:
        write_text(sys.stderr, f"{PROGRAM}: {error}\n")
        return NOT_MEASURABLE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # `voxlane-lab list | head`: the reader has what it wanted. Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NO_READER


if __name__ == "__main__":
    sys.exit(main())
