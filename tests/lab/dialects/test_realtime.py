"""The Realtime client against the server's own codec: truncation, late sound, tools, errors."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest

from voxlane.server.conversation import client_events, server_events
from voxlane_lab.dialects.choice import make_dialect
from voxlane_lab.dialects.dialect import LabTool
from voxlane_lab.values import USER_TICK

from .faces import KEY, Card, RealtimeFace, options, ramp

TOOL = LabTool("look_up", "Looks something up.", '{"found": 3}', 0.5)


class Talk(Card):
    """A card whose server is a RealtimeFace, or events written by hand."""

    face: RealtimeFace

    def __init__(self, **changes: object) -> None:
        super().__init__("realtime", **changes)

    def hear(self, kind: str, **fields: Any) -> list[dict[str, Any]]:
        """Give an event to the client; return the events that it sends at once."""
        return [json.loads(one) for one in self.get([json.dumps({"type": kind, **fields})])]

    def delta(self, samples: int, response: str = "r1", item: str = "i1", **fields: Any) -> None:
        sound = base64.b64encode(ramp(samples).tobytes()).decode()
        self.hear("response.output_audio.delta", response_id=response, item_id=item, delta=sound, **fields)

    def said(self, ticks: int) -> list[dict[str, Any]]:
        return [json.loads(one) for one in self.tick(ticks)]


def test_the_handshake_has_the_key_and_the_model() -> None:
    shaken = make_dialect("realtime", options(url="wss://a.example/v1/realtime", model="gpt realtime")).handshake()
    assert shaken.url == "wss://a.example/v1/realtime?model=gpt+realtime"
    assert shaken.headers == {"Authorization": f"Bearer {KEY}"}
    named = make_dialect("realtime", options(url="wss://a.example/rt?model=mine&x=1", model="gpt")).handshake()
    assert named.url == "wss://a.example/rt?model=mine&x=1"


def test_the_session_is_that_of_ga() -> None:
    talk = RealtimeFace()
    client = make_dialect("realtime", options(instructions="Be brief.", voice="two", tools=(TOOL,)))
    (message,) = client.open(0.0)
    (event,) = talk.heard([message])
    assert isinstance(event, client_events.ConfigureSession)
    assert event.config.instructions == "Be brief."
    assert event.config.voice == "two"
    assert [tool.name for tool in event.config.tools] == ["look_up"]
    session = json.loads(message)["session"]
    assert session["type"] == "realtime"
    assert session["output_modalities"] == ["audio"]
    assert session["audio"]["input"] == {"format": {"type": "audio/pcm", "rate": 24_000}}


def test_a_run_can_choose_the_turn_detection() -> None:
    talk = RealtimeFace()
    (message,) = make_dialect("realtime", options(turn_detection="semantic_vad")).open(0.0)
    (event,) = talk.heard([message])
    assert isinstance(event, client_events.ConfigureSession)
    assert json.loads(message)["session"]["audio"]["input"]["turn_detection"] == {"type": "semantic_vad"}


def test_the_microphone_reaches_the_server() -> None:
    """The server hears the person's tone: as loud, and at most 2 ms later."""
    talk = Talk()
    tone = np.rint(9_000 * np.sin(np.arange(25 * USER_TICK) * 2 * np.pi * 440 / 16_000)).astype(np.int16)
    heard = [
        event.pcm
        for tick in tone.reshape(25, USER_TICK)
        for event in talk.face.heard(talk.client.say(tick, 0.0))
        if isinstance(event, client_events.Audio)
    ]
    got = np.frombuffer(b"".join(heard), "<i2").astype(float)
    # The feed and the server's own conversion each hold back or shift by a millisecond or two.
    best = max(float(np.corrcoef(tone[:6_000], got[shift : shift + 6_000])[0, 1]) for shift in range(48))
    assert best > 0.999
    assert abs(np.abs(got[1_000:6_000]).max() - 9_000) < 100


def test_ready_comes_with_session_updated() -> None:
    client = make_dialect("realtime", options())
    client.open(0.0)
    client.receive('{"type": "session.created", "session": {}}', 0.5)
    client.due(1.0)
    assert not client.ready
    client.receive('{"type": "session.updated", "session": {}}', 1.0)
    assert client.ready


def test_a_server_that_never_updates_is_ready_after_a_while() -> None:
    client = make_dialect("realtime", options())
    client.open(0.0)
    client.receive('{"type": "session.created"}', 0.5)
    client.due(2.6)
    assert client.ready


