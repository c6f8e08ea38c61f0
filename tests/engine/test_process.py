"""The engine's end of the socket, on descriptors a busy server hands it."""

from __future__ import annotations

import logging
import os
import resource
import socket
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch

from voxlane.engine import progress
from voxlane.engine.api import (
    Assembler,
    Cancel,
    Configure,
    EngineConfig,
    Loading,
    Pause,
    Ping,
    Pong,
    ProgressPage,
    StartFailed,
    ToEngine,
    encode,
    fragments,
)
from voxlane.engine.build import assemble
from voxlane.engine.links import Links
from voxlane.engine.process import LOST, serve
from voxlane.engine.runners.cuda.device import HUNG_S, DeviceLost, Stopwatch, watched

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


def test_it_answers_a_ping_whatever_else_there_is():
    server, child = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with server, child:
        link = Links(child)
        for command in (Ping(), Cancel("a"), Ping(), Cancel("b")):
            for packet in fragments(encode(command)):
                server.send(packet)
        assert link.receive(wait=False) == [Cancel("a"), Cancel("b")]
        assert [Assembler().feed(server.recv(1 << 16)) for _ in range(2)] == [Pong(), Pong()]


@pytest.mark.usefixtures("high_descriptors")
def test_it_waits_and_talks_on_a_descriptor_beyond_selects():
    server, child = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    os.dup2(child.fileno(), HIGH_DESCRIPTOR)
    child.close()
    with server, socket.socket(fileno=HIGH_DESCRIPTOR) as high:
        link = Links(high)
        for packet in fragments(encode(Cancel("r"))):
            server.send(packet)
        assert link.receive(wait=True) == [Cancel("r")]
        link.send([Loading("reading", 0.5)])
        assert Assembler().feed(server.recv(1 << 16)) == Loading("reading", 0.5)


class DyingCore:
    """An idle engine that is woken by commands, and finds the device gone."""

    busy = False

    def __init__(self) -> None:
        self.received: list[ToEngine] = []
        self.came = False

    def idle(self, came: Callable[[], bool]) -> list[object]:
        self.came = came()
        return []

    def step(self, receive: Callable[[], list[ToEngine]], tell: object) -> list[object]:
        self.received += receive()
        raise DeviceLost("an illegal memory access was encountered")


def test_an_engine_whose_device_is_lost_says_so_and_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)  # and back at the end: an engine sets it for all of its process
    core, closed = DyingCore(), list[bool]()
    server, child = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def assembled(config: EngineConfig, progress: object) -> SimpleNamespace:
        for command in (Cancel("r"), Pause(("s",))):
            server.send(fragments(encode(command))[0])
        ready = StartFailed("stands for what is told first")
        ended = lambda: closed.append(child.fileno() < 0)  # noqa: E731
        return SimpleNamespace(core=core, ready=ready, close=ended, on_device=False)

    monkeypatch.setattr(assemble, "assemble", assembled)
    with server, child:
        server.send(fragments(encode(Configure(EngineConfig())))[0])
        assert serve(Links(child)) == LOST
        assert list(iter(lambda: server.recv(1 << 16), b"")), "it was ready before, and the end of file says it is lost"
    assert core.received == [Cancel("r"), Pause(("s",))]
    assert core.came, "or it would do its idle work while a command waits"
    assert closed == [True], "or a voice in the making would keep the process; the server knew before"
    assert "device=lost error=an illegal memory access was encountered" in caplog.text


def test_a_fault_that_stays_is_told_from_one_that_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    with pytest.raises(RuntimeError, match="passes"), watched(device):
        raise RuntimeError("it passes")

    def broken(device: torch.device) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered\nand much advice")

    monkeypatch.setattr(torch.cuda, "synchronize", broken)
    with pytest.raises(DeviceLost, match=r"^CUDA error: device-side assert triggered$"), watched(device):
        raise RuntimeError("it stays")
    with pytest.raises(RuntimeError, match="on the host"), watched(torch.device("cpu")):
        raise RuntimeError("on the host")


class Events:
    """An event on a device: it is over when the test says so."""

    def __init__(self) -> None:
        self.over = False

    def record(self) -> None:
        self.over = False

    def query(self) -> bool:
        return self.over


def test_a_device_that_never_ends_what_was_queued_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(torch.cuda, "Event", lambda *, enable_timing: Events())
    watch = Stopwatch(torch.device("cuda"), lambda: now[0])
    watch.start()
    watch.stop()
    now[0] += HUNG_S
    assert not watch.done(), "slow is not lost"
    now[0] += 1
    with pytest.raises(DeviceLost, match="has not ended"), watched(torch.device("cuda")):
        watch.done()
    watch._events[1].over = True
    assert watch.done(), "a process that was stopped for a while asks before it judges"
    watch.start()
    watch.stop()
    assert not watch.done(), "the next has all of its time"


def test_an_announced_operation_ends() -> None:
    page = ProgressPage()
    progress.show_on(page)
    try:
        with progress.allow(5.0):
            assert page.allowed_s == 5.0
        assert page.allowed_s == 0.0
    finally:
        progress.show_on(ProgressPage())
