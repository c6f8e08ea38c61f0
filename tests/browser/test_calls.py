"""Calls over WebRTC from a browser: OpenAI's own SDK with its default transport, a lossy network, a relay."""

from __future__ import annotations

import base64
import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from call_page import CALLS, call_page, needs_sdk
from call_place import KEY, NO_NETWORK, CallPlace, call_place, own_address
from cells import free_port
from chromium import WAIT_S, browser, script
from lossy_path import LossyPath
from page_server import page_server
from playwright.sync_api import Page, Playwright
from realtime_scenario import CUT_IN, QUESTION, STORY, WEATHER, likeness
from turn_server import PASSWORD, USER, TurnServer, turn_binary
from voice_server import RATE, Samples, VoiceServer, words
from waiting import until

pytestmark = pytest.mark.soak

needs_relay = pytest.mark.skipif(
    not turn_binary(), reason="this machine has no TURN server: install the package coturn"
)

LOST = 0.05
MOST_TOKENS = 60
QUIET, PAUSE_S = 0.003, 1.5
"""Between two replies the person speaks: the track is quieter than this for longer than a pause in a sentence."""

ASKED_S, STORY_S, CUT_IN_S = 1.5, 15.0, 24.0
"""When the person begins each sentence, after the microphone was opened: the assistant has time for its answers."""

NOWHERE = "203.0.113.7"
"""An address that no machine has."""

CONNECT_S = 6.0
"""Packets of the handshakes are lost, too, and sent again after a second each; the microphone is open meanwhile."""

TRANSCRIBED = "conversation.item.input_audio_transcription.completed"
TRUNCATED = "conversation.item.truncated"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CallPlace]:
    """A server that other machines can reach."""
    with call_place(tmp_path_factory.mktemp("calls")) as place:
        yield place


@pytest.fixture(scope="module")
def say(place: CallPlace) -> Callable[[str], Samples]:
    """Return a text as sound."""
    return functools.cache(place.server.say)


