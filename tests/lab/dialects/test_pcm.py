"""Plain PCM: the mapping file, its errors, and servers of several shapes."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import numpy as np
import pytest

from voxlane_lab.dialects import pcm
from voxlane_lab.dialects.choice import make_dialect
from voxlane_lab.dialects.dialect import LabDialect
from voxlane_lab.errors import LabError

from .faces import KEY, options, ramp


def _files() -> list[str]:
    """Return the mapping files of the module's docstring."""
    assert pcm.__doc__
    files = re.findall(r"\(file \d\):\n\n((?:    .*\n|\n)+)", pcm.__doc__)
    return [re.sub(r"^    ", "", one, flags=re.MULTILINE) for one in files]


def client(mapping: str = "", **changes: Any) -> LabDialect:
    return make_dialect("pcm", options(mapping=mapping, **changes))


def b64(samples: int, first: int = 1) -> str:
    return base64.b64encode(ramp(samples, first).tobytes()).decode()


def tell(one: LabDialect, **body: Any) -> None:
    one.receive(json.dumps(body), 0.0)


def test_without_a_file_sound_is_binary_at_16_khz() -> None:
    one = client()
    assert one.open(0.0) == []
    assert one.ready
    assert one.say(ramp(320), 0.0) == [ramp(320).tobytes()]
    assert one.speaker.rate == 16_000
    data = ramp(100).tobytes()
    one.receive(data[:5], 0.1)
    one.receive(data[5:], 0.2)
    assert np.array_equal(one.speaker.pull(100).pcm, ramp(100))
    one.receive(data, 0.3)
    tell(one, type="clear")
    assert one.speaker.queued == 0
    assert one.close(1.0) == []
    assert one.handshake().headers == {"Authorization": f"Bearer {KEY}"}


def test_the_first_file_of_the_docstring() -> None:
    one = client(_files()[0])
    (hello,) = one.open(0.0)
    assert json.loads(hello) == {"type": "start", "sample_rate": 16_000, "key": KEY}
    assert not one.ready
    tell(one, type="started")
    assert one.ready
    assert one.names_responses
    tell(one, type="audio", turn_id=4, data={"pcm": b64(480)})
    tell(one, type="transcript", turn_id=4, text="Hello ")
    tell(one, type="transcript", turn_id=4, text="you.")
    tell(one, type="audio_end", turn_id=4)
    tell(one, type="audio", turn_id="5", data={"pcm": b64(480)})
    assert [(one.response, one.offset, one.samples) for one in one.arrivals] == [("4", 0, 480), ("5", 0, 480)]
    assert one.texts == {"4": "Hello you."}
    assert one.finished == {"4"}
    assert one.speaker.rate == 24_000
    tell(one, type="interrupted")
    assert one.speaker.queued == 0


def test_the_second_file_of_the_docstring() -> None:
    one = client(_files()[1])
    assert one.handshake().headers == {"X-Api-Key": KEY}
    one.open(0.0)
    (message,) = one.say(ramp(320), 0.0)
    body = json.loads(message)
    assert body["event"] == "input"
    assert len(base64.b64decode(body["sound"]["base64"])) == 320
    one.receive(ramp(160).tobytes(), 0.0)
    assert one.arrivals[0].response == ""
    assert not one.names_responses
    tell(one, event="flush")
    assert one.speaker.queued == 0
    (bye,) = one.close(1.0)
    assert json.loads(bye) == {"event": "end"}
    tell(one, event="failure", reason="full")
    assert one.failure == "the server ended the call: full"


def test_binary_sound_belongs_to_the_response_that_was_named_last() -> None:
    one = client('[receive]\nresponse = "/id"')
    one.open(0.0)
    tell(one, type="begin", id="a")
    one.receive(ramp(10).tobytes(), 0.0)
    tell(one, type="begin", id="b")
    one.receive(ramp(10).tobytes(), 0.0)
    assert [arrival.response for arrival in one.arrivals] == ["a", "b"]


def test_paths_go_through_lists_and_escapes() -> None:
    one = client('[receive]\nform = "json"\naudio = "/parts/1/a~1b"')
    one.open(0.0)
    tell(one, parts=[{}, {"a/b": b64(10)}])
    tell(one, parts=[{}])
    assert [arrival.samples for arrival in one.arrivals] == [10]
    assert one.failure == ""


def test_the_message_of_the_mapping_is_not_changed() -> None:
    one = client('[send]\nform = "json"\nmessage = { a = { b = ["$KEY"] } }\naudio = "/a/c"')
    first, second = one.say(ramp(320), 0.0) + one.say(ramp(320, 9), 0.0)
    assert json.loads(first)["a"] == {"b": [KEY], "c": base64.b64encode(ramp(320).tobytes()).decode()}
    assert first != second


@pytest.mark.parametrize("rate", [8_000, 8_050, 22_050, 44_100, 47_950, 48_000])
def test_the_microphone_has_20_ms_a_message_at_every_rate(rate: int) -> None:
    one = client(f"[send]\nrate = {rate}")
    sizes = {len(one.say(ramp(320), 0.0)[0]) for _ in range(60)}
    assert sizes == {rate // 50 * 2}


@pytest.mark.parametrize(
    ("mapping", "said"),
    [
        ("receive = [", "the mapping: not TOML"),
        ("[recieve]", "recieve is not known; known are headers, send, receive"),
        ("[receive]\nrate = 11025", "receive.rate must be a multiple of 50 from 8000 to 48000"),
        ("[receive]\nrate = 4000", "receive.rate must be a multiple of 50 from 8000 to 48000"),
        ('[send]\nform = "opus"', "send.form must be one of binary, json"),
        ('[receive]\naudio = "data"', "receive.audio must be a path such as /data/audio"),
        ("[send]\nhello = 3", "send.hello must be an object"),
        ('[send]\nmessage = { a = 1 }\naudio = "/a/b"', "send.audio leads through a value of send.message"),
    ],
)
def test_a_wrong_file_is_one_clear_line(mapping: str, said: str) -> None:
    with pytest.raises(LabError) as caught:
        client(mapping)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("mapping", "message", "said"),
    [
        ("", "not JSON", "not JSON"),
        ("", "3", "not an object"),
        ('receive = { form = "json" }', b"\0\0", "binary message"),
        ('receive = { form = "json" }', '{"audio": "?"}', "not base64"),
        ('receive = { form = "json", audio_type = "a" }', '{"type": "a"}', "not a text in base64"),
    ],
)
def test_garbage_is_one_clear_sentence(mapping: str, message: bytes | str, said: str) -> None:
    one = client(mapping)
    one.open(0.0)
    assert one.receive(message, 0.0) == []
    assert said in one.failure
    assert one.failure.startswith("the server ")


def test_what_is_unknown_is_noted_and_ignored() -> None:
    one = client()
    tell(one, type="weather", now="rain")
    tell(one, now="rain")
    assert one.failure == ""
    assert [(note.name, note.side) for note in one.occurrences] == [("weather", "got"), ("message", "got")]
