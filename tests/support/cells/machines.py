"""Network namespaces as machines: each has a cable to one router, which a test can pull out, or block for two of them.

The process that tests becomes one of the machines, so that the network of the machine it runs on stays as it is.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_NEW_NETWORK = 0x40000000  # CLONE_NEWNET
_NUMBERS = itertools.count()


@dataclass(frozen=True, slots=True)
class Machine:
    """A place for processes: an address, and what stands before a command that runs there."""

    host: str
    inside: tuple[str, ...] = ()


def missing_networks() -> str:
    """Return why this machine can have no network namespaces, "" if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "this machine has no ip: install the package iproute2"
    probe = f"vx{os.getpid()}probe"
    try:
        _ip("netns", "add", probe)
        _ip("netns", "del", probe)
    except subprocess.CalledProcessError as error:
        return f"no network namespaces here: {error.stderr.strip()}"
    return ""


class Network:
    """A router and the machines at its ports."""

    def __init__(self) -> None:
        self._prefix = f"vx{os.getpid()}n{next(_NUMBERS)}"
        self._router = f"{self._prefix}router"
        self._names: list[str] = []
        self._ports: dict[str, str] = {}  # by address
        self._add(self._router)
        _ip("netns", "exec", self._router, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")

    def machine(self, name: str) -> Machine:
        """Add a machine."""
        number = len(self._ports) + 1
        space, port, host = f"{self._prefix}{name}", f"port{number}", f"10.77.{number}.2"
        self._add(space)
        _ip("link", "add", "eth0", "netns", space, "type", "veth", "peer", "name", port, "netns", self._router)
        for place, device, address in ((self._router, port, f"10.77.{number}.1"), (space, "eth0", host)):
            _ip("-n", place, "address", "add", f"{address}/30", "dev", device)
            _ip("-n", place, "link", "set", device, "up")
        _ip("-n", space, "route", "add", "default", "via", f"10.77.{number}.1")
        self._ports[host] = port
        return Machine(host, ("ip", "netns", "exec", space))

    def pull(self, machine: Machine) -> None:
        """Pull its cable out: it loses its carrier, and what is sent to it is lost without an answer."""
        _ip("-n", self._router, "rule", "add", "to", machine.host, "blackhole")
        _ip("-n", self._router, "link", "set", self._ports[machine.host], "down")

    def plug(self, machine: Machine) -> None:
        """Put its cable back."""
        _ip("-n", self._router, "link", "set", self._ports[machine.host], "up")
        _ip("-n", self._router, "rule", "del", "to", machine.host, "blackhole")

    def block(self, sender: Machine, receiver: Machine) -> None:
        """Lose what one machine sends to another; the other way stays open."""
        self._rule("add", sender, receiver)

    def unblock(self, sender: Machine, receiver: Machine) -> None:
        """Let it through again."""
        self._rule("del", sender, receiver)

    def _rule(self, what: Literal["add", "del"], sender: Machine, receiver: Machine) -> None:
        _ip("-n", self._router, "rule", what, "from", sender.host, "to", receiver.host, "blackhole")

    @contextmanager
    def joined(self, machine: Machine) -> Iterator[None]:
        """Be on a machine: what this thread opens, and the threads that it starts, is there."""
        own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            _enter(Path("/run/netns", machine.inside[-1]))
            yield
        finally:
            _set(own)
            os.close(own)

    def end(self) -> None:
        """Take everything down."""
        for name in self._names:
            _ip("netns", "del", name)

    def _add(self, name: str) -> None:
        _ip("netns", "add", name)
        self._names.append(name)
        _ip("-n", name, "link", "set", "lo", "up")


def _ip(*arguments: str) -> None:
    subprocess.run(("ip", *arguments), check=True, capture_output=True, text=True)


def _enter(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        _set(descriptor)
    finally:
        os.close(descriptor)


def _set(descriptor: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.setns(descriptor, _NEW_NETWORK):
        raise OSError(ctypes.get_errno(), "setns")
