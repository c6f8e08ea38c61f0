"""A real engine that becomes a template, and its forks: they answer alike, are told apart, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from small_model import NAME
from waiting import until

from voxlane.engine.api import (
    FORK,
    FRAGMENT_BYTES,
    PAGE_BYTES,
    Append,
    Assembler,
    ChatMessage,
    Configure,
    EndInput,
    EngineConfig,
    FromEngine,
    ProgressPage,
    Ready,
    Samples,
    SamplingParams,
    Submit,
    Text,
    ToEngine,
    decode_forked,
    encode,
    fragments,
)
from voxlane.engine.api import Started as Begun
from voxlane.engine.template import SHORT_LIFE_S

CONFIG = EngineConfig(NAME, "whisper-tiny-en", "hibari", kv_memory_mib=64)


class Started:
    """An engine process with all descriptors that a server gives it."""

    def __init__(self, config: EngineConfig) -> None:
        self.link, link = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        page = os.memfd_create("page")
        os.ftruncate(page, PAGE_BYTES)
        self.page = ProgressPage(page)
        given = (link.fileno(), page, control.fileno())
        command = [sys.executable, "-m", "voxlane.engine.process", *map(str, given)]
        self.process = subprocess.Popen(command, pass_fds=given)
        for end in (link, control):
            end.close()
        os.close(page)
        self.cached = 0  # prompt tokens of the last chat that were found in the cache
        self.send(Configure(config))
        for one in (self.link, self.control):
            one.settimeout(240)

    def send(self, *messages: ToEngine) -> None:
        for packet in (packet for message in messages for packet in fragments(encode(message))):
            self.link.send(packet)

    def messages_until(self, kind: str) -> list[FromEngine]:
        found: list[FromEngine] = []
        assembler = Assembler()
        while not found or type(found[-1]).__name__ != kind:
            packet = self.link.recv(FRAGMENT_BYTES)
            assert packet, f"the engine ended before {kind}"
            found += assembler.messages(packet)  # type: ignore[arg-type]
        return found

    def fork(self) -> int:
        """Ask for another engine; return its process number."""
        self.link.close()
        self.link, link = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.link.settimeout(240)
        socket.send_fds(self.control, [FORK], [link.fileno()])
        link.close()
        assert isinstance(self.messages_until("Ready")[-1], Ready)
        return decode_forked(self.control.recv(256)).pid

    def chat(self) -> str:
        asked = Submit("r", "chat", (ChatMessage("user", "Count to five."),), sampling=SamplingParams(max_tokens=12))
        self.send(asked)
        told = self.messages_until("Finished")
        self.cached = next(one.cached_tokens for one in told if isinstance(one, Begun))
        return "".join(one.text for one in told if isinstance(one, Text))

    def speech(self) -> bytes:
        self.send(Submit("s", "tts"), Append("s", text="Hello there."), EndInput("s"))
        return b"".join(one.pcm for one in self.messages_until("Finished") if isinstance(one, Samples))

    def heard(self, pcm: bytes) -> list[str]:
        self.send(Submit("a", "asr"), Append("a", audio=pcm), EndInput("a"))
        return [type(one).__name__ for one in self.messages_until("Finished")]

    def close(self) -> None:
        self.link.close()
        self.control.close()
        self.process.wait(60)
        self.page.close()


def stands_still(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] == "T"


def lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.fixture
def started() -> Iterator[Started]:
    engine = Started(CONFIG)
    yield engine
    if engine.process.poll() is None:
        engine.process.kill()
    engine.close()


def test_every_fork_answers_alike_and_ends_with_its_server(started: Started) -> None:
    ready = started.messages_until("Ready")[-1]
    assert isinstance(ready, Ready)
    assert ready.model == NAME
    pid = decode_forked(started.control.recv(256)).pid
    assert pid != started.process.pid
    first = (started.chat(), started.speech(), started.heard(bytes(32_000)))
    assert all(first)
    for end in (signal.SIGKILL, signal.SIGSTOP):  # lost, or still there
        os.kill(pid, end)
        if end is signal.SIGSTOP:
            until(partial(stands_still, pid), "it stands still")
        before, pid = pid, started.fork()
        assert pid != before
        assert not lives(before), "the template has ended and reaped it"
        count = started.page.count
        assert (started.chat(), started.speech(), started.heard(bytes(32_000))) == first
        assert started.page.count > count + 100, "kernels count inside steps"
    count = started.page.count
    until(lambda: started.page.count > count, "an idle engine counts")
    started.close()
    assert started.process.returncode == 0
    until(lambda: not lives(pid), "the fork ends with its server")


def test_a_long_lived_fork_leaves_its_prefix_cache_to_the_next(started: Started) -> None:
    started.messages_until("Ready")
    pid = decode_forked(started.control.recv(256)).pid
    born_s = time.monotonic()
    text = started.chat()
    assert started.cached == 0
    until(lambda: time.monotonic() - born_s > SHORT_LIFE_S, "it has lived long enough")
    os.kill(pid, signal.SIGKILL)
    pid = started.fork()
    assert started.chat() == text
    assert started.cached > 0
    os.kill(pid, signal.SIGKILL)
    started.fork()
    assert started.chat() == text
    assert started.cached == 0, "the last one was lost at once: its cache may be why"


@pytest.mark.soak
def test_without_a_standby_the_process_itself_is_the_engine() -> None:
    engine = Started(EngineConfig(NAME, "", "", kv_memory_mib=64, standby=False))
    assert isinstance(engine.messages_until("Ready")[-1], Ready)
    assert engine.control.recv(256) == b""
    assert engine.chat()
    engine.close()
    assert engine.process.returncode == 0
