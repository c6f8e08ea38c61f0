"""A real server, a real browser, and visitors whose microphones hear what a test says."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest
from chromium import Visitor, browser, launch, script
from playwright.sync_api import Browser, Playwright, sync_playwright
from voice_server import Samples, VoiceServer


class Visit(Protocol):
    """Open the page as a visitor; `said` holds texts for the microphone, each with its second after the opening."""

    def __call__(self, *said: tuple[float, str], allowed: bool = True, **options: Any) -> Visitor: ...


@pytest.fixture(scope="session")
def server(voice_server: VoiceServer) -> VoiceServer:
    """The server that most tests share."""
    return voice_server


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., VoiceServer]]:
    """Start servers of the test's own, one after the other."""
    started: list[VoiceServer] = []

    def start(**options: Any) -> VoiceServer:
        started.append(VoiceServer(tmp_path / "server.log", "--kv-memory-mib", "256", **options))
        return started[-1]

    yield start
    for server in started:
        server.stop()
    assert "Traceback" not in (tmp_path / "server.log").read_text()


@pytest.fixture(scope="session")
def say(server: VoiceServer) -> Callable[[str], Samples]:
    """Return a text as sound."""
    return functools.cache(server.say)


# Not for the whole session: its event loop would be in the way of other tests'.
@pytest.fixture(scope="module")
def playwright() -> Iterator[Playwright]:
    """Return what drives browsers."""
    with sync_playwright() as started:
        yield started


@dataclass(frozen=True, slots=True)
class House:
    """A browser, and what its microphone hears."""

    browser: Browser
    microphone: Path


@pytest.fixture(scope="module")
def house(playwright: Playwright, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """The browser that a module's visitors share."""
    microphone = tmp_path_factory.mktemp("house") / "microphone.wav"
    started = launch(playwright, microphone)
    yield House(started, microphone)
    started.close()


@pytest.fixture
def visit(house: House, playwright: Playwright, say: Callable[[str], Samples]) -> Iterator[Visit]:
    """Let visitors come for as long as the test lasts: each has a context of its own, and all hear what one says."""
    with contextlib.ExitStack() as opened:

        def come(*said: tuple[float, str], allowed: bool = True, **options: Any) -> Visitor:
            script(house.microphone, *((at_s, say(text)) for at_s, text in said))
            if allowed:
                context = house.browser.new_context(**options)
                opened.callback(context.close)
            else:
                context = opened.enter_context(browser(playwright, house.microphone, allowed=False, **options))
            return Visitor(context.new_page(), opened)

        yield come
