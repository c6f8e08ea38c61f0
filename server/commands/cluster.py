"""`voxlane cluster`: start, show, drain, upgrade and stop the cells that Ray runs, and tell HAProxy."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import to_builtins

from voxlane.server.cluster import fleet as ray_fleet
from voxlane.server.cluster import local_ray
from voxlane.server.cluster.facts import CellFacts, table
from voxlane.server.cluster.fleet import Fleet
from voxlane.server.cluster.haproxy import HaproxySocket, server_lines
from voxlane.server.cluster.plan import CellSpec, ClusterPlan, check_known, places, read_plan, specs_of
from voxlane.server.commands.terminal import write_text
from voxlane.server.errors import ConfigError

LOOK_SECONDS = 0.2
"""How often cells are asked while a command waits for them."""

ROOM_SECONDS = 3.0
"""How long a Ray that has just started may take until it tells what its machines have."""

MACHINES_SHOWN = 4
"""How many machines a refusal names."""

SYNC_SECONDS = 1.0
"""How often `sync` looks whether a cell has moved."""

PLAN_KEYS = ("cells", "gpus", "cpus", "host", "port", "agent_port", "serve")


def run_cluster(arguments: argparse.Namespace) -> int:
    """Run one of the actions."""
    ray_fleet.check_installed()
    actions: dict[str, Callable[[argparse.Namespace], None]] = {
        "up": run_up,
        "status": run_status,
        "drain": run_drain,
        "upgrade": run_upgrade,
        "sync": run_sync,
        "down": run_down,
    }
    actions[arguments.action](arguments)
    return 0


# ---- the actions


def run_up(arguments: argparse.Namespace) -> None:
    """Create the cells that are not there, wait until all are ready, and show them."""
    plan, haproxy = _plan(arguments), _haproxy(arguments)
    _tell("looking for Ray")
    fleet = ray_fleet.connect_or_start(arguments.address, cpus=plan.cells * plan.cpus, gpus=plan.cells * plan.gpus)
    with _closing(fleet):
        there, specs = fleet.names(), specs_of(plan, local=fleet.local)
        check_room(fleet, plan, [spec.name for spec in specs], there, wait=arguments.wait_for_machines)
        for spec in specs:
            if spec.name not in there:
                fleet.create(spec)
        cells = wait_ready(fleet, [spec.name for spec in specs], arguments.timeout)
        if haproxy is not None:
            for cell in cells:
                haproxy.join(cell)
        changed = [spec.name for spec in specs if spec.name in there and fleet.spec(spec.name) != spec]
        write_text(sys.stdout, table(fleet.facts()))
        if changed:
            _tell(f"{', '.join(changed)}: runs with other settings; `voxlane cluster upgrade` applies these")


def run_status(arguments: argparse.Namespace) -> None:
    """Show all cells."""
    with _closing(ray_fleet.connect(arguments.address)) as fleet:
        cells = fleet.facts()
    if arguments.json:
        write_text(sys.stdout, json.dumps([{**to_builtins(cell), "address": cell.address} for cell in cells]) + "\n")
    elif arguments.haproxy:
        write_text(sys.stdout, server_lines(cells))
    else:
        write_text(sys.stdout, table(cells))


def run_drain(arguments: argparse.Namespace) -> None:
    """Hand the calls of one cell over, and stop it."""
    with _closing(ray_fleet.connect(arguments.address)) as fleet:
        check_known(arguments.name, fleet.names())
        if arguments.now:
            remove_cell(fleet, arguments.name, _haproxy(arguments))
        else:
            drain_cell(fleet, arguments.name, _haproxy(arguments), arguments.timeout)


def run_upgrade(arguments: argparse.Namespace) -> None:
    """Restart cells one after the other, each when the one before is ready. Those that do not serve come first."""
    plan = _plan(arguments) if _asks_for_plan(arguments) else None
    haproxy = _haproxy(arguments)
    with _closing(ray_fleet.connect(arguments.address)) as fleet:
        names = fleet.names()
        for name in arguments.cell:
            check_known(name, names)
        specs = _specs(fleet, arguments.cell or names, plan)
        cells = sorted(fleet.facts([spec.name for spec in specs]), key=lambda cell: cell.serves)
        for cell in cells:
            spec = next(spec for spec in specs if spec.name == cell.name)
            drain_cell(fleet, cell.name, haproxy, arguments.timeout)
            fleet.create(spec)
            ready = wait_ready(fleet, [cell.name], arguments.timeout)[0]
            if haproxy is not None:
                haproxy.join(ready)
        write_text(sys.stdout, table(fleet.facts()))


def run_sync(arguments: argparse.Namespace) -> None:
    """Tell HAProxy the address of every cell that serves, again whenever it has another: the cell or HAProxy is new."""
    haproxy = _haproxy(arguments)
    if haproxy is None:
        raise ConfigError("which HAProxy? give --haproxy-socket /run/haproxy/admin.sock")
    with _closing(ray_fleet.connect(arguments.address)) as fleet:
        sync_cells(fleet, haproxy)
        said = ""
        while not arguments.once:
            time.sleep(SYNC_SECONDS)
            try:
                sync_cells(fleet, haproxy)
            except ConfigError as error:  # HAProxy is being restarted, or has another file
                if said != str(error):
                    _tell(str(error))
                said = str(error)
            else:
                said = ""


def run_down(arguments: argparse.Namespace) -> None:
    """Drain and stop all cells, then the Ray that `up` has started."""
    haproxy = _haproxy(arguments)
    with _closing(ray_fleet.connect(arguments.address)) as fleet:
        names, local = fleet.names(), fleet.local
        if arguments.now:
            for name in names:
                remove_cell(fleet, name, haproxy)
        else:
            drain_cells(fleet, names, haproxy, arguments.timeout)
    ours = local_ray.find()
    if local and ours is not None:
        local_ray.stop(ours)
        _tell("Ray is stopped")


# ---- steps


def check_room(fleet: Fleet, plan: ClusterPlan, names: Sequence[str], there: Sequence[str], *, wait: bool) -> None:
    """Raise ConfigError at once if Ray's machines have no room for all cells; with `wait`, tell it and go on."""
    needed = len(set(names) - set(there)) + len(set(names) & fleet.unplaced())
    deadline = time.monotonic() + ROOM_SECONDS
    while needed > places(list((free := fleet.free_by_machine()).values()), cpus=plan.cpus, gpus=plan.gpus):
        if time.monotonic() > deadline:
            short = why_short(plan, needed, free, local=fleet.local)
            if not wait:
                raise ConfigError(short)
            _tell(f"{short}; waiting for more machines")
            return
        time.sleep(LOOK_SECONDS)