@dataclass(slots=True)
class BrowserCall:
    """A page that calls."""

    page: Page
    complaints: list[str]

    def begin(self, url: str, secret: str, **options: object) -> None:
        """Call with the SDK's default transport, unless the options name a relay."""
        how = {"url": url, "secret": secret, "providerData": {"max_output_tokens": MOST_TOKENS}, **options}
        assert self.page.evaluate("(how) => call.begin(how)", how), "the SDK has chosen another transport"

    def until(self, kind: str, count: int = 1) -> dict[str, Any]:
        """Wait for so many events of a type; return the last of them."""
        rule = "([kind, count]) => call.count(kind) >= count || call.errors.length > 0"
        self.page.wait_for_function(rule, arg=[kind, count], timeout=WAIT_S * 1000)
        assert self.page.evaluate("call.errors") == []
        return self.all(kind)[count - 1]

    def all(self, kind: str) -> list[dict[str, Any]]:
        """Return the events of a type."""
        found: list[dict[str, Any]] = self.page.evaluate(
            "(kind) => call.events.filter((event) => event.type === kind)", kind
        )
        return found

    def utterances(self, count: int) -> list[Samples]:
        """Return what came out of the call's track, reply by reply; wait for the end of so many.

        Events do not tell where a reply begins and ends in the sound: one that is lost comes a second later.
        """
        until(lambda: len(self._replies()) >= count, f"{count} replies were heard")
        return self._replies()

    def _replies(self) -> list[Samples]:
        """Return the replies after which there was a pause."""
        data = base64.b64decode(self.page.evaluate("call.heard()"))
        samples = np.frombuffer(data, "<i2").astype(np.float32) / np.float32(32768)
        loud = np.flatnonzero(np.abs(samples) > QUIET)
        ends = np.flatnonzero(np.diff(np.append(loud, len(samples))) > PAUSE_S * RATE)
        begins = np.append(0, ends + 1)
        return [np.pad(samples[loud[a] : loud[b] + 1], RATE // 2) for a, b in zip(begins, ends, strict=False)]

    def history(self) -> list[dict[str, Any]]:
        """Return what the SDK shows of the conversation."""
        found: list[dict[str, Any]] = self.page.evaluate("call.session.history")
        return found

    def check(self) -> None:
        """Raise if there was an error of any kind."""
        assert self.page.evaluate("call.errors") == []
        assert self.all("error") == []
        assert self.complaints == []

    def end(self) -> None:
        """Hang up."""
        self.page.evaluate("call.session.close()")


Dial = Callable[..., BrowserCall]


@pytest.fixture
def dial(playwright: Playwright, tmp_path: Path) -> Iterator[Dial]:
    """Open pages that can call."""
    with contextlib.ExitStack() as opened:

        def come(address: str, *said: tuple[float, Samples]) -> BrowserCall:
            microphone = script(tmp_path / "microphone.wav", *said) if said else None
            context = opened.enter_context(browser(playwright, microphone))
            page, complaints = context.new_page(), list[str]()
            page.on("console", lambda line: complaints.append(line.text) if line.type == "error" else None)
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.goto(address)
            page.wait_for_function("window.call !== undefined")
            return BrowserCall(page, complaints)

        yield come


def secret_of(server: VoiceServer) -> str:
    """Return a client secret, as a backend asks for one."""
    session: Any = {"type": "realtime", "temperature": 0}
    return str(server.client.realtime.client_secrets.create(session=session).value)


def interrupt(call: BrowserCall, server: VoiceServer, before: int) -> None:
    """Follow a story that is cut short after `before` replies; check what was heard, shown and remembered of it."""
    started = call.until("output_audio_buffer.started", before + 1)
    cleared = call.until("output_audio_buffer.cleared")
    assert cleared["response_id"] == started["response_id"]
    truncated = call.until(TRUNCATED)
    answered = call.until("output_audio_buffer.started", before + 2)
    assert answered["response_id"] != started["response_id"]
    call.until("output_audio_buffer.stopped", before + 1)
    stories = [one for one in call.all("response.done") if one["response"]["id"] == started["response_id"]]
    assert [one["response"]["status"] for one in stories] == ["cancelled"]
    (story,) = [item for item in call.history() if item["itemId"] == truncated["item_id"]]
    shown = words(story["content"][0]["transcript"])
    heard = words(server.transcribe(call.utterances(before + 1)[before], RATE))
    assert shown
    assert abs(len(shown) - len(heard)) <= 2, f"{' '.join(shown)} | {' '.join(heard)}"


@pytest.mark.weights
@needs_sdk
def test_the_sdk_of_openai_with_its_default_transport(
    place: CallPlace, dial: Dial, say: Callable[[str], Samples]
) -> None:
    server = place.server
    with call_page(place.page_port) as address:
        call = dial(address, (ASKED_S, say(QUESTION)), (STORY_S, say(STORY)), (CUT_IN_S, say(CUT_IN)))
        call.begin(f"{server.url}{CALLS}?model=gpt-realtime", secret_of(server))
        # a question is answered in speech
        assert likeness(call.until(TRANSCRIBED)["transcript"], QUESTION) > 0.8
        call.until("output_audio_buffer.stopped")
        reply = next(item for item in call.history() if item.get("role") == "assistant")
        told = reply["content"][0]["transcript"]
        assert "blue" in words(told)
        assert likeness(server.transcribe(call.utterances(1)[0], RATE), told) > 0.7
        # a story is cut short
        interrupt(call, server, before=1)
        transcripts = [one["transcript"] for one in call.all(TRANSCRIBED)]
        assert likeness(transcripts[-1], CUT_IN) > 0.8
        # a tool is called
        before = len(call.all("output_audio_buffer.stopped"))
        call.page.evaluate("(text) => call.askForTool(text)", WEATHER)
        call.until("output_audio_buffer.stopped", before + 1)
        assert len(call.page.evaluate("call.tools")) == 1
        assert [item["status"] for item in call.history() if item["type"] == "function_call"] == ["completed"]
        path = call.page.evaluate("call.path()")
        print(f"\nthe browser's address is {path}")
        call.check()
        call.end()
        assert call.page.evaluate("call.states") == ["connecting", "connected", "disconnected"]


@pytest.mark.weights
@needs_sdk
def test_a_call_that_loses_packets_both_ways(place: CallPlace, dial: Dial, say: Callable[[str], Samples]) -> None:
    server = place.server
    with LossyPath(place.host, LOST) as path, call_page(url=server.url, change=path.rewritten) as address:
        times_s = (CONNECT_S + at_s for at_s in (ASKED_S, STORY_S, CUT_IN_S))
        call = dial(address, *zip(times_s, map(say, (QUESTION, STORY, CUT_IN)), strict=True))
        call.begin(f"{address}{CALLS}?model=gpt-realtime", secret_of(server))
        print(f"\nconnected with {path.lost} lost, {path.passed} passed")
        assert likeness(call.until(TRANSCRIBED)["transcript"], QUESTION) > 0.7
        call.until("output_audio_buffer.stopped")
        interrupt(call, server, before=1)
        call.check()
        call.end()
        assert min(path.lost.values()) > 20
        print(f"\nlost {path.lost}, passed {path.passed}")


def as_browsers(turn: TurnServer) -> dict[str, str]:
    """Return a TURN server as a browser's configuration has it."""
    return {"urls": turn.url, "username": USER, "credential": PASSWORD}


@pytest.fixture
def turn(place: CallPlace, tmp_path: Path) -> Iterator[TurnServer]:
    """A TURN server."""
    server = TurnServer(tmp_path, place.host)
    yield server
    server.stop()


@pytest.mark.weights
@needs_sdk
@needs_relay
def test_a_browser_that_uses_a_relay(
    place: CallPlace, dial: Dial, say: Callable[[str], Samples], turn: TurnServer
) -> None:
    with call_page(place.page_port) as address:
        call = dial(address, (ASKED_S, say(STORY)), (CUT_IN_S - STORY_S + ASKED_S, say(CUT_IN)))
        secret = secret_of(place.server)
        call.begin(f"{place.server.url}{CALLS}?model=gpt-realtime", secret, relay=as_browsers(turn))
        interrupt(call, place.server, before=0)
        assert call.page.evaluate("call.path()")["local"] == "relay"
        call.check()
        call.end()


@needs_sdk
@needs_relay
@pytest.mark.parametrize("same", [False, True], ids=["a direct client", "a client at the same relay"])
def test_a_server_that_only_its_relay_reaches(dial: Dial, tmp_path: Path, same: bool) -> None:
    host, page_port = own_address(), free_port()
    if not host:
        pytest.skip(NO_NETWORK)
    turn = TurnServer(tmp_path, host)
    parts = f"""{{
        "server": ServerConfig(host={host!r}, port=0),
        "voice": VoiceConfig(origins=("http://localhost:{page_port}",)),
        "webrtc": WebRtcConfig(public_addresses=("{NOWHERE}",), ice_servers=({turn.url!r},), ice_username={USER!r}),
    }}"""
    try:
        with page_server(KEY, parts, VOXLANE_TURN_PASSWORD=PASSWORD) as url, call_page(page_port) as address:
            made = httpx.post(f"{url}/v1/realtime/client_secrets", headers={"authorization": f"Bearer {KEY}"}, json={})
            call = dial(address)
            secret, options = made.raise_for_status().json()["value"], {"relay": as_browsers(turn)} if same else {}
            call.begin(f"{url}{CALLS}?model=gpt-realtime", secret, **options)
            call.page.evaluate("call.session.sendMessage('flood 1')")
            call.until("output_audio_buffer.stopped")
            path = call.page.evaluate("call.path()")
            assert path["remote"] == "relay"
            assert (path["local"] == "relay") == same
            call.check()
            call.end()
    finally:
        turn.stop()


HIDDEN_CALL = """async () => {
  const connection = new RTCPeerConnection();
  const channel = connection.createDataChannel("oai-events");
  connection.addTrack(new AudioContext().createMediaStreamDestination().stream.getAudioTracks()[0]);
  const gathered = new Promise((resolve) => {
    connection.onicegatheringstatechange = () => connection.iceGatheringState === "complete" && resolve();
  });
  const created = new Promise((resolve) => { channel.onmessage = ({ data }) => resolve(JSON.parse(data).type); });
  await connection.setLocalDescription();
  await gathered;
  const { sdp } = connection.localDescription;
  const headers = { "content-type": "application/sdp" };
  const answer = await fetch("/v1/realtime/calls?model=m", { method: "POST", body: sdp, headers });
  await connection.setRemoteDescription({ type: "answer", sdp: await answer.text() });
  const first = await created;
  connection.close();
  return { addresses: [...sdp.matchAll(/ udp [0-9]+ ([^ ]+) /g)].map(([_, host]) => host), first };
}"""
"""A call without the SDK and without a microphone: then Chromium hides its addresses behind random names."""


def test_a_browser_that_hides_its_addresses(playwright: Playwright) -> None:
    if not own_address():
        pytest.skip(NO_NETWORK)
    with page_server() as url, browser(playwright, allowed=False) as context:
        page = context.new_page()
        page.goto(url)
        found = page.evaluate(HIDDEN_CALL)
        assert found["addresses"]
        assert all(host.endswith(".local") for host in found["addresses"])
        assert found["first"] == "session.created"
