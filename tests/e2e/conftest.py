"""A real server: its own process, the real engine, the real weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from voice_server import VoiceServer


@pytest.fixture
def start_server(tmp_path: Path, no_leaks: None) -> Iterator[Callable[..., VoiceServer]]:
    """Start a server of the test's own."""
    started: list[VoiceServer] = []

    def start(*arguments: str) -> VoiceServer:
        started.append(VoiceServer(tmp_path / f"server-{len(started)}.log", *arguments))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="session")
def server(voice_server: VoiceServer) -> VoiceServer:
    """The server that most tests share."""
    return voice_server
