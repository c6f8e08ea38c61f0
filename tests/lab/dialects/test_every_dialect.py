"""What holds in every dialect: sound is played as it was sent, a clear drops it, and garbage never raises."""

from __future__ import annotations

import base64
import json
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import msgpack
import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings

from voxlane_lab.dialects.choice import DIALECTS, make_dialect
from voxlane_lab.values import USER_TICK, Message

from .faces import FACES, KEY, Card, options, ramp, through_the_line

NAMES = sorted(FACES)
KINDS = {
    "native": [
        *("ready", "audio", "reply_text", "audio_done", "duck", "hold", "release", "interrupted", "reply_done"),
        *("user_turn", "tool_call", "error", "state", "new_in_2030"),
    ],
    "realtime": [
        *("session.created", "session.updated", "response.output_audio.delta", "response.output_audio.done"),
        *("response.output_audio_transcript.delta", "response.output_audio_transcript.done", "response.created"),
        *("response.done", "response.output_item.added", "response.output_item.done", "error"),
        *("response.function_call_arguments.done", "input_audio_buffer.speech_started", "response.audio.delta"),
    ],
    "twilio": ["media", "mark", "clear", "hello"],
    "pcm": ["clear", "audio"],
}
PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=8)
VALUES = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
)
FIELDS = st.sampled_from(
    [
        *("delta", "response_id", "item_id", "response", "id", "item", "type", "call_id", "name", "error", "code"),
        *("session", "media", "payload", "mark", "audio", "status", "status_details", "output", "format", "message"),
    ]
)
BODIES = st.recursive(
    st.dictionaries(FIELDS, PLAIN, max_size=4), lambda inner: st.dictionaries(FIELDS, inner | PLAIN, max_size=4)
)


def test_there_is_a_sentence_for_each() -> None:
    assert sorted(DIALECTS) == NAMES


@pytest.mark.property
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=examples(120), deadline=None)
@given(cuts=st.lists(st.integers(1, 2_999), max_size=12), data=st.data())
def test_any_split_plays_the_same_samples(name: str, cuts: list[int], data: st.DataObject) -> None:
    """Sound that comes in any pieces, at any time, is played sample by sample; its places follow each other."""
    card, sound = Card(name), ramp(3_000)
    places = [0, *sorted(set(cuts)), len(sound)]
    for first, last in pairwise(places):
        card.get(card.face.sound(1, sound[first:last]))
        card.tick(data.draw(st.integers(0, 3)))
    assert np.array_equal(card.play_all(), through_the_line(name, sound))
    assert sum(one.samples for one in card.client.arrivals) == len(sound)
    assert not any(one.late for one in card.client.arrivals)
    for before, after in pairwise(card.runs):
        assert (after.response, after.offset) == (before.response, before.offset + before.samples)
    assert card.runs[0].offset == 0


@pytest.mark.property
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=examples(120), deadline=None)
@given(sent=st.integers(1, 8_000), ticks=st.integers(0, 10), late=st.integers(0, 2_000), fresh=st.integers(1, 3_000))
def test_after_a_clear_nothing_of_it_is_played(name: str, sent: int, ticks: int, late: int, fresh: int) -> None:
    """What waits when the server stops a response is never played; the next response is, all of it."""
    card = Card(name)
    first, second = through_the_line(name, ramp(sent)), through_the_line(name, ramp(fresh, 12_000))
    card.get(card.face.sound(1, ramp(sent)))
    card.tick(ticks)
    before = card.heard
    card.get(card.face.stop(1))
    assert card.client.speaker.queued == 0
    card.tick(2)
    card.get(card.face.sound(2, ramp(fresh, 12_000)))
    heard = card.play_all()
    assert np.array_equal(before, first[: len(before)])
    assert np.array_equal(heard[len(before) :], second)
    if card.client.names_responses:
        assert {run.response for run in card.runs if run.samples} <= {_response(name, 1), _response(name, 2)}
    else:
        assert card.runs[-1].offset + card.runs[-1].samples == sent + fresh


def _response(name: str, number: int) -> str:
    return f"resp_7_{number}" if name == "realtime" else str(number)


@pytest.mark.parametrize("name", NAMES)
def test_a_naive_loudspeaker_plays_to_the_end(name: str) -> None:
    card = Card(name, naive=True)
    card.get(card.face.sound(1, ramp(8_000)))
    card.tick(2)
    card.get(card.face.stop(1))
    assert np.array_equal(card.play_all(), through_the_line(name, ramp(8_000)))
    assert "clear" not in card.names("card")


