"""A loaded engine that serves nothing: it is kept so that a lost engine is replaced within a fraction of a second.

The process that has loaded the models stays as the template. The engine that serves is its fork, and so is the next
one, when the server asks for it. A fork shares all memory that neither side writes: weights are never written, so an
engine and its template take little more than an engine alone.

The pages of the chat model's KV cache are shared for writing: a fork finds the blocks that the last one has filled, and
need not read every conversation from its beginning.

Only a process without other threads can be forked, so `can_fork` looks for them. The thread pools that remain are of
libraries that start new ones in the child: our kernels' and OpenBLAS'.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable

import torch

from voxlane.engine.api import EngineConfig, Forked, encode_forked
from voxlane.engine.build.assemble import Assembly
from voxlane.engine.kernels import native

log = logging.getLogger(__name__)

SHORT_LIFE_S = 10.0
"""An engine that was lost sooner leaves nothing to the next one: what it has kept may be the reason."""

END_S = 3.0
"""How long an engine may take to end after its server has gone, before it is killed."""


def can_fork(config: EngineConfig, assembly: Assembly) -> bool:
    """Rest the parts of an engine; return whether its process can now be forked. If not, the log says why."""
    if not config.standby:
        return False
    if assembly.on_device or config.trace:  # a device's state and an open trace belong to one process
        return False
    if native.load() is None or torch.get_num_threads() > 1:
        log.warning("standby=off reason=threads of torch do not survive a fork")
        return False
    assembly.rest()
    if threading.active_count() > 1:
        log.warning("standby=off reason=%d threads beside the steps", threading.active_count() - 1)
        assembly.wake()
        return False
    return True


def fork_engines(control: socket.socket, link: socket.socket, forget: Callable[[], None]) -> socket.socket | None:
    """Fork an engine for this link, and another for each that the server sends.

    Return the link in each engine, and None in the template when the server has gone. `forget` drops what an engine
    leaves to the next.
    """
    current: socket.socket | None = link
    while current is not None:
        forked_s = time.monotonic()
        pid = os.fork()
        if pid == 0:
            control.send(encode_forked(Forked(os.getpid())))
            control.close()
            return current
        current.close()
        current, code, ended_s = _next_link(control, pid)
        # An engine that failed by itself may have left anything: only one that was killed or told to end is trusted.
        if code not in (0, -signal.SIGKILL) or ended_s - forked_s < SHORT_LIFE_S:
            forget()
    return None


def _next_link(control: socket.socket, pid: int) -> tuple[socket.socket | None, int, float]:
    """Wait until the server sends a link for the next engine; None if the server has gone. Then `pid` has ended.

    Return the exit code of `pid` and the time of its end as well.
    """
    exited = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(exited, select.POLLIN)
    running, code, ended_s = True, 0, 0.0
    try:
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if exited in ready and running:
                running = False
                poll.unregister(exited)
                code, ended_s = _reap(pid), time.monotonic()
            if control.fileno() in ready:
                link = _receive(control)
                if running:
                    ended_s = time.monotonic()
                    code = _end(pid, exited, 0.0 if link is not None else END_S)
                return link, code, ended_s
    finally:
        os.close(exited)


def _receive(control: socket.socket) -> socket.socket | None:
    try:
        packet, descriptors, _, _ = socket.recv_fds(control, 1, 1)
    except OSError:
        return None
    return socket.socket(fileno=descriptors[0]) if packet and descriptors else None


def _end(pid: int, exited: int, patience_s: float) -> int:
    """Wait for an engine's end, and kill it when it takes too long; return its exit code."""
    poll = select.poll()
    poll.register(exited, select.POLLIN)
    deadline_s = time.monotonic() + patience_s
    if not poll.poll(max(0.0, deadline_s - time.monotonic()) * 1e3):
        os.kill(pid, signal.SIGKILL)  # not reaped yet, so the number is still its own
    return _reap(pid)


def _reap(pid: int) -> int:
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code:
        log.warning("engine ended pid=%d status=%d", pid, code)
    return code
