"""`voxlane models list | pull | path | rm`: the store's functions on a terminal.

It renders; what the words mean is store.py's.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from tqdm import tqdm

from voxlane.engine.weights import store
from voxlane.engine.weights.errors import ModelError

_BAR = "{desc} {percentage:3.0f}% |{bar}| {elapsed}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the four actions to the parser of `voxlane models`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser("list", help="show the models that can be pulled by name")
    for action, meaning in (
        ("pull", "fetch a model into the cache"),
        ("path", "print where a pulled model lies"),
        ("rm", "remove a model from the cache"),
    ):
        parser = actions.add_parser(action, help=meaning)
        parser.add_argument("name", metavar="NAME", help="a name from the list, or hf:OWNER/REPO[@REVISION][#FILE]")


def run(arguments: argparse.Namespace) -> int:
    """Do what the arguments ask and return the exit code."""
    try:
        match arguments.action:
            case "list":
                print(_table(store.list_models()))
            case "pull":
                print(_pull(arguments.name))
            case "path":
                print(store.path(arguments.name))
            case "rm":
                store.remove(arguments.name)
    except ModelError as error:
        print(f"voxlane: {error}", file=sys.stderr)
        return 1
    return 0


def _pull(name: str) -> str:
    terminal = sys.stderr.isatty()
    # Said here, because on a terminal that does not know its size (a container's, a serial line's) tqdm shows nothing.
    columns = (os.get_terminal_size(sys.stderr.fileno()).columns if terminal else 0) or 80
    with tqdm(
        desc=name,
        total=1.0,
        bar_format=_BAR,
        ncols=columns - 1,
        nrows=24,
        miniters=0,  # else the size of one step is the least for the next, which hides a line that gets slow
        disable=not terminal,
        leave=False,
    ) as bar:

        def show(done: float) -> None:
            bar.update(max(0.0, done - bar.n))

        return str(store.pull(name, show))


def _table(listings: Sequence[store.Listing]) -> str:
    rows = [("NAME", "TASK", "SIZE", "LICENCE", "PULLED")]
    for listing in listings:
        model = listing.model
        size = f"{model.size / 1e6:.0f} MB"
        rows.append((model.name, model.task, size, model.licence, "yes" if listing.path else "no"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