def test_speech_started_drops_and_truncates_at_what_was_played() -> None:
    talk = Talk()
    talk.hear("response.created", response={"id": "r1"})
    talk.delta(24_000)
    talk.tick(7)
    (truncate,) = talk.hear("input_audio_buffer.speech_started", audio_start_ms=0, item_id="u1")
    assert truncate == {"type": "conversation.item.truncate", "item_id": "i1", "content_index": 0, "audio_end_ms": 140}
    assert talk.client.speaker.queued == 0
    talk.delta(480)
    assert talk.client.arrivals[-1].late
    talk.tick(2)
    assert len(talk.heard) == 7 * 480
    assert talk.names("card") == ["clear"]


def test_the_truncation_is_what_the_server_cuts() -> None:
    talk = Talk()
    talk.get(talk.face.sound(1, ramp(24_000)))
    talk.tick(5)
    (cut,) = talk.face.heard(talk.get(talk.face.tell(server_events.SpeechStarted(2, 1.0))))
    assert isinstance(cut, client_events.CutItem)
    assert cut.seconds == pytest.approx(0.1)
    talk.get(talk.face.tell(server_events.Interrupted(1, "One", 0)))
    assert talk.client.texts == {"resp_7_1": "One two three."}
    assert "resp_7_1" in talk.client.finished


def test_the_second_item_of_a_response_is_cut_by_its_own_time() -> None:
    talk = Talk()
    talk.delta(2_400, item="i1")
    talk.delta(24_000, item="i2", content_index=1)
    talk.tick(8)
    (truncate,) = talk.hear("input_audio_buffer.speech_started")
    assert (truncate["item_id"], truncate["content_index"], truncate["audio_end_ms"]) == ("i2", 1, 60)


def test_what_was_heard_to_its_end_is_not_truncated() -> None:
    talk = Talk()
    talk.hear("response.created", response={"id": "r1"})
    talk.delta(480)
    talk.hear("response.done", response={"id": "r1", "status": "completed"})
    talk.tick(2)
    assert talk.hear("input_audio_buffer.speech_started") == []
    assert talk.names("card") == []


def test_a_response_that_runs_dry_is_truncated() -> None:
    """Its text may be ahead of its sound: the server must know that no more was heard."""
    talk = Talk()
    talk.hear("response.created", response={"id": "r1"})
    talk.delta(480)
    talk.tick(3)
    (truncate,) = talk.hear("input_audio_buffer.speech_started")
    assert truncate["audio_end_ms"] == 20
    talk.delta(480)
    assert talk.client.arrivals[-1].late


def test_sound_behind_the_end_of_a_response_is_late() -> None:
    talk = Talk()
    talk.delta(480)
    talk.hear("response.output_audio.done", response_id="r1", item_id="i1")
    assert talk.client.finished == {"r1"}
    talk.delta(480)
    assert not talk.client.arrivals[-1].late
    assert talk.client.finished == set()
    talk.hear("response.done", response={"id": "r1", "status": "cancelled"})
    talk.delta(480)
    assert talk.client.arrivals[-1].late
    assert talk.client.finished == {"r1"}


def test_a_naive_client_ignores_speech_started() -> None:
    talk = Talk(naive=True)
    talk.delta(4_800)
    talk.tick(1)
    assert talk.hear("input_audio_buffer.speech_started") == []
    talk.delta(480)
    assert not talk.client.arrivals[-1].late
    assert len(talk.play_all()) == 5_280


def test_the_names_of_the_beta_and_half_samples() -> None:
    talk = Talk()
    data = ramp(4).tobytes()
    for part in (data[:3], data[3:4], data[4:]):
        talk.hear("response.audio.delta", response_id="r", item_id="i", delta=base64.b64encode(part).decode())
    talk.hear("response.audio_transcript.delta", response_id="r", delta="Hi.")
    talk.hear("response.audio_transcript.done", response_id="r", transcript="Hi.")
    talk.hear("response.output_audio_transcript.done", response_id="s", transcript="Whole.")
    assert np.array_equal(talk.play_all(), ramp(4))
    assert talk.client.texts == {"r": "Hi.", "s": "Whole."}


def _calls(talk: Talk) -> None:
    talk.hear("response.created", response={"id": "r1"})
    item = {"type": "function_call", "call_id": "c1", "name": "look_up", "arguments": "{}"}
    talk.hear("response.output_item.added", response_id="r1", item=item)
    talk.hear("response.function_call_arguments.done", response_id="r1", call_id="c1", arguments="{}")
    talk.hear("response.output_item.done", response_id="r1", item=item)


