"""What is not as it should be is said in words, and mended where it can be."""

from __future__ import annotations

from typing import Any

import pytest
from voice_server import VoiceServer, words
from waiting import until

pytestmark = pytest.mark.weights

STEADY = {"temperature": 0, "seed": 7, "max_tokens": 20, "speed": 1.5}
QUESTION = "What color is the sky on a clear day?"
KEY = "the-right-key"

CONTEXTS = """
window.contexts = [];
window.AudioContext = class extends AudioContext { constructor(...how) { super(...how); contexts.push(this); } };
"""


def test_a_microphone_that_is_refused(server: VoiceServer, visit: Any) -> None:
    visitor = visit((1.0, QUESTION), allowed=False)
    visitor.open(server.url, **STEADY)
    assert field_in_sight(visitor, width=844, height=390)
    visitor.page.click("#start")
    assert "microphone" in visitor.await_banner("microphone_refused")
    assert field_in_sight(visitor, width=320, height=568)
    visitor.type("Hello!")  # works without one
    visitor.await_lines("assistant", "done")
    visitor.page.context.grant_permissions(["microphone"])
    visitor.page.click("#banner-action")
    visitor.await_lines("assistant", "done", 2)
    assert visitor.banner == ""
    assert words(visitor.lines[2].text) == words(QUESTION)


def test_a_sound_that_falls_asleep_is_woken(server: VoiceServer, visit: Any) -> None:
    visitor = visit()
    visitor.page.add_init_script(CONTEXTS)
    visitor.open(server.url)
    visitor.start()
    # As a telephone call does it: the page is only told.
    states = "contexts[0].addEventListener('statechange', () => states.push(contexts[0].state))"
    visitor.page.evaluate(f"() => {{ window.states = []; {states}; return contexts[0].suspend(); }}")
    until(lambda: visitor.page.evaluate("states.slice(-2).join()") == "suspended,running", "it is awake again")
    until(lambda: not visitor.banner, "the banner that asks for a click is gone")
    assert visitor.page.evaluate("contexts[0].state") == "running"


def test_a_wrong_key_and_a_server_that_is_restarted(visit: Any, serve: Any) -> None:
    server = serve(key=KEY)
    visitor = visit()
    visitor.open(server.url, **STEADY)
    visitor.page.click("#start")
    assert "key" in visitor.await_banner("invalid_api_key")
    visitor.page.click("#banner-action")
    enter_key(visitor, "the-wrong-key")
    visitor.page.click("#start")
    assert "does not know this key" in visitor.await_banner("wrong_key")
    visitor.page.fill("#key", KEY)
    visitor.page.press("#key", "Enter")
    visitor.await_state("listening")
    assert visitor.banner == ""
    visitor.type("Hello!")
    visitor.await_lines("assistant", "done")

    server.kill()
    visitor.await_banner("reconnecting")
    serve(port=server.port, key=KEY)
    visitor.await_banner("gone")
    visitor.await_state("listening")
    visitor.type(QUESTION)
    (*_, answer) = visitor.await_lines("assistant", "done", 2)
    assert "blue" in words(answer.text)


def enter_key(visitor: Any, key: str) -> None:
    visitor.page.fill("#key", key)
    visitor.page.press("#key", "Tab")


def field_in_sight(visitor: Any, *, width: int, height: int) -> bool:
    visitor.page.set_viewport_size({"width": width, "height": height})
    place = visitor.page.locator("#composer").bounding_box()
    return bool(place["y"] + place["height"] <= height)
