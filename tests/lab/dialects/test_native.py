"""The native client against the server's own codec: what it obeys, what it acknowledges, what it remembers."""

from __future__ import annotations

import msgpack
import numpy as np
import pytest

from voxlane.server.conversation import client_events, server_events
from voxlane.server.conversation.values import SessionConfig
from voxlane.server.protocols import dialect
from voxlane.server.protocols.native import read_hello
from voxlane_lab.dialects.choice import make_dialect
from voxlane_lab.dialects.dialect import LabTool
from voxlane_lab.values import Arrival

from .faces import KEY, Card, NativeFace, options, ramp

CLOCK = LabTool("look_up", "Looks something up.", '{"found": 3}', 0.5)


class Talk(Card):
    """A card whose server is a NativeFace."""

    face: NativeFace

    def __init__(self, **changes: object) -> None:
        super().__init__("native", **changes)

    def tell(self, *events: server_events.ServerEvent | dialect.Outgoing) -> list[object]:
        """Tell the client; return what the server hears at once."""
        return self.face.heard(self.get(self.face.tell(*events)))

    def speak(self, epoch: int, samples: int) -> None:
        self.get(self.face.sound(epoch, ramp(samples)))

    def pass_ticks(self, count: int) -> list[object]:
        return self.face.heard(self.tick(count))


def test_the_hello_asks_for_what_the_run_wants() -> None:
    client = make_dialect("native", options(instructions="Be brief.", voice="two", tools=(CLOCK,)))
    (message,) = client.open(0.0)
    hello = read_hello(message, SessionConfig())
    assert (hello.input.codec, hello.input.rate) == ("pcm16", 16_000)
    assert (hello.output.codec, hello.output.rate) == ("pcm16", 24_000)
    assert hello.config.instructions == "Be brief."
    assert hello.config.voice == "two"
    assert [tool.name for tool in hello.config.tools] == ["look_up"]
    assert hello.key == ""
    shaken = client.handshake()
    assert shaken.headers == {"Authorization": f"Bearer {KEY}"}
    assert tuple(shaken.subprotocols) == ("voxlane.v1",)


def test_the_microphone_reaches_the_server() -> None:
    talk = Talk()
    pcm = ramp(320)
    assert talk.face.heard(talk.client.say(pcm, 0.0)) == [client_events.Audio(pcm.tobytes())]


def test_acknowledgements_come_every_100_ms_and_at_the_end() -> None:
    talk = Talk()
    talk.speak(1, 6_000)  # 250 ms
    assert talk.pass_ticks(4) == []
    assert talk.pass_ticks(1) == [client_events.Played(1, 2_400)]
    assert talk.pass_ticks(5) == [client_events.Played(1, 4_800)]
    assert talk.pass_ticks(3) == [client_events.Played(1, 6_000), dialect.Starved(1)]
    assert talk.pass_ticks(10) == []


def test_hold_stops_at_the_next_tick_and_release_goes_on_with_the_next_sample() -> None:
    talk = Talk()
    talk.speak(1, 24_000)
    talk.tick(3)
    assert talk.tell(server_events.Hold(1)) == [client_events.Played(1, 1_440)]
    talk.speak(1, 2_400)  # sound that still comes is queued
    assert talk.pass_ticks(10) == []
    assert len(talk.heard) == 1_440
    talk.tell(server_events.Release(1))
    talk.play_all()
    expected = np.concatenate((ramp(24_000), ramp(2_400)))
    assert np.array_equal(talk.heard, expected)
    assert talk.names("card") == ["hold", "release"]


def test_a_hold_of_an_old_reply_does_nothing() -> None:
    talk = Talk()
    talk.speak(1, 480)
    talk.speak(2, 4_800)
    talk.tick(2)
    talk.tell(server_events.Hold(1))
    assert not talk.client.speaker.held


def test_duck_lowers_until_release() -> None:
    talk = Talk()
    talk.speak(1, 24_000)
    talk.tick(1)
    talk.tell(server_events.Duck(1, 0.25))
    assert talk.names("card") == ["lowered"]
    talk.tick(3)
    lowered = talk.heard[960:1_920] / ramp(24_000)[960:1_920]
    assert np.allclose(lowered, 0.25, atol=0.01)
    talk.tell(server_events.Release(1))
    talk.tick(3)
    assert np.array_equal(talk.heard[2_400:], ramp(24_000)[2_400 : len(talk.heard)])


def test_duck_ends_with_its_reply() -> None:
    talk = Talk()
    talk.speak(1, 960)
    talk.tell(server_events.SpeechDone(1, 960), server_events.Duck(1, 0.25))
    talk.tick(3)
    talk.speak(2, 4_800)
    talk.play_all()
    assert np.array_equal(talk.heard[-4_000:], ramp(4_800)[-4_000:])


