"""The engine's end of the socket, on descriptors a busy server hands it."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator

import pytest

from voxlane.engine.api import Assembler, Cancel, Loading, encode, fragments
from voxlane.engine.process import Link

HIGH_DESCRIPTOR = 1500
"""Beyond the 1,024 that select can name."""


@pytest.fixture
def high_descriptors(no_leaks: None) -> Iterator[None]:
    """Let this process open descriptors up to HIGH_DESCRIPTOR."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard <= HIGH_DESCRIPTOR:
        pytest.skip(f"this process may open {hard} files at most")
    if soft != resource.RLIM_INFINITY and soft <= HIGH_DESCRIPTOR:
        resource.setrlimit(resource.RLIMIT_NOFILE, (HIGH_DESCRIPTOR + 1, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("high_descriptors")
def test_it_waits_and_talks_on_a_descriptor_beyond_selects():
    server, child = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    os.dup2(child.fileno(), HIGH_DESCRIPTOR)
    child.close()
    with server, socket.socket(fileno=HIGH_DESCRIPTOR) as high:
        link = Link(high)
        for packet in fragments(encode(Cancel("r"))):
            server.send(packet)
        assert link.receive(wait=True) == [Cancel("r")]
        link.send([Loading("reading", 0.5)])
        assert Assembler().feed(server.recv(1 << 16)) == Loading("reading", 0.5)
