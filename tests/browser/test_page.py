"""What the page offers around a conversation: models, files, tools, settings that stay; and how it looks to axe."""

from __future__ import annotations

import contextlib
import io
import json
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from chromium import Visitor, launch
from page_server import page_server
from playwright.sync_api import Browser, Page, Playwright
from waiting import until

AXE = Path(__file__).parents[2] / "client_js" / "node_modules" / "axe-core" / "axe.min.js"
SIZES = {"desktop": (1280, 860), "phone": (390, 844), "landscape": (844, 390)}
FINDINGS = "(found) => found.violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ target }) => target)}`)"
FOREIGN = "voxlane.internal"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Return the address of a server that all tests share."""
    with page_server() as address:
        yield address


@pytest.fixture(scope="module")
def chromium(playwright: Playwright) -> Iterator[Browser]:
    """The browser that all tests share."""
    started = launch(playwright, further=(f"--host-resolver-rules=MAP {FOREIGN} 127.0.0.1",))
    yield started
    started.close()


@contextlib.contextmanager
def visiting(chromium: Browser, url: str, **options: Any) -> Iterator[Visitor]:
    """Open the page as somebody who was never there."""
    with contextlib.ExitStack() as opened, chromium.new_context(**options) as context:
        visitor = Visitor(context.new_page(), opened)
        visitor.open(url)
        yield visitor


def saved(page: Page, button: str) -> bytes:
    page.click("#download")
    with page.expect_download() as download:
        page.click(button)
    return Path(download.value.path()).read_bytes()


def open_settings(page: Page) -> None:
    page.evaluate("document.getElementById('settings').open = true")


ROWS = """
() => {
  const text = document.getElementById("models-line").firstChild;
  const range = document.createRange();
  const rows = new Map();
  for (let at = 0; at < text.length; at += 1) {
    range.setStart(text, at);
    range.setEnd(text, at + 1);
    const { top, width } = range.getBoundingClientRect();
    if (width) rows.set(top, (rows.get(top) ?? "") + text.data[at]);
  }
  return [...rows.values()];
}
"""
"""Returns the rows into which the line of models is broken."""


def test_no_row_of_the_models_begins_with_a_dot_on_a_phone(chromium: Browser) -> None:
    names = 'EngineConfig("qwen2.5-coder-0.5b-instruct", asr_model="moonshine-tiny-en", tts_model="hibari")'
    with page_server(parts=f'{{"engine": {names}}}') as url:
        for width in (390, 320):
            with visiting(chromium, url, viewport={"width": width, "height": 844}) as visitor:
                visitor.page.wait_for_selector("#models-line:not([hidden])")
                rows = visitor.page.evaluate(ROWS)
                assert len(rows) > 1
                assert not [row for row in rows if row.lstrip().startswith("·")]


def test_a_conversation_is_shown_with_its_models_and_saved_in_every_form(chromium: Browser, url: str) -> None:
    with visiting(chromium, url) as visitor:
        page = visitor.page
        until(lambda: page.inner_text("#model-chat") == "scripted", "the models are shown before the conversation")
        assert page.inner_text("#models-line") == "scripted\u00a0· moonshine-tiny-en\u00a0· hibari"
        assert page.locator("#voice option").count() > 1, "and so are the voices"
        open_settings(page)
        page.check("#record")
        page.evaluate("document.activeElement.blur()")
        page.keyboard.press("Enter")
        visitor.await_state("listening")
        visitor.type("hello there")
        visitor.await_lines("assistant", "done")
        assert page.locator("#captions time").count() == 2
        assert page.locator("#captions time").first.inner_text().count(":") == 2

        assert b"You: hello there" in saved(page, "#save-text")
        record = json.loads(saved(page, "#save-json"))
        models = {"chat": "scripted", "listening": "moonshine-tiny-en", "voice": "hibari", "speech": ""}
        assert record["models"] == models
        asked, answered = record["lines"]
        assert (asked["role"], asked["heard"]) == ("user", "hello there")
        assert 0 <= asked["start_s"] <= answered["start_s"] <= answered["end_s"]
        assert saved(page, "#save-srt").decode().splitlines()[2] == "You: hello there"
        with wave.open(io.BytesIO(saved(page, "#save-wav"))) as recording:
            assert recording.getnchannels() == 2
            sound = np.frombuffer(recording.readframes(recording.getnframes()), "<i2").reshape(-1, 2)
            began = np.flatnonzero(sound[:, 1])[0] / recording.getframerate()
        assert not sound[:, 0].any(), "the microphone is silent"
        assert abs(began - answered["start_s"]) < 1, "subtitles and recording have one clock"
        visitor.check()


def test_settings_stay_and_a_key_only_if_asked(chromium: Browser, url: str) -> None:
    with visiting(chromium, url) as visitor:
        page = visitor.page
        until(lambda: page.locator("#voice option").count() > 1, "the voices are there")
        open_settings(page)
        voice = page.locator("#voice option").nth(1).get_attribute("value") or ""
        page.select_option("#voice", voice)
        page.fill("#prompt", "You are a pirate.")
        page.click("#apply")
        page.check("#tools")
        page.fill("#key", "secret")
        other = page.context.new_page()
        other.goto(page.url)
        until(lambda: other.input_value("#voice") == voice, "the voice is chosen")
        assert other.input_value("#prompt") == "You are a pirate."
        assert other.is_checked("#tools")
        assert other.input_value("#key") == ""
        assert "secret" not in other.evaluate("JSON.stringify(localStorage)")
        other.close()

        visitor.type("hello")
        visitor.await_lines("assistant", "done")
        config = page.evaluate("voxlane.client.ready.config")
        assert (config["voice"], config["instructions"]) == (voice, "You are a pirate.")
        assert [tool["name"] for tool in config["tools"]] == ["get_time", "set_timer", "roll_dice"]
        visitor.type("call my tools")  # all of them, with an argument that only two can do without
        visitor.await_message("tool_call", 3)
        visitor.await_lines("assistant", "done", 3)
        assert [fault.detail["message"] for fault in visitor.told("fault")] == ["The tool set_timer failed."]
        page.check("#keep-key")
        assert "secret" in page.evaluate("JSON.stringify(localStorage)")
        page.uncheck("#keep-key")
        assert "secret" not in page.evaluate("JSON.stringify(localStorage)")
        page.check("#keep-key")
        page.click("#forget")
        assert page.evaluate("localStorage.getItem('voxlane.settings')") is None
        assert "secret" not in page.evaluate("JSON.stringify(sessionStorage)")
        assert (page.input_value("#key"), page.is_checked("#keep-key")) == ("", False)


def test_a_page_whose_server_needs_a_key_asks_nothing_that_is_refused(chromium: Browser) -> None:
    with page_server("right") as url, chromium.new_context() as context, contextlib.ExitStack() as opened:
        visitor = Visitor(context.new_page(), opened)
        with visitor.page.expect_response("**/livez") as told:
            visitor.open(url)
        assert told.value.json()["key_needed"]
        open_settings(visitor.page)
        visitor.page.fill("#key", "right")
        visitor.type("hello there")
        visitor.await_lines("assistant", "done")
        assert visitor.page.inner_text("#model-chat") == "scripted"
        assert not [one for one in visitor.requests if one.endswith("/v1/models")]
        with visitor.page.expect_response("**/v1/models") as listed:  # the key is still there
            visitor.page.reload()
        assert listed.value.ok
        visitor.check()


def test_a_page_over_a_network_without_tls_says_what_to_do(chromium: Browser, url: str) -> None:
    with chromium.new_context() as context:
        page = context.new_page()
        page.goto(f"http://{FOREIGN}:{urlsplit(url).port}/")
        page.wait_for_selector("#banner[data-code=insecure_origin]")
        told = page.inner_text("#banner")
        assert "--tls-cert" in told
        assert "http://localhost" in told


def test_the_page_can_be_installed_and_its_rules_allow_that(chromium: Browser, url: str) -> None:
    with visiting(chromium, url) as visitor:
        session = visitor.page.context.new_cdp_session(visitor.page)
        manifest = session.send("Page.getAppManifest")
        assert manifest["url"].endswith("/client/demo/manifest.webmanifest")
        assert manifest["errors"] == []
        errors = {error["errorId"] for error in session.send("Page.getInstallabilityErrors")["installabilityErrors"]}
        assert errors <= {"in-incognito"}, "as all of a test's browsers are"
        visitor.check()


def test_axe_finds_nothing(chromium: Browser, url: str) -> None:
    with visiting(chromium, url) as visitor:
        page = visitor.page
        page.evaluate(AXE.read_text())

        def look(state: str) -> None:
            for size, (width, height) in SIZES.items():
                page.set_viewport_size({"width": width, "height": height})
                for colours in ("light", "dark"):
                    page.emulate_media(color_scheme=colours, reduced_motion="reduce")
                    found = page.evaluate(f"axe.run({{ resultTypes: ['violations'] }}).then({FINDINGS})")
                    assert found == [], f"{state}, {size}, {colours}"
            page.set_viewport_size({"width": 1280, "height": 860})

        look("idle")
        visitor.type("hello there")
        visitor.await_lines("assistant", "done")
        look("a conversation")
        page.click("#download")
        look("the menu of files")
        page.keyboard.press("Escape")
        open_settings(page)
        page.evaluate("document.getElementById('events').open = true")
        look("settings and the event log")
        page.set_viewport_size({"width": 390, "height": 844})
        page.click("#panel-toggle")
        look("the panel over the page")


def test_captions_have_room_on_a_phone_in_landscape(chromium: Browser, url: str) -> None:
    with visiting(chromium, url) as visitor:
        page = visitor.page
        page.set_viewport_size({"width": 740, "height": 340})
        visitor.type("hello there")
        visitor.await_lines("assistant", "done")
        captions, composer = (page.locator(name).bounding_box() for name in ("#captions", "#composer"))
        assert captions is not None
        assert composer is not None
        assert captions["height"] > 170, "half of the screen"
        assert composer["y"] + composer["height"] <= 340
        assert page.is_visible("#mute")