def test_interrupted_drops_the_reply_and_refuses_what_still_comes() -> None:
    talk = Talk()
    talk.speak(3, 24_000)
    talk.tick(2)
    said = talk.tell(server_events.Interrupted(3, "Once upon", 0))
    assert said == [client_events.Played(3, 960)]
    talk.speak(3, 480)
    assert talk.client.arrivals[-1] == Arrival(talk.at_s, "3", 24_000, 480, late=True)
    talk.tick(3)
    assert len(talk.heard) == 960
    assert talk.client.history == [("assistant", "Once upon")]
    assert "3" in talk.client.finished
    talk.speak(4, 480)
    talk.tick(1)
    assert talk.runs[-1].response == "4"


def test_interrupted_ends_a_hold() -> None:
    talk = Talk()
    talk.speak(1, 24_000)
    talk.tick(2)
    talk.tell(server_events.Hold(1), server_events.Interrupted(1, "", 0))
    talk.speak(2, 480)
    talk.tick(1)
    assert talk.runs[-1].response == "2"
    assert talk.client.history == []


def test_a_naive_client_tells_what_it_truly_played() -> None:
    talk = Talk(naive=True)
    talk.speak(1, 4_800)
    talk.tick(1)
    talk.tell(server_events.Hold(1), server_events.Interrupted(1, "", 0))
    said = talk.pass_ticks(9)
    assert [one.samples for one in said if isinstance(one, client_events.Played)] == [2_880, 4_800]
    assert talk.names("card") == []


def test_texts_history_and_ends() -> None:
    talk = Talk()
    talk.tell(
        server_events.UserTurn(1, "Hello?"),
        server_events.ReplyStarted(1, 1),
        server_events.ReplyText(1, "Good "),
        server_events.ReplyText(1, "morning."),
    )
    talk.speak(1, 480)
    assert talk.client.finished == set()
    talk.tell(server_events.SpeechDone(1, 480), server_events.ReplyDone(1, "Good morning."))
    assert talk.client.texts == {"1": "Good morning."}
    assert talk.client.history == [("user", "Hello?"), ("assistant", "Good morning.")]
    assert talk.client.finished == {"1"}


def test_a_tool_answers_after_its_time() -> None:
    talk = Talk(tools=(CLOCK,))
    talk.tell(server_events.ToolCalled(1, "call-1", "look_up", "{}"))
    assert talk.client.calling_tool
    assert talk.pass_ticks(24) == []
    assert talk.pass_ticks(1) == [client_events.ToolResult("call-1", '{"found": 3}')]
    assert not talk.client.calling_tool
    assert talk.pass_ticks(50) == []


def test_an_unknown_tool_is_answered_at_once() -> None:
    talk = Talk()
    talk.tell(server_events.ToolCalled(1, "call-1", "launch", "{}"))
    (result,) = talk.pass_ticks(1)
    assert isinstance(result, client_events.ToolResult)
    assert "error" in result.output


def test_the_token_stays_out_of_the_log() -> None:
    assert "resume-me" not in repr(Talk().client.occurrences)


def test_an_error_is_a_complaint_once_the_call_runs() -> None:
    talk = Talk()
    talk.tell(server_events.Fault("engine_lost", "The engine died.", True))
    assert talk.client.failure == ""
    assert (talk.client.occurrences[-1].name, talk.client.occurrences[-1].detail[:11]) == ("error", "engine_lost")


def test_a_refusal_is_a_failure() -> None:
    client = make_dialect("native", options())
    client.open(0.0)
    client.receive(msgpack.packb(["error", 0, "unauthorized", "The key is wrong.", False, 0]), 0.0)
    assert client.failure == 'the server refused the call: unauthorized: "The key is wrong."'


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("text", "a text where this dialect has only binary messages"),
        (b"\xc1", "not msgpack"),
        (b"\x01", "not an array"),
        (msgpack.packb([]), "not an array"),
        (msgpack.packb(["audio", 1, 1, 0, "text", []]), "its sound is not bin"),
        (msgpack.packb(["audio", 1, 1, 0, b"\0\0\0", []]), "half a sample"),
        (msgpack.packb(["audio", 1, -1, 0, b"\0\0", []]), "broken audio: epoch"),
        (msgpack.packb(["hold", 1]), "broken hold"),
        (msgpack.packb(["duck", 1, 1, float("nan")]), "broken duck"),
        (msgpack.packb(["ready", 1, {"output": {"codec": "opus", "rate": 48000}}]), "a session"),
    ],
)
def test_garbage_is_one_clear_sentence(message: bytes | str, said: str) -> None:
    talk = Talk()
    assert talk.get([message]) == []
    assert said in talk.client.failure
    assert talk.client.failure.startswith("the server ")


def test_what_is_unknown_is_noted_and_ignored() -> None:
    talk = Talk()
    talk.get([msgpack.packb(["weather", 9, "rain"]), msgpack.packb(["hold", 10, 1, "and more"])])
    assert talk.client.failure == ""
    assert talk.names("got")[-2:] == ["weather", "hold"]


def test_bye() -> None:
    talk = Talk()
    assert talk.face.heard(talk.client.close(1.0)) == [dialect.Bye()]