def why_short(plan: ClusterPlan, needed: int, free: dict[str, dict[str, float]], *, local: bool) -> str:
    """Return one sentence about what Ray lacks for the cells of a plan, and what to do."""
    room = places(list(free.values()), cpus=plan.cpus, gpus=plan.gpus)
    each = f"{plan.cpus:g} cores" + (f" and {plan.gpus} GPUs" if plan.gpus else "")
    machines = [f"{name}: {one['CPU']:g} cores, {one['GPU']:g} GPUs" for name, one in free.items()]
    shown = "; ".join(machines[:MACHINES_SHOWN]) + (
        f"; {more} more" if (more := len(machines) - MACHINES_SHOWN) > 0 else ""
    )
    advice = (
        "`voxlane cluster down` and `up` start a Ray with more" if local else "add a machine (`ray start --address …`)"
    )
    return (
        f"no room for {needed - room} of {needed} cells that need {each} each (free: {shown or 'no machine'}); "
        f"{advice}, or lower --cells or --cpus-per-cell"
    )


def wait_ready(fleet: Fleet, names: Sequence[str], timeout_s: float) -> list[CellFacts]:
    """Wait until cells serve, and tell how far they are; raise ConfigError if one stops or is late."""
    deadline, shown = time.monotonic() + timeout_s, dict[str, str]()
    while True:
        cells = fleet.facts(names)
        for cell in cells:
            _show(cell, shown)
        late = [cell for cell in cells if not cell.serves]
        if not late:
            return cells
        for cell in late:
            if cell.state == "stopped":
                raise ConfigError(f"{cell.name} has stopped{f': {cell.reason}' if cell.reason else ''}")
        if time.monotonic() > deadline:
            raise ConfigError(why_late(late[0], fleet.free(), timeout_s))
        time.sleep(LOOK_SECONDS)


