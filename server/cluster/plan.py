"""What `voxlane cluster up` starts: the cells, what each of them needs, and the command that runs one."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct, json, structs

from voxlane.server.errors import ConfigError
from voxlane.server.log import quote
from voxlane.server.validation import InvalidValue, checked

AUTO_HOST = "auto"

Port = Annotated[int, Meta(ge=0, le=65535)]


class ClusterPlan(Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of a cluster's TOML file. Paths and programs are those of the machine that a cell runs on."""

    cells: Annotated[int, Meta(ge=1, le=1000)] = 1
    name: Annotated[str, Meta(pattern="^[A-Za-z][A-Za-z0-9_-]{0,31}$", extra={"rule": "must be a short name"})] = "cell"
    gpus: Annotated[int, Meta(ge=0, le=64)] = 0  # of each cell: an engine on each
    cpus: Annotated[float, Meta(ge=0, le=1024)] = 1  # of each cell, as Ray counts them when it chooses a machine
    host: Annotated[str, Meta(min_length=1)] = AUTO_HOST  # "auto": the machine's address in Ray
    port: Port = 8000  # of the first cell; the next has the next one, so that two may share a machine. 0: any free one
    agent_port: Port = 9100  # the same for HAProxy's agent-check
    config: str = ""  # the file of `voxlane serve --config`
    serve: tuple[str, ...] = ()  # further arguments of `voxlane serve`
    program: tuple[str, ...] = ()  # the command `voxlane`; empty: that of the Python which runs Ray there


class CellSpec(Struct, frozen=True):
    """One cell of a plan. Ray carries it as a dict of texts and numbers."""

    name: str
    host: str
    port: int
    agent_port: int
    gpus: int
    cpus: float
    config: str
    serve: tuple[str, ...]
    program: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return dict(json.decode(json.encode(self)))


def read_plan(path: Path | None, overrides: Mapping[str, object]) -> ClusterPlan:
    """Return the plan of a file, all defaults without one, with `overrides`; raise ConfigError if it is wrong."""
    values: dict[str, Any] = {}
    if path is not None:
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} is no TOML file: {error}") from error
    try:
        plan = checked(ClusterPlan, {**values, **overrides})
    except InvalidValue as error:
        known = ", ".join(structs.asdict(ClusterPlan()))
        place = f"{path}: " if path is not None and error.path not in overrides else ""
        more = f"; there are {known}" if error.kind == "unknown" else ""
        raise ConfigError(f"{place}{error}{more}") from error
    for key, first in (("port", plan.port), ("agent_port", plan.agent_port)):
        if first and first + plan.cells - 1 > 65535:
            raise ConfigError(f"{key}: {first} leaves no ports for {plan.cells} cells")
    return plan


def specs_of(plan: ClusterPlan, *, local: bool = False) -> list[CellSpec]:
    """Return the cells of a plan. With `local`, Ray runs on this machine alone, and so are its cells reached."""
    host = "127.0.0.1" if local and plan.host == AUTO_HOST else plan.host
    return [
        CellSpec(
            f"{plan.name}{number + 1}",
            host,
            plan.port + number if plan.port else 0,
            plan.agent_port + number if plan.agent_port else 0,
            plan.gpus,
            plan.cpus,
            plan.config,
            plan.serve,
            plan.program,
        )
        for number in range(plan.cells)
    ]


def spec_of(values: Mapping[str, Any]) -> CellSpec:
    """Return a cell's spec that was carried as plain values."""
    return checked(CellSpec, dict(values))


def serve_command(spec: CellSpec, host: str, port: int, agent_port: int, gpus: Sequence[str]) -> list[str]:
    """Return the command that serves as this cell. What the cluster decides comes last, and so holds."""
    program = spec.program or (sys.executable, "-m", "voxlane.server.cli")
    file = ("--config", spec.config) if spec.config else ()
    place = ("--host", host, "--port", str(port), "--at", spec.name, "--agent-check", joined(host, agent_port))
    devices = ("--gpus", ",".join(gpus)) if gpus else ()
    return [*program, "serve", *file, *spec.serve, *place, *devices]


def joined(host: str, port: int) -> str:
    """Return an address with its port."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def places(free: Sequence[Mapping[str, float]], *, cpus: float, gpus: int) -> int:
    """Return how many cells find a machine; `free` has the free resources of each."""
    wanted = {kind: float(amount) for kind, amount in (("CPU", cpus), ("GPU", gpus)) if amount}
    if not wanted:
        return sys.maxsize if free else 0
    # Ray counts in parts of 10,000, and a third of a core three times is less than one.
    return sum(min(int((one.get(kind, 0.0) + 1e-4) / amount) for kind, amount in wanted.items()) for one in free)


def in_order(names: Sequence[str]) -> list[str]:
    """Return names of cells as a person counts: cell2 before cell10."""
    return sorted(names, key=lambda name: (name.rstrip("0123456789"), len(name), name))


def check_known(name: str, names: Sequence[str]) -> None:
    """Raise ConfigError if there is no cell of this name."""
    if name not in names:
        there = (
            f"there are {', '.join(in_order(names))}" if names else "there are none: see `voxlane cluster up --help`"
        )
        raise ConfigError(f"there is no cell {quote(name)}; {there}")
