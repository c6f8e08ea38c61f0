"""What planted agents say, and how their faces read and write."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgpack
import numpy as np
import pytest

from voxlane.codecs.g711 import decode_mulaw
from voxlane_lab.agents.acts import Face, ResponseBegins, ResponseCut, ResponseSound, TurnBegins
from voxlane_lab.agents.faces.native import NativeFace
from voxlane_lab.agents.faces.pcm import PcmFace
from voxlane_lab.agents.faces.realtime import RealtimeFace
from voxlane_lab.agents.faces.twilio import TwilioFace
from voxlane_lab.agents.voice import NUMBERS, AgentClip, AgentVoice, at_rate, spoken_wanted
from voxlane_lab.dialects.wire import NotUnderstood
from voxlane_lab.sounds.corpus import Corpus
from voxlane_lab.sounds.speech import Wanted
from voxlane_lab.values import Clip

VOICE = AgentVoice.synthetic(1)
START = {"event": "start", "start": {"streamSid": "MZ1"}, "streamSid": "MZ1"}


class TonesForWords(Corpus):
    """A corpus without a model: a word is 200 ms of noise, a comma or a full stop 300 ms of silence."""

    def speech(self, wanted: Wanted) -> Clip:
        assert wanted in spoken_wanted()
        text = str(wanted.parts[0])
        chance = np.random.default_rng(len(text))
        parts, voiced, at = [np.zeros(480, np.int16)], [], 480
        for word in text.split():
            parts.append(chance.normal(0, 2000, 3200).astype(np.int16))
            voiced.append((at, at + 3200))
            rest = 4800 if word[-1] in ".,?" else 0
            parts.append(np.zeros(rest, np.int16))
            at += 3200 + rest
        return Clip("speech", np.concatenate(parts), tuple(voiced), text)


# ---- the voice


@pytest.mark.parametrize("voice", [VOICE, AgentVoice.spoken(TonesForWords())], ids=["tones", "spoken"])
def test_every_sample_is_audible(voice: AgentVoice) -> None:
    for clip in voice.clips:
        assert len(clip.pcm) % 480 == 0
        frames = clip.pcm.reshape(-1, 240).astype(np.float64)
        level_db = 10 * np.log10((frames**2).mean(axis=1) / 32768**2)
        assert level_db.min() > -48
        assert (level_db < -38).astype(int).mean() < 0.5
        assert abs(clip.pcm.astype(int)).max() < 32767
    assert all(len(story.pcm) >= 20 * 24_000 for story in voice.stories)


@pytest.mark.parametrize("voice", [VOICE, AgentVoice.spoken(TonesForWords())], ids=["tones", "spoken"])
def test_numbers_are_known_to_the_sample(voice: AgentVoice) -> None:
    count = voice.count
    assert count.words == ", ".join(NUMBERS)
    assert [count.words[one.start : one.end] for one in count.spans] == list(NUMBERS)
    assert [count.words_before(end) for end in count.ends] == list(range(1, 21))
    assert [count.words_before(end - 1) for end in count.ends] == list(range(20))
    assert count.text_before(count.ends[2]) == "one, two, three"
    assert count.text_before(0) == ""
    assert voice.recalls[6].words.endswith(" seven")


def test_long_pauses_are_shortened() -> None:
    (clip,) = AgentVoice.spoken(TonesForWords()).answers[:1]
    words = len(clip.words.split())
    pauses = sum(clip.words.count(sign) for sign in ".,?") - 1
    assert len(clip.pcm) / 24_000 == pytest.approx(0.2 * words + 0.12 * pauses, abs=0.021)


def test_the_seed_is_the_voice() -> None:
    assert np.array_equal(AgentVoice.synthetic(7).count.pcm, AgentVoice.synthetic(7).count.pcm)
    assert not np.array_equal(AgentVoice.synthetic(7).stories[0].pcm[:9000], VOICE.stories[0].pcm[:9000])


# ---- the faces


def piece(clip: AgentClip, first: int, end: int) -> ResponseSound:
    return ResponseSound(1, clip, first, end)


def test_twilio_cuts_are_exact() -> None:
    face = TwilioFace()
    face.read(json.dumps(START))
    clip = VOICE.answers[0]
    sent = [message for first in range(0, 4800, 240) for message in face.write(piece(clip, first, first + 240))]
    payloads = [json.loads(str(one))["media"]["payload"] for one in sent if "media" in str(one)]
    sound = decode_mulaw(b"".join(map(base64.b64decode, payloads)))
    assert len(sound) == 1600
    assert np.abs(sound - at_rate(clip, 8_000)[:1600] / 32768).max() < 0.02


def test_twilio_marks_of_dropped_sound_are_not_played() -> None:
    face = TwilioFace()
    face.read(json.dumps(START))
    clip = VOICE.answers[0]
    for first in (0, 480):
        face.write(piece(clip, first, first + 480))

    def returned(name: str) -> Any:
        return face.read(json.dumps({"event": "mark", "streamSid": "MZ1", "mark": {"name": name}})).played

    assert returned("1:480") == (1, 480)
    assert returned("1:480") is None
    assert returned("of a stranger") is None
    (clear,) = face.write(ResponseCut(1, 1, clip, 480, "", flush=True))
    assert json.loads(str(clear)) == {"event": "clear", "streamSid": "MZ1"}
    assert returned("1:960") is None


def test_realtime_flushes_only_when_it_stops() -> None:
    face = RealtimeFace()
    clip = VOICE.answers[0]
    assert kinds(face.write(TurnBegins(1, 0.5))) == ["input_audio_buffer.speech_started"]
    assert kinds(face.write(ResponseBegins(1, 1, clip)))[0] == "response.created"
    assert face.write(TurnBegins(2, 3.0)) == []
    cut = face.write(ResponseCut(1, 1, clip, 480, "", flush=True))
    assert kinds(cut)[0] == "input_audio_buffer.speech_started"
    done = json.loads(str(cut[-1]))["response"]
    assert (done["id"], done["status"]) == ("resp_1", "cancelled")
    assert done["status_details"]["reason"] == "turn_detected"


@pytest.mark.parametrize(
    "session",
    [
        {"input_audio_format": "g711_ulaw", "output_audio_format": "g711_ulaw"},
        {"audio": {"input": {"format": {"type": "audio/pcmu"}}, "output": {"format": {"type": "audio/pcmu"}}}},
    ],
)
def test_realtime_speaks_g711(session: dict[str, Any]) -> None:
    face = RealtimeFace()
    face.read(json.dumps({"type": "session.update", "session": session}))
    sound = face.read(
        json.dumps({"type": "input_audio_buffer.append", "audio": base64.b64encode(bytes(1600)).decode()})
    )
    assert sound.sound is not None
    assert len(sound.sound) == pytest.approx(3200, abs=40)
    *_, delta = face.write(piece(VOICE.answers[0], 0, 480))
    assert len(base64.b64decode(json.loads(str(delta))["delta"])) == 160


def test_realtime_takes_the_clients_word_for_what_was_played() -> None:
    face = RealtimeFace()
    told = face.read(json.dumps({"type": "conversation.item.truncate", "item_id": "item_3", "audio_end_ms": 100}))
    assert told.played == (3, 2423)
    assert kinds(list(told.replies)) == ["conversation.item.truncated"]


def test_native_tells_words_and_what_was_heard() -> None:
    face = NativeFace()
    (ready,) = face.read(msgpack.packb(("hello", {}))).replies
    assert msgpack.unpackb(bytes(ready, "utf8") if isinstance(ready, str) else ready)[0] == "ready"
    clip = VOICE.count
    (sound,) = face.write(ResponseSound(1, clip, 0, clip.ends[1]))
    assert isinstance(sound, bytes)
    assert [word[:2] for word in msgpack.unpackb(sound)[5]] == [[0, 3], [5, 8]]
    interrupted, done = face.write(ResponseCut(1, 1, clip, clip.ends[0], "one", flush=True))
    assert isinstance(interrupted, bytes)
    assert isinstance(done, bytes)
    assert msgpack.unpackb(interrupted)[2:] == [1, "one", clip.ends[0]]
    assert msgpack.unpackb(done)[2:] == [1, "interrupted"]
    assert face.read(msgpack.packb(("played", 1, 4800, 0))).played == (1, 4800)


@pytest.mark.parametrize(
    ("face", "message"),
    [
        (NativeFace(), "text"),
        (NativeFace(), b"\xff"),
        (RealtimeFace(), b"binary"),
        (RealtimeFace(), "{}"),
        (RealtimeFace(), '{"type": "session.update"}'),
        (RealtimeFace(), '{"type": "session.update", "session": {"input_audio_format": "mp3"}}'),
        (RealtimeFace(), '{"type": "input_audio_buffer.append", "audio": "%%"}'),
        (RealtimeFace(), '{"type": "input_audio_buffer.append", "audio": 7}'),
        (RealtimeFace(), '{"type": "input_audio_buffer.append", "audio": "AA=="}'),
        (RealtimeFace(), '{"type": "conversation.item.truncate", "item_id": "item_x", "audio_end_ms": 1}'),
        (TwilioFace(), '{"event": "media"}'),
        (TwilioFace(), "[1]"),
        (PcmFace(), b"\0"),
        (PcmFace(), bytes(70_000)),
    ],
)
def test_garbage_is_refused(face: Face, message: str | bytes) -> None:
    with pytest.raises(NotUnderstood):
        face.read(message)


def test_unknown_messages_say_nothing() -> None:
    for face, message in (
        (RealtimeFace(), '{"type": "response.create"}'),
        (PcmFace(), '{"type": "hello"}'),
        (TwilioFace(), '{"event": "surprise"}'),
    ):
        told = face.read(message)
        assert (told.replies, told.sound, told.played, told.ended) == ((), None, None, False)


def kinds(messages: list[Any]) -> list[str]:
    return [json.loads(str(one))["type"] for one in messages]