def why_late(cell: CellFacts, free: dict[str, float], timeout_s: float) -> str:
    """Return one sentence about a cell that is not ready in time."""
    if cell.state == "no answer":
        rest = f"Ray has {free['CPU']:g} cores and {free['GPU']:g} GPUs left"
        return f"{cell.name} has no machine after {timeout_s:g} s: {rest}"
    why = f": {cell.reason}" if cell.reason else ""
    log = f" (log on {cell.node}: {cell.log})" if cell.log else ""
    return f"{cell.name} is not ready after {timeout_s:g} s, but {cell.state}{why}{log}"


def sync_cells(fleet: Fleet, haproxy: HaproxySocket) -> None:
    """Tell HAProxy once where the cells are, if it does not know."""
    for cell in haproxy.sync(fleet.facts()):
        _tell(f"{cell.name} is at {cell.address}")


def drain_cell(fleet: Fleet, name: str, haproxy: HaproxySocket | None, timeout_s: float) -> None:
    """Let one cell hand its calls over, wait for its end, and have Ray forget it."""
    drain_cells(fleet, [name], haproxy, timeout_s)


def drain_cells(fleet: Fleet, names: Sequence[str], haproxy: HaproxySocket | None, timeout_s: float) -> None:
    """Do so with several at once. An actor that is restarted meanwhile is asked again."""
    deadline, left, shown = time.monotonic() + timeout_s, list(names), dict[str, str]()
    told: set[str] = set()  # cells that HAProxy sends nothing new to: only those that have taken the question
    while left:
        for cell in fleet.facts(left):
            _show(cell, shown)
            if cell.state == "stopped":
                remove_cell(fleet, cell.name, haproxy)
                left.remove(cell.name)
            elif cell.state == "draining":
                if haproxy is not None and cell.name not in told:
                    haproxy.drain(cell.name)
                told.add(cell.name)
            elif cell.answers:  # one that does not may have calls, and is not killed
                fleet.drain(cell.name)
        if left and time.monotonic() > deadline:
            raise ConfigError(
                f"{left[0]} has not ended after {timeout_s:g} s: the same command waits on, `voxlane cluster drain"
                f" {left[0]} --now` cuts its calls"
            )
        if left:
            time.sleep(LOOK_SECONDS)


def remove_cell(fleet: Fleet, name: str, haproxy: HaproxySocket | None) -> None:
    """Have Ray forget a cell, and HAProxy send nothing to it."""
    if haproxy is not None:
        haproxy.leave(name)
    fleet.remove(name)


def _specs(fleet: Fleet, names: Sequence[str], plan: ClusterPlan | None) -> list[CellSpec]:
    """Return what cells are made from: a new plan, else what each was made from before."""
    if plan is None:
        return [fleet.spec(name) for name in names]
    planned = {spec.name: spec for spec in specs_of(plan, local=fleet.local)}
    for name in names:
        if name not in planned:
            raise ConfigError(f"{name} is not in the plan of {plan.cells} cells: drain it first, or plan more")
    return [planned[name] for name in names]


def _plan(arguments: argparse.Namespace) -> ClusterPlan:
    given = {key: getattr(arguments, key) for key in PLAN_KEYS if getattr(arguments, key) not in (None, [])}
    return read_plan(arguments.file, given)


def _asks_for_plan(arguments: argparse.Namespace) -> bool:
    return arguments.file is not None or any(getattr(arguments, key) not in (None, []) for key in PLAN_KEYS)


def _haproxy(arguments: argparse.Namespace) -> HaproxySocket | None:
    path: Path | None = arguments.haproxy_socket
    return HaproxySocket(path, arguments.backend) if path is not None else None


@contextmanager
def _closing(fleet: Fleet) -> Iterator[Fleet]:
    try:
        yield fleet
    finally:
        fleet.close()


def _show(cell: CellFacts, shown: dict[str, str]) -> None:
    """Tell of a cell whose state has changed."""
    place = f" at {cell.address}" if cell.serves else f" on {cell.node}" if cell.node else ""
    why = f": {cell.reason}" if cell.reason and not cell.serves else ""
    told = f"{cell.name} {cell.state}{place}{why}"
    if shown.get(cell.name) != told:
        shown[cell.name] = told
        _tell(told)


def _tell(text: str) -> None:
    write_text(sys.stderr, f"{text}\n")
