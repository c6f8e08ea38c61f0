"""Becomes a cell's process: `python -m voxlane.server.cluster.launch PARENT COMMAND…`.

The kernel kills it when the thread that has started it ends, so that no cell outlives its actor. That order survives
the exec. It cannot be given before: code between fork and exec is not safe beside Ray's threads.
"""

from __future__ import annotations

import os
import sys

from voxlane.server.cell.parent import die_with_parent

ORPHANED, NOT_FOUND = 3, 127


def main() -> int:
    """Bind this process to its parent and run the command in its place."""
    parent, *command = sys.argv[1:]
    die_with_parent()
    if os.getppid() != int(parent):  # it died before it could be watched
        return ORPHANED
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"voxlane: {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        return NOT_FOUND


if __name__ == "__main__":
    sys.exit(main())
