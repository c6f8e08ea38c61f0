"""The page of a server whose speech-to-speech model answers: a small random one, so its voice is noise."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lfm2_audio_checkpoint as checkpoint
import pytest
from chromium import Visitor, browser
from playwright.sync_api import Page, Playwright
from voice_server import VoiceServer

pytestmark = pytest.mark.weights

AXE = Path(__file__).parents[2] / "client_js" / "node_modules" / "axe-core" / "axe.min.js"
FINDINGS = "(found) => found.violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ target }) => target)}`)"
KEY = "right"
KEPT = {
    "config": {
        "voice": "bm_lewis",
        "voice_language": "german",
        "voice_instructions": "Whisper.",
        "speed": 1.5,
        "instructions": "You are a pirate.",
    },
    "tools": True,
}
"""What the browser remembers of another server with the same address."""


@pytest.fixture(
    scope="module", params=[pytest.param("", id="open"), pytest.param(KEY, id="key", marks=pytest.mark.soak)]
)
def talking(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VoiceServer]:
    """A server whose only model that answers is the random one; it lists its models to those who have its key."""
    folder = tmp_path_factory.mktemp("speech") / "noise"
    checkpoint.write(folder, checkpoint.TRUE_RATIOS, "abcdefgh ", breathes=True)
    models = ("--speech-model", str(folder), "--model", "", "--tts-model", "", "--asr-model", "moonshine-tiny-en")
    server = VoiceServer(tmp_path_factory.mktemp("server") / "log", *models, key=request.param)
    yield server
    assert server.stop() == 0


@contextlib.contextmanager
def visiting(playwright: Playwright, url: str, kept: dict[str, Any]) -> Iterator[Visitor]:
    """Open the page in a browser that remembers settings."""
    with contextlib.ExitStack() as opened, browser(playwright, color_scheme="light") as context:
        visitor = Visitor(context.new_page(), opened)
        stored = json.dumps(json.dumps(kept))
        visitor.page.add_init_script(f"localStorage.setItem('voxlane.settings', {stored})")
        visitor.open(url)
        yield visitor


def check_looks(page: Page, state: str) -> None:
    """Raise if axe finds anything on a desk or a phone, in light or dark colours."""
    for width, height in ((1280, 860), (390, 844)):
        page.set_viewport_size({"width": width, "height": height})
        for colours in ("light", "dark"):
            page.emulate_media(color_scheme=colours, reduced_motion="reduce")
            found = page.evaluate(f"axe.run({{ resultTypes: ['violations'] }}).then({FINDINGS})")
            assert found == [], f"{state}, {width}, {colours}"
    page.set_viewport_size({"width": 1280, "height": 860})


def test_settings_of_another_server_are_left_out_and_one_model_is_shown(
    playwright: Playwright, talking: VoiceServer, request: pytest.FixtureRequest
) -> None:
    with visiting(playwright, talking.url, KEPT) as visitor:
        page = visitor.page
        page.evaluate(AXE.read_text())
        page.evaluate("document.getElementById('settings').open = true")
        if "key" in request.node.callspec.id:
            page.fill("#key", KEY)
        else:
            page.wait_for_selector("#model-speech-row:not([hidden])")  # before there is a conversation
            check_looks(page, "idle")
        visitor.configure(max_tokens=12)
        for turn in (1, 2):
            visitor.type("Hello!")
            visitor.await_lines("assistant", "done", turn)
            config = page.evaluate("voxlane.client.ready.config")
            named = [config[name] for name in ("voice", "voice_language", "voice_instructions", "speed", "tools")]
            assert named == ["", "", "", 1, []]
            assert config["instructions"] == "You are a pirate."
            assert page.inner_text("#model-speech") == "noise"
            assert page.inner_text("#model-listening") == "moonshine-tiny-en"
            assert "--speech-model" in page.inner_text("#models-command")
            for hidden in ("model-chat", "model-voice", "voice", "language", "manner", "speed", "tools"):
                assert not page.is_visible(f"#{hidden}"), hidden
            if turn == 1:
                check_looks(page, "settings")
            page.click("#end")  # the next turn begins another conversation
            visitor.await_state("over")
        assert json.loads(page.evaluate("localStorage['voxlane.settings']"))["config"] == KEPT["config"]
        assert not visitor.told("fault")
        visitor.check()
