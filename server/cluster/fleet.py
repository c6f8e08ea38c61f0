"""The cells as Ray knows them: detached actors with names. All that is said to Ray is said here."""

from __future__ import annotations

import importlib.util
import logging
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from voxlane.codecs.extras import install_command
from voxlane.server.cluster import local_ray
from voxlane.server.cluster.actor import CellActor
from voxlane.server.cluster.facts import CellFacts, facts_of_cell
from voxlane.server.cluster.plan import CellSpec, in_order, spec_of
from voxlane.server.errors import ConfigError

NAMESPACE = "voxlane"

ANSWER_SECONDS = 10.0
"""Time for an actor's answer. It has it at hand, but its machine may be busy."""

HEAD_SECONDS = 3.0
"""Time for Ray's head to accept a connection."""

AUTO_ADDRESS = "auto"

UNPLACED = ("DEPENDENCIES_UNREADY", "PENDING_CREATION", "RESTARTING")
"""Ray's states of an actor that has no process."""

FORGET_SECONDS = 60.0
"""Time for Ray to free the name of an actor that was removed."""


class Fleet:
    """The cells of one Ray cluster, while its context lasts."""

    def __init__(self, ray: Any, *, local: bool) -> None:
        self._ray = ray
        self.local = local  # it was started by `voxlane cluster up`, on this machine

    def close(self) -> None:
        """Leave Ray; the cells stay."""
        self._ray.shutdown()

    def names(self) -> list[str]:
        """Return the names of all cells."""
        return in_order(self._ray.util.list_named_actors())

    def create(self, spec: CellSpec) -> None:
        """Have Ray start a cell where there is room for it, and again whenever it is lost."""
        actor = self._ray.remote(CellActor).options(
            name=spec.name,
            lifetime="detached",
            max_restarts=-1,
            num_cpus=spec.cpus,
            num_gpus=spec.gpus,
            scheduling_strategy="SPREAD",
        )
        actor.remote(spec.as_dict())

    def facts(self, names: Sequence[str] | None = None) -> list[CellFacts]:
        """Return what is known of cells, of all without names."""
        names = self.names() if names is None else names
        asked = [(name, self._call(name, "facts")) for name in names]
        deadline = time.monotonic() + ANSWER_SECONDS
        return [self._told(name, answer, max(0.0, deadline - time.monotonic())) for name, answer in asked]

    def spec(self, name: str) -> CellSpec:
        """Return what a cell was made from."""
        return spec_of(self._answer(name, "spec"))

    def drain(self, name: str) -> None:
        """Ask a cell to hand its conversations over and end. Its state tells whether the question has arrived."""
        self._call(name, "drain")

    def remove(self, name: str) -> None:
        """Have Ray forget a cell; one that still runs is killed."""
        try:
            self._ray.kill(self._ray.get_actor(name), no_restart=True)
        except ValueError:  # it is gone already
            return
        deadline = time.monotonic() + FORGET_SECONDS
        while name in self._ray.util.list_named_actors() and time.monotonic() < deadline:
            time.sleep(0.05)

    def free(self) -> dict[str, float]:
        """Return the resources that no cell has taken."""
        free = self._ray.available_resources()
        return {kind: float(free.get(kind, 0.0)) for kind in ("CPU", "GPU")}

    def free_by_machine(self) -> dict[str, dict[str, float]]:
        """Return the resources that no cell has taken of each machine, by its address in Ray."""
        free = self._ray._private.state.available_resources_per_node()
        alive = [node for node in self._ray.nodes() if node["Alive"]]
        return {
            f"{node['NodeManagerAddress']} ({node['NodeID'][:6]})": {
                kind: float(free.get(node["NodeID"], {}).get(kind, 0.0)) for kind in ("CPU", "GPU")
            }
            for node in alive
        }

    def unplaced(self) -> set[str]:
        """Return the names of the cells that wait for a machine."""
        table = self._ray._private.state.actors().values()
        return {actor["Name"] for actor in table if actor["State"] in UNPLACED} & set(self.names())

    def _call(self, name: str, method: str) -> Any:
        try:
            return getattr(self._ray.get_actor(name), method).remote()
        except ValueError:  # it was removed meanwhile
            return None

    def _told(self, name: str, answer: Any, seconds: float) -> CellFacts:
        errors = self._ray.exceptions
        if answer is None:
            return CellFacts(name, "stopped")
        try:
            return facts_of_cell(self._ray.get(answer, timeout=seconds))
        except errors.GetTimeoutError:
            return CellFacts(name, "no answer")
        except errors.ActorDiedError:  # for good: one that is lost is restarted without end
            return CellFacts(name, "stopped", reason="its actor cannot run: is voxlane installed on every machine?")
        except errors.RayActorError:
            return CellFacts(name, "restarting")

    def _answer(self, name: str, method: str) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(self._call(name, method), timeout=ANSWER_SECONDS)
        except (errors.GetTimeoutError, errors.RayActorError) as error:
            raise ConfigError(
                f"{name} does not answer: no machine has room for it, or its machine is lost; see `voxlane cluster"
                " status`"
            ) from error


def check_installed() -> None:
    """Raise ConfigError if Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(f"this needs Ray, which is not installed: {install_command('cluster')}")


def connect(address: str | None) -> Fleet:
    """Return the fleet of a Ray cluster that runs; without an address, of the one that is found on this machine."""
    check_installed()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ours = local_ray.find()
    local = ours is not None and address in (None, AUTO_ADDRESS, ours.address)
    if ours is not None and local:
        os.environ.update(local_ray.environment())
        address = ours.address
    found = find_head(address)
    if not found or not _answers(found):
        where = f"at {address}" if address not in (None, AUTO_ADDRESS) else "on this machine"
        raise ConfigError(
            f"no Ray cluster was found {where}: `voxlane cluster up` starts one for this machine, `ray start` one for"
            " several"
        )
    return Fleet(_joined_ray(found), local=local)


def _joined_ray(address: str) -> Any:
    """Return the module `ray`, connected. Only here and in actor.py is it imported."""
    import ray

    logging.getLogger("ray").setLevel(logging.CRITICAL)  # its own words about what we say in one sentence
    quiet: dict[str, Any] = {"log_to_driver": False, "configure_logging": False, "logging_level": logging.CRITICAL}
    try:
        ray.init(address=address, namespace=NAMESPACE, **quiet)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        raise ConfigError(
            f"the Ray cluster at {address} cannot be joined from this machine: it must belong to the cluster (`ray"
            " start`), and have its token where it asks for one (RAY_AUTH_MODE, RAY_AUTH_TOKEN_PATH)"
        ) from error
    return ray


def connect_or_start(address: str | None, *, cpus: float, gpus: int) -> Fleet:
    """Return the fleet of the Ray cluster that runs; without an address, start one here if none is found."""
    check_installed()
    if address is None and local_ray.find() is None:
        found = find_head(None)
        if not found or not _answers(found):
            local_ray.start(cpus=cpus, gpus=gpus)
    return connect(address)


def find_head(address: str | None) -> str:
    """Return the address of Ray's head: as given, else as Ray has noted it on this machine; "" if there is none.

    Ray looks there too. It is not asked: it waits without end for a head that has died.
    """
    if address not in (None, AUTO_ADDRESS):
        return str(address)
    if os.environ.get("RAY_ADDRESS"):
        return os.environ["RAY_ADDRESS"]
    try:
        return (Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray" / "ray_current_cluster").read_text().strip()
    except OSError:
        return ""


def _answers(address: str) -> bool:
    """Return whether a head listens at an address."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), HEAD_SECONDS):
            return True
    except (OSError, ValueError):
        return False
