"""The arguments of `voxlane cluster`, and their help."""

from __future__ import annotations

import argparse
from pathlib import Path

from voxlane.server.commands.options import Commands, add_command

EXAMPLES = """\
  voxlane cluster up --cells 2                          two cells on this machine; a Ray of its own is started
  voxlane cluster up --file cluster.toml                on the machines of the Ray cluster that runs here
  voxlane cluster up --cells 4 --gpus-per-cell 1 -- --config /etc/voxlane.toml --processes 8
  voxlane cluster status                                where they are, what they do, how much room they have
  voxlane cluster drain cell2                           hand its calls over and stop it
  voxlane cluster upgrade                               restart one cell at a time, with the version installed now
  voxlane cluster sync --haproxy-socket /run/haproxy/admin.sock
  voxlane cluster down

A cell is one `voxlane serve`. Ray chooses a machine for each, starts it, and starts it again when it or its machine is
lost. Every machine has voxlane, its files and its keys (in the environment of `ray start`); all share one store, else
calls cannot move:

  [store]
  kind = "redis"
  url = "redis://10.0.2.1:6379/0"

cluster.toml, all keys with their defaults:

  cells = 1             # how many
  name = "cell"         # cell1, cell2, …: the names in HAProxy's file
  gpus = 0              # of each cell
  cpus = 1              # of each cell, as Ray counts them
  host = "auto"         # to listen on; auto: the machine's address in Ray
  port = 8000           # of the first; the next has 8001; 0: any free one
  agent_port = 9100     # the same for HAProxy's agent-check
  config = ""           # the file of `voxlane serve --config`, on each machine
  serve = []            # more arguments of `voxlane serve`, as ["--processes", "8"]
  program = []          # the command voxlane, where it is another one

Whoever reaches Ray's ports can run code: keep them in a network of their own. See docs/scaling.md."""


def add_cluster(commands: Commands) -> argparse.ArgumentParser:
    """Add `voxlane cluster`."""
    parser = add_command(commands, "cluster", "run cells on one machine or many, with Ray", EXAMPLES)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    up = actions.add_parser("up", help="start the cells that do not run yet, and wait until all are ready")
    upgrade = actions.add_parser("upgrade", help="restart cells one after the other; their calls move to the others")
    status = actions.add_parser("status", help="show all cells")
    drain = actions.add_parser("drain", help="hand the calls of a cell over and stop it")
    sync = actions.add_parser("sync", help="tell HAProxy where the cells are, whenever that changes")
    down = actions.add_parser("down", help="drain and stop all cells, and the Ray that `up` has started")
    for name, action in (("up", up), ("upgrade", upgrade), ("status", status), ("drain", drain), ("sync", sync),
                         ("down", down)):  # fmt: skip
        action.set_defaults(action=name)
        _add_place(action, with_haproxy=name != "status", waits=name != "status" and name != "sync")
    _add_plan(up)
    _add_plan(upgrade)
    up.add_argument(
        "--wait-for-machines", action="store_true",
        help="where machines join later, as with an autoscaler: wait, though there is no room for all cells yet",
    )  # fmt: skip
    upgrade.add_argument("--cell", metavar="NAME", action="append", default=[], help="only this one; may be repeated")
    status.add_argument("--json", action="store_true", help="one JSON list instead of a table")
    status.add_argument("--haproxy", action="store_true", help="the lines of HAProxy's file instead of a table")
    drain.add_argument("name", metavar="NAME", help="of the cell, as cell2")
    sync.add_argument("--once", action="store_true", help="tell it once and end")
    for action in (drain, down):
        action.add_argument("--now", action="store_true", help="do not wait: calls are cut, and resume at other cells")
    return parser


def _add_place(parser: argparse.ArgumentParser, *, with_haproxy: bool, waits: bool) -> None:
    parser.add_argument(
        "--address", metavar="HOST:PORT", help="of Ray's head; auto: the one this machine belongs to (default)"
    )
    if with_haproxy:
        parser.add_argument(
            "--haproxy-socket", metavar="PATH", type=Path, help="HAProxy's stats socket on this machine: tell it, too"
        )
        parser.add_argument(
            "--backend", metavar="NAME", default="cells", help="in HAProxy's file (default: cells)"
        )  # fmt: skip
    if waits:
        parser.add_argument(
            "--timeout", metavar="S", type=float, default=600.0, help="seconds to wait for each cell (default: 600)"
        )


def _add_plan(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--file", metavar="FILE", type=Path, help="TOML: see `voxlane cluster --help`")
    parser.add_argument("--cells", metavar="N", type=int, help="how many cells [cells]")
    parser.add_argument("--gpus-per-cell", dest="gpus", metavar="N", type=int, help="GPUs of each cell [gpus]")
    parser.add_argument("--cpus-per-cell", dest="cpus", metavar="N", type=float, help="cores of each cell [cpus]")
    parser.add_argument("--host", metavar="HOST", help="address that cells listen on [host]")
    parser.add_argument("--port", metavar="PORT", type=int, help="port of the first cell [port]")
    parser.add_argument(
        "--agent-port", metavar="PORT", type=int, help="its port for HAProxy's agent-check [agent_port]"
    )
    parser.add_argument("serve", metavar="-- ARGUMENT", nargs="*", help="arguments of `voxlane serve` [serve]")
