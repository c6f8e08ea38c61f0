"""OpenAI's SDK for agents in Chromium, over WebSocket and over WebRTC: the scenarios of the table in docs/openai.md."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
from call_page import NODE, call_page, needs_sdk
from call_place import CallPlace, call_place
from chromium import browser
from client_table import CLIENTS, SCENARIOS, WORKS, ForeignClient
from playwright.sync_api import Page, Playwright
from realtime_scenario import check_allowed, check_scenario, check_seen, listener, record, steady_key
from wiretap import Message, Wire, Wiretap

pytestmark = [pytest.mark.weights, needs_sdk]

CELLS = [
    pytest.param(one, scenario, id=f"{one.browser}-{scenario}")
    for one in CLIENTS
    for scenario in SCENARIOS
    if one.browser and one.result(scenario) == WORKS
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CallPlace]:
    """A server that other machines can reach."""
    with call_place(tmp_path_factory.mktemp("calls")) as place:
        yield place


@pytest.fixture(scope="module")
def clips(place: CallPlace) -> dict[str, str]:
    """Return what the person says, in base64."""
    return {name: base64.b64encode(pcm).decode() for name, pcm in record(place.server.client).items()}


@pytest.fixture
def page(place: CallPlace, playwright: Playwright) -> Iterator[Page]:
    """Open the page that plays scenarios; it must not complain."""
    with call_page(place.page_port) as address, browser(playwright) as context:
        page, complaints = context.new_page(), list[str]()
        page.on("console", lambda line: complaints.append(line.text) if line.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(f"{address}/scenarios")
        page.wait_for_function("window.playScenario !== undefined")
        yield page
        assert complaints == []


@pytest.mark.parametrize(("one", "scenario"), CELLS)
def test_a_cell_of_the_table(
    one: ForeignClient, scenario: str, place: CallPlace, clips: dict[str, str], page: Page
) -> None:
    installed = json.loads((NODE / one.package / "package.json").read_text())["version"]
    assert f"{installed}.".startswith(f"{one.version}."), installed
    client = place.server.client
    with Wiretap(place.server.url) as tap:
        url = tap.url if one.browser == "WebSocket" else place.server.url
        asked: dict[str, Any] = {"scenario": scenario, "over": one.browser, "key": steady_key(client), "clips": clips}
        told = page.evaluate("(asked) => playScenario(asked)", {**asked, "url": url})
    assert "failed" not in told, told["failed"]
    check_seen(scenario, told["seen"])
    if one.browser == "WebSocket":
        check_scenario(scenario, tap.wire, listener(client))
    else:
        check_allowed(Wire(messages=[Message(0.0, "server", event) for event in told["events"]]), webrtc=True)
