"""A server that other machines can reach, and the origin of a page that may call it: WebRTC needs both."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from cells import free_port
from voice_server import VoiceServer

NO_NETWORK = "this machine has no network: WebRTC needs another address than loopback"
KEY = "the-server-s-key"


def own_address() -> str:
    """Return an address of this machine that other machines can use; "" if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))  # sends nothing
        except OSError:
            return ""
        return str(probe.getsockname()[0])


@dataclass(frozen=True, slots=True)
class CallPlace:
    """A server on an address that others can reach, and the origin of the page that may call it."""

    server: VoiceServer
    page_port: int
    host: str


@contextlib.contextmanager
def call_place(folder: Path) -> Iterator[CallPlace]:
    """Run a server with a key and a page's origin in voice.origins, as docs/openai.md has it; skip without network."""
    host = own_address()
    if not host:
        pytest.skip(NO_NETWORK)
    page_port = free_port()
    config = folder / "voxlane.toml"
    config.write_text(f'[voice]\norigins = ["http://localhost:{page_port}"]\n')
    arguments = ("--config", str(config), "--host", host, "--kv-memory-mib", "256")
    server = VoiceServer(folder / "log", *arguments, key=KEY)
    try:
        yield CallPlace(server, page_port, host)
    finally:
        status = server.stop()
    assert status == 0
    assert "Traceback" not in server.log.read_text()