def test_a_tool_answers_after_its_time_and_asks_for_a_response() -> None:
    talk = Talk(tools=(TOOL,))
    _calls(talk)
    assert talk.client.calling_tool
    talk.hear("response.done", response={"id": "r1", "status": "completed"})
    assert talk.said(24) == []
    result, create = talk.said(1)
    assert result["item"] == {"type": "function_call_output", "call_id": "c1", "output": '{"found": 3}'}
    assert create == {"type": "response.create"}
    assert not talk.client.calling_tool
    assert talk.said(50) == []


def test_the_response_is_asked_for_when_none_is_under_way() -> None:
    talk = Talk(tools=(TOOL,))
    _calls(talk)
    assert [one["type"] for one in talk.said(40)] == ["conversation.item.create"]
    talk.hear("response.done", response={"id": "r1", "status": "completed"})
    assert [one["type"] for one in talk.said(1)] == ["response.create"]


def test_a_person_that_speaks_during_a_call_gets_one_response() -> None:
    talk = Talk(tools=(TOOL,))
    _calls(talk)
    talk.hear("response.done", response={"id": "r1", "status": "completed"})
    talk.hear("input_audio_buffer.speech_started")
    assert [one["type"] for one in talk.said(60)] == ["conversation.item.create"]


def test_the_servers_own_tool_calls() -> None:
    talk = Talk(tools=(TOOL,))
    talk.get(
        talk.face.tell(
            server_events.ReplyStarted(1, 1),
            server_events.ToolCalled(1, "c9", "look_up", "{}"),
            server_events.SpeechDone(1, 0),
        )
    )
    placed, respond = talk.face.heard(talk.tick(25))
    assert isinstance(placed, client_events.PlaceItem)
    assert (placed.item.call_id, placed.item.text) == ("c9", '{"found": 3}')
    assert isinstance(respond, client_events.Respond)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            {"type": "invalid_request_error", "code": "invalid_api_key", "message": "Incorrect: sk-12"},
            "invalid_api_key",
        ),
        ({"type": "insufficient_quota", "code": None, "message": "You ran out."}, 'insufficient_quota: "You ran out."'),
    ],
)
def test_fatal_errors(error: dict[str, Any], said: str) -> None:
    talk = Talk()
    talk.hear("error", error=error)
    assert talk.client.failure == f"the server ended the call: {said}"
    other = Talk()
    other.hear("response.done", response={"id": "r", "status": "failed", "status_details": {"error": error}})
    assert other.client.failure == f"the server ended the call: {said}"


def test_other_errors_do_not_end_the_call() -> None:
    talk = Talk()
    talk.hear("error", error={"type": "invalid_request_error", "code": "response_cancel_not_active", "message": "No."})
    assert talk.client.failure == ""
    assert talk.names("got")[-1] == "error"


def test_a_refused_session_is_a_failure() -> None:
    client = make_dialect("realtime", options())
    client.open(0.0)
    client.receive('{"type": "error", "error": {"code": "unknown_parameter", "message": "No session.type"}}', 0.0)
    assert client.failure == 'the server refused the session: unknown_parameter: "No session.type"'


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (b"{}", "binary message"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not an object"),
        ("{}", "without a type"),
        ('{"type": "response.output_audio.delta", "response_id": "r", "delta": "???"}', "not base64"),
        ('{"type": "response.output_audio.delta", "response_id": "r", "delta": "QUJD="}', "not base64"),
        ('{"type": "response.output_audio.delta", "response_id": "r", "delta": 7}', "not a text in base64"),
        ('{"type": "response.output_audio.delta", "response_id": [], "delta": "AAA="}', "broken response.output_audio"),
        ('{"type": "response.done"}', "broken response.done"),
        ('{"type": "session.updated", "session": {"audio": {"output": {"format": {"rate": 8000}}}}}', "a session"),
    ],
)
def test_garbage_is_one_clear_sentence(message: bytes | str, said: str) -> None:
    talk = Talk()
    assert talk.get([message]) == []
    assert said in talk.client.failure
    assert talk.client.failure.startswith("the server ")


def test_what_is_unknown_is_noted_and_ignored() -> None:
    talk = Talk()
    talk.hear("rate_limits.updated", rate_limits=[])
    assert talk.client.failure == ""
    assert talk.client.occurrences[-1].name == "rate_limits.updated"
    assert talk.client.occurrences[-1].detail == '{"rate_limits":[]}'
