"""The page without a mouse, and the page after a reload: keys, the focus, and what is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from voice_server import VoiceServer
from waiting import until

pytestmark = pytest.mark.weights

STEADY = {"temperature": 0, "seed": 7, "max_tokens": 40}
STORY = "Tell me a long story about a dragon."

UNANSWERED = """
navigator.mediaDevices.getUserMedia = () => new Promise(() => { window.asked = (window.asked ?? 0) + 1; });
"""


def client(visitor: Any, name: str) -> object:
    """Return a property of the page's client."""
    return visitor.page.evaluate("(name) => voxlane.client[name]", name)


def focused(visitor: Any) -> str:
    """Return the id of what has the focus."""
    return str(visitor.page.evaluate("document.activeElement.id || document.activeElement.tagName"))


def pressed(visitor: Any, button: str) -> bool:
    """Return whether a button shows itself as pressed."""
    return visitor.page.get_attribute(button, "aria-pressed") == "true"


def can_interrupt(visitor: Any) -> bool:
    """Return whether the button is offered."""
    return visitor.page.get_attribute("#interrupt", "aria-disabled") == "false"


def announced(visitor: Any) -> str:
    """Return what a screen reader was last given."""
    return str(visitor.page.text_content("#announcer"))


def test_keys_the_focus_and_a_reload(server: VoiceServer, visit: Any) -> None:
    visitor = visit()
    page, keys = visitor.page, visitor.page.keyboard
    visitor.open(server.url, **STEADY)
    page.focus("#start")
    keys.press("Enter")
    visitor.await_state("listening")
    assert focused(visitor) == "mute"
    assert "Connected" in announced(visitor)
    assert not can_interrupt(visitor)

    page.focus("#text")
    keys.type(STORY)
    keys.press("Enter")
    visitor.await_partly_heard()
    assert can_interrupt(visitor)
    keys.press("Escape")  # while the focus is in the text field
    (cut,) = visitor.await_lines("assistant", "interrupted")
    until(lambda: not can_interrupt(visitor), "there is nothing left to interrupt")
    assert f"You: {STORY}" in announced(visitor)
    assert cut.heard.strip() not in announced(visitor), "it was heard: a screen reader must not talk over it"

    page.click("#ptt")
    assert pressed(visitor, "#ptt")
    assert focused(visitor) == "hold"
    for _ in range(2):  # a screen reader clicks and cannot hold
        before = client(visitor, "pressed")
        page.evaluate("document.getElementById('hold').click()")
        assert client(visitor, "pressed") != before
    keys.down("Enter")
    assert client(visitor, "pressed")
    keys.up("Enter")
    assert not client(visitor, "pressed")
    page.focus("#captions")  # Space means the talk button here as well
    keys.down(" ")
    until(lambda: client(visitor, "pressed"), "space is held")
    page.focus("#text")
    keys.up(" ")
    until(lambda: not client(visitor, "pressed"), "space was let go in the text field")
    assert page.input_value("#text") == ""
    page.evaluate("document.getElementById('settings').open = true")
    page.focus("#processing")
    before = page.is_checked("#processing")
    keys.press(" ")
    assert page.is_checked("#processing") != before
    assert not client(visitor, "pressed")
    keys.press("m")
    until(lambda: page.inner_text("#mute") == "Unmute", "it is muted")
    assert announced(visitor).endswith("Muted")

    page.reload()
    until(lambda: client(visitor, "listening"), "the microphone is open again")
    assert client(visitor, "muted")
    assert page.inner_text("#mute") == "Unmute"
    assert pressed(visitor, "#ptt")
    assert page.evaluate("voxlane.client.ready.config.turns.mode") == "manual"
    assert page.is_visible("#hold")
    keys.press("m")
    assert not client(visitor, "muted")

    page.click("#download")
    keys.press("Escape")
    assert not page.is_visible("#exports")
    page.click("#download")
    with page.expect_download() as download:
        page.click("#save-text")
    assert not page.is_visible("#exports")
    lines = Path(download.value.path()).read_text().splitlines()
    assert lines[3] == f"You: {STORY}", "a line that was said before the reload has no time"
    assert lines[4].startswith(f"Assistant: {cut.heard.strip()}")
    page.focus("#end")
    keys.press("Enter")
    visitor.await_state("over")
    assert focused(visitor) == "start"
    visitor.check()


def test_who_only_types_is_not_listened_to(server: VoiceServer, visit: Any) -> None:
    visitor = visit()
    page = visitor.page
    page.add_init_script(UNANSWERED)
    visitor.open(server.url, **STEADY | {"max_tokens": 8})
    visitor.type("Hello!")
    visitor.await_lines("assistant", "done")
    page.reload()
    visitor.await_banner("resumed")
    page.focus("#banner-close")
    page.keyboard.press("Enter")
    assert visitor.banner == ""
    assert focused(visitor) == "text"
    visitor.await_state("listening")
    assert page.evaluate("window.asked") is None, "the microphone was asked for"

    page.click("#ptt")
    until(lambda: pressed(visitor, "#ptt"), "turns go from press to release")
    assert not page.is_visible("#hold"), "there is no microphone to talk into"
    page.click("#ptt")

    page.set_viewport_size({"width": 390, "height": 844})
    page.click("#panel-toggle")
    covered = "document.getElementById('composer').closest('[inert]') !== null"
    assert page.evaluate(covered), "keys go where nothing can be seen"
    assert page.evaluate("document.getElementById('announcer').closest('[inert]')") is None
    page.keyboard.press("Escape")
    assert focused(visitor) == "panel-toggle"
    assert not page.evaluate(covered)

    for ask in ("#mute", "#start"):
        page.click(ask)
        until(lambda: "allow the microphone" in page.inner_text("#state"), "the browser asks")
        page.click("#end")
        visitor.await_state("over")
        assert page.is_enabled("#start")
    assert page.evaluate("window.asked") == 2
    visitor.check()
