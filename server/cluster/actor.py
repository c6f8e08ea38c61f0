"""The Ray actor that owns one cell. Ray starts it where there is room, and again when it, or its machine, is lost.

What goes to it and comes back are texts, numbers, lists and dicts of them. Ray pickles its own calls.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any

from voxlane.server import log
from voxlane.server.cluster.keeper import WILDCARDS, CellKeeper
from voxlane.server.cluster.plan import AUTO_HOST, spec_of

logger = logging.getLogger(__name__)


class CellActor:
    """Owns one cell: the cell's process is a child of the actor's, and ends with it."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        import ray

        log.set_up("info")
        self._spec = dict(spec)
        cell = spec_of(spec)
        address_of_node: Callable[[], str] = ray.util.get_node_ip_address  # Ray does not say its type
        node = address_of_node()
        host = node if cell.host == AUTO_HOST else cell.host
        gpus = [str(gpu) for gpu in ray.get_gpu_ids()] if cell.gpus else []
        self._keeper = CellKeeper(cell, host, gpus, address=node if host in WILDCARDS else host)
        self._keeper.start()
        logger.info(log.line("cell kept", cell=cell.name, gpus=len(gpus)))

    def facts(self) -> dict[str, Any]:
        """Return what is known of the cell."""
        return {**self._keeper.facts(), "node": socket.gethostname(), "actor_pid": os.getpid()}

    def spec(self) -> dict[str, Any]:
        """Return what the cell was made from."""
        return self._spec

    def drain(self) -> None:
        """Let the cell hand its conversations over and end. Can be asked again."""
        self._keeper.drain()