@pytest.mark.parametrize("name", NAMES)
def test_a_clear_is_in_the_event_log(name: str) -> None:
    card = Card(name)
    card.get(card.face.sound(1, ramp(8_000)))
    card.tick()
    card.get(card.face.stop(1))
    (clear,) = [one for one in card.client.occurrences if one.side == "card" and one.name == "clear"]
    rate = card.client.speaker.rate
    assert clear.detail == f"{(8_000 - rate // 50) * 1000 // rate} ms dropped"


@pytest.mark.parametrize("name", NAMES)
def test_every_tick_of_the_microphone_is_20_ms(name: str) -> None:
    """The messages of the microphone have one length, and carry no silence in place of sound."""
    card = Card(name)
    tone = np.rint(8_000 * np.sin(np.arange(50 * USER_TICK) * 0.2)).astype(np.int16)
    sizes = set()
    for tick in tone.reshape(50, USER_TICK):
        (message,) = card.client.say(tick, card.at_s)
        sizes.add(len(_sound(name, message)))
    assert len(sizes) == 1
    assert sizes.pop() == {"native": 640, "realtime": 960, "twilio": 160, "pcm": 640}[name]
    assert "audio" not in " ".join(card.names("sent"))


def _sound(name: str, message: Message) -> bytes:
    if name == "native":
        return msgpack.unpackb(message)[1]
    if name == "pcm":
        assert isinstance(message, bytes)
        return message
    body = json.loads(message)
    return base64.b64decode(body["audio"] if name == "realtime" else body["media"]["payload"])


@pytest.mark.property
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=examples(400), deadline=None)
@given(messages=st.lists(st.binary(max_size=40) | st.text(max_size=40), max_size=3))
def test_noise_never_raises(name: str, messages: list[Message]) -> None:
    card = Card(name)
    card.get(messages)
    _is_sound(card)


@pytest.mark.property
@pytest.mark.parametrize("name", ["realtime", "twilio", "pcm"])
@settings(max_examples=examples(900), deadline=None)
@given(data=st.data())
def test_json_with_wrong_fields_never_raises(name: str, data: st.DataObject) -> None:
    mapping = 'receive = { form = "json", text = "/delta", error = "error", response = "/id" }' if name == "pcm" else ""
    client = make_dialect(name, options(mapping=mapping))
    client.open(0.0)
    for _ in range(3):
        key = "event" if name == "twilio" else "type"
        body: dict[str, Any] = {**data.draw(BODIES), key: data.draw(st.sampled_from(KINDS[name]))}
        client.receive(json.dumps(body), 0.0)
        client.due(0.1)
        client.speaker.pull(480)
    assert "\n" not in client.failure


@pytest.mark.property
@settings(max_examples=examples(900), deadline=None)
@given(
    messages=st.lists(
        st.tuples(
            st.sampled_from(KINDS["native"]), st.lists(VALUES | st.binary(max_size=8) | st.integers(0, 9), max_size=5)
        ),
        max_size=4,
    )
)
def test_msgpack_with_wrong_fields_never_raises(messages: list[tuple[str, list[Any]]]) -> None:
    card = Card("native")
    card.get([msgpack.packb([kind, *fields]) for kind, fields in messages])
    _is_sound(card)


def _is_sound(card: Card) -> None:
    """Check that a client that has got anything at all still plays and speaks."""
    card.tick(2)
    card.client.say(np.zeros(USER_TICK, np.int16), card.at_s)
    card.client.close(card.at_s)
    assert "\n" not in card.client.failure
    if card.client.failure:
        before = len(card.client.arrivals)
        card.get(card.face.sound(7, ramp(100)))
        assert len(card.client.arrivals) == before


@pytest.mark.parametrize("name", NAMES)
def test_the_key_is_never_told(name: str) -> None:
    """A server that repeats the key does not bring it into the log or into a failure."""
    mapping = '[send]\nhello = { key = "$KEY" }\n[receive]\nerror = "error"\nerror_text = "/error/message"'
    client = make_dialect(name, options(mapping=mapping))
    opening = client.open(0.0)
    said = f"wrong key {KEY} given"
    told: dict[str, Message] = {
        "native": msgpack.packb(["error", 1, "refused", said, False, 0]),
        "realtime": json.dumps({"type": "error", "error": {"code": "refused", "message": said}}),
        "twilio": json.dumps({"event": "error", "why": said}),
        "pcm": json.dumps({"type": "error", "error": {"message": said}}),
    }
    client.receive(told[name], 0.0)
    client.close(0.0)
    shown = repr(client.occurrences) + client.failure
    for written in (KEY, json.dumps(KEY)[1:-1], "cret/"):
        assert written not in shown
    assert name == "twilio" or "[key]" in client.failure
    sent = "".join(str(one) for one in opening) + repr(client.handshake())
    assert "cret/" in sent, "the server never got the key"
