"""`voxlane models recommend`: which models to pull on this machine, as a table for a person or as JSON.

A child process measures the machine and judges the models, as for `voxlane doctor`; this module prints.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from voxlane.server.errors import ConfigError, EngineStartFailed

RECOMMEND_COMMAND = (sys.executable, "-m", "voxlane.engine.build.recommend")

JOBS = {"chat": "--model", "listening": "--asr-model", "voice": "--tts-model", "speech-to-speech": "--speech-model"}
"""The jobs in the order of the table, and the option of `voxlane serve` that names the model for each."""

HEADS = ("", "JOB", "MODEL", "DOWNLOAD", "MEMORY", "SPEED", "LICENCE", "HERE", "")

INSTEAD = "speech-to-speech"
"""The job of a model that is served instead of a chat model and a voice, so never without being asked for."""

NONE_YET = "none for this machine. The three models above make a conversation."

Report = dict[str, Any]  # what the child writes: machine, models; or error


def run_recommend(device: str, *, as_json: bool = False, command: Sequence[str] = RECOMMEND_COMMAND) -> int:
    """Print what suits this machine; raise ConfigError for a device that it does not have."""
    told = _ask([*command, "--device", device])
    pull, serve = _pull_commands(told["models"]), _serve_command(told["models"])
    if as_json:
        print(json.dumps({**told, "pull": pull, "serve": serve}, indent=1))
        return 0
    print(_machine(told["machine"]) + "\n")
    print("\n".join(_table(told["models"])) + "\n")
    print("\n".join(_how(told["machine"])) + "\n")
    print("\n".join(["To fetch and serve the models marked *:", *(f"  {line}" for line in (*pull, serve))]) + "\n")
    print("\n".join(_others(told["models"])))
    return 0


def _ask(command: Sequence[str]) -> Report:
    """Return the child's report, or raise an error of one line that says what to do."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    try:
        told: Report = json.loads(done.stdout)
    except ValueError:
        lines = done.stderr.decode("utf-8", "replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
        reason = f"this machine could not be measured (status {done.returncode}: {last[:300]})"
        raise EngineStartFailed(f"{reason}; `voxlane doctor` shows what is wrong with it") from None
    if "error" in told:
        raise ConfigError(f"{told['error']}; leave --device out, or say --device cpu")
    return told


def _machine(machine: Report) -> str:
    cores = f"{machine['cores']} core{'s' if machine['cores'] != 1 else ''}"
    free = f"{_gigabytes(machine['free_bytes'])} free"
    if machine["device"] == "cuda":
        return f"This machine: {machine['name']} with {free}, {cores}."
    return f"This machine: {cores} ({machine['name']}) without a GPU, {free}."


def _table(models: Sequence[Report]) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [HEADS]
    for job in JOBS:
        offered = [model for model in models if model["job"] == job]
        rows += [_row(model) for model in offered] or [("", job, NONE_YET, *[""] * 6)]
    widths = [max(len(row[column]) for row in rows if row[2] != NONE_YET) for column in range(len(HEADS))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _row(model: Report) -> tuple[str, ...]:
    return (
        "*" if model["recommended"] else "",
        model["job"],
        model["name"].partition("#")[0],
        "none" if model["packaged"] else _gigabytes(model["size"]),
        _gigabytes(model["memory_bytes"]),
        _speed(model),
        model["licence"],
        "yes" if model["here"] else "no",
        " ".join(_remarks(model)),
    )


def _speed(model: Report) -> str:
    if not model["speed"]:
        return "unknown"
    if model["job"] in ("chat", "speech-to-speech"):
        return f"{model['speed']:.0f} {model['unit']}"
    return f"{model['speed']:.1f} s" if model["speed"] >= 1 else f"{model['speed'] * 1e3:.0f} ms"


def _remarks(model: Report) -> Iterator[str]:
    if not model["fits"]:
        yield "Too large."
    if not model["quick"]:
        yield "Too slow to talk to."
    if model["gated"]:
        yield "Gated."
    if model["pinned"]:
        yield "sha256."
    yield model["note"]


def _how(machine: Report) -> Iterator[str]:
    yield "SPEED is for one conversation: tokens that a chat model writes a second, the time until a turn of 3 s is"
    yield "understood, the time until the first sound of ten words."
    if machine["device"] == "cuda":
        speed = f"{machine['copy_s'] / 1e9:,.0f} GB/s"
        yield f"It is estimated from the {speed} that this GPU was measured to copy just now, and from what"
        yield "an H200 was measured to do (docs/measured.md)."
    else:
        speed = f"{machine['weights_s'] / 1e9:.3g} billion packed 4-bit weights a second"
        yield f"It is estimated from the {speed} that this machine was"
        yield "measured to multiply, and from what two cores of a Neoverse-N1 were measured to do (docs/measured.md)."
    yield "MEMORY is that of the weights; caches come on top. Models marked sha256 are pinned by a hash, and were run"
    yield "by us with these weights. Of the others the sizes are rounded and no revision is pinned; their architectures"
    yield "were compared with their publishers' code. Gated: accept the terms on the model's page and run"
    yield "`hf auth login`."


def _others(models: Sequence[Report]) -> Iterator[str]:
    yield "Another model: `voxlane models pull MODEL`, then `voxlane serve` with it after --model, --asr-model,"
    files = [f"  {model['name']}" for model in models if "#" in model["name"]]
    yield "--tts-model or --speech-model." + (" Names that end in a file, in full:" if files else "")
    yield from files
    if speech := [model["name"] for model in models if model["job"] == INSTEAD and model["recommended"]]:
        yield "Speech answered with speech, instead of a chat model and a voice:"
        yield f"  voxlane serve --speech-model {speech[0]}"


def _pull_commands(models: Sequence[Report]) -> list[str]:
    return [
        f"voxlane models pull {shlex.quote(model['name'])}"
        for model in models
        if _served(model) and not model["packaged"] and not model["here"]
    ]


def _served(model: Report) -> bool:
    return bool(model["recommended"]) and model["job"] != INSTEAD


def _serve_command(models: Sequence[Report]) -> str:
    chosen = [model for model in models if _served(model)]
    return " ".join(["voxlane serve", *(f"{JOBS[model['job']]} {shlex.quote(model['name'])}" for model in chosen)])


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
