"""The command `voxlane` around the scripted engine, for programs that start `voxlane serve` themselves."""

from __future__ import annotations

import sys

from house import ENGINE_COMMAND

from voxlane.server import cli
from voxlane.server.commands.serve import serve
from voxlane.server.commands.supervisor import serve_cell

for function in (serve, serve_cell):
    function.__kwdefaults__["engine_command"] = ENGINE_COMMAND

if __name__ == "__main__":
    sys.exit(cli.main())
