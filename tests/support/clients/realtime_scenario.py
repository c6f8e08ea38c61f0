"""One conversation for every client of the Realtime API, and checks of what passed over its wire.

A question is asked and answered; a story is asked for and cut short by another question, which is answered; then a
tool is called and its result used. It works with any client: only the messages between client and server are checked.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

import numpy as np
from realtime_grammar import Grammar
from wiretap import Wire

from voxlane.codecs.wav import decode_wav, encode_wav

RATE = 24_000
QUESTION = "What color is the sky on a clear day?"
STORY = "Tell me a long story about the ocean."
CUT_IN = "Wait, what color is the grass?"
WEATHER = "What is the weather in Paris?"
CLIPS = {"question": QUESTION, "story": STORY, "cut_in": CUT_IN, "weather": WEATHER}

CUT = "conversation.item.truncated"

Hear = Callable[[bytes], list[tuple[str, float]]]
"""A recogniser: 16-bit samples at 24 kHz to words, each with the second at which it ends."""


def record(client: Any) -> dict[str, bytes]:
    """Return the person's clips in the server's own voice: 16-bit samples at 24 kHz without silence around them."""
    clips = {}
    for name, text in CLIPS.items():
        spoken = client.audio.speech.create(model="tts-1", voice="alloy", input=text, response_format="wav")
        samples, rate = decode_wav(spoken.content)
        assert rate == RATE
        loud = np.flatnonzero(np.abs(samples) > 0.02)
        clips[name] = (np.clip(samples[loud[0] : loud[-1] + 1], -1, 1) * 32767).astype("<i2").tobytes()
    return clips


def steady_key(client: Any) -> str:
    """Return a client secret with a session that answers deterministically and fast.

    The API no longer has a temperature, and most clients cannot send one; the secret's session can hold ours.
    """
    session = {"type": "realtime", "temperature": 0, "audio": {"output": {"speed": 1.3}}}
    return str(client.realtime.client_secrets.create(session=session).value)


def listener(client: Any) -> Hear:
    """Return a recogniser: the server's own, over HTTP."""

    def hear(pcm: bytes) -> list[tuple[str, float]]:
        wav = encode_wav(np.frombuffer(pcm, "<i2").astype(np.float32) / 32768, RATE)
        heard = client.audio.transcriptions.create(
            model="whisper-1", file=("heard.wav", wav), response_format="verbose_json", timestamp_granularities=["word"]
        )
        return [(word.word, word.end) for word in heard.words]

    return hear


def words(text: str) -> list[str]:
    """Return the words alone."""
    return re.findall(r"[a-z0-9']+", text.lower())


def likeness(one: str, other: str) -> float:
    """Return the similarity of two texts, word by word: 1 for the same words."""
    return SequenceMatcher(None, words(one), words(other), autojunk=False).ratio()


@dataclass(frozen=True, slots=True)
class Answer:
    """One response as it passed over the wire."""

    id: str
    done: dict[str, Any]
    item: str  # of its message; "": it has no message
    transcript: str
    pcm: bytes
    at: int  # position of its first sound on the wire
    until: int  # position of its last sound
    ended: int  # position of its end


def answers(wire: Wire) -> list[Answer]:
    """Return the responses in order."""
    lines = [(place, line.event) for place, line in enumerate(wire.messages) if line.sender == "server"]
    found = []
    for ended, event in lines:
        if event["type"] != "response.done":
            continue
        name = event["response"]["id"]
        own = [(place, other) for place, other in lines if other.get("response_id") == name]
        sound = [(place, other) for place, other in own if other["type"] == "response.output_audio.delta"]
        text = "".join(other["delta"] for _, other in own if other["type"] == "response.output_audio_transcript.delta")
        pcm = b"".join(base64.b64decode(other["delta"]) for _, other in sound)
        items = {other["item_id"] for _, other in sound}
        assert len(items) <= 1
        at, until = (sound[0][0], sound[-1][0]) if sound else (ended, ended)
        found.append(Answer(name, event["response"], next(iter(items), ""), text, pcm, at, until, ended))
    return found


def check(wire: Wire, hear: Hear) -> None:
    """Raise if the wire does not show the whole conversation, or shows anything that the API does not allow."""
    check_allowed(wire)
    found = answers(wire)
    at = next(place for place, answer in enumerate(found) if answer.done["status"] == "cancelled")
    question, story, cut_in, call, forecast = found[at - 1 : at + 4]  # some clients ask for a greeting first
    _check_what_was_understood(wire)
    _check_said(question, hear)
    check_sense(_understood(wire)[0], question.transcript)
    _check_interrupted(wire, story)
    _check_cut(wire, story, hear)
    _check_said(cut_in, hear)
    _check_tool(wire, call, forecast)
    assert all(answer.done["usage"]["output_tokens"] > 0 for answer in found)


def check_allowed(wire: Wire, expected_error: str = "", *, webrtc: bool = False) -> None:
    """Raise if the server has said anything that the API does not allow, or an error of another code than expected."""
    grammar = Grammar(webrtc=webrtc)
    for event in wire.events("server"):
        grammar.check(event)
    errors = [event["error"] for event in wire.events("server", "error") if event["error"]["code"] != expected_error]
    assert not errors, errors


def check_scenario(scenario: str, wire: Wire, hear: Hear, expected_error: str = "") -> None:
    """Raise if the wire does not show one part of the conversation, on a connection of its own."""
    check_allowed(wire, expected_error)
    found = answers(wire)
    if scenario == "connect":
        assert wire.events("server", "session.created")
    elif scenario == "voice":
        _check_understood(wire, QUESTION)
        _check_said(found[-1], hear)
        check_sense(_understood(wire)[-1], found[-1].transcript)
    elif scenario == "interruption":
        story, cut_in = found[-2:]
        _check_understood(wire, STORY, CUT_IN)
        _check_interrupted(wire, story)
        _check_cut(wire, story, hear)
        _check_said(cut_in, hear)
    elif scenario == "tool":
        _check_tool(wire, *found[-2:])
    elif scenario == "text":
        _check_typed(wire, found[-1])
    else:
        assert scenario == "push_to_talk"
        _check_push_to_talk(wire, found[-1])


def check_sense(asked: str, answer: str) -> None:
    """Raise if the question has no answer, or if it was understood to the letter and the answer is another one's.

    The model is deterministic and knows this question's answer. A word that was heard differently leads it elsewhere.
    """
    assert answer
    assert asked.strip() != QUESTION or "blue" in words(answer), answer


def _understood(wire: Wire) -> list[str]:
    done = wire.events("server", "conversation.item.input_audio_transcription.completed")
    return [event["transcript"] for event in done]


def check_seen(scenario: str, seen: dict[str, Any]) -> None:
    """Check what the client's user has seen, heard or read."""
    if scenario == "connect":
        return
    assert seen["said"], seen
    if scenario in ("voice", "push_to_talk"):
        assert likeness(seen["asked"], QUESTION) > 0.8, seen
    if scenario in ("voice", "push_to_talk", "text"):
        check_sense(seen.get("asked", QUESTION), seen["said"])
    if scenario == "interruption":
        assert seen["kept"], seen
    if scenario == "tool":
        assert seen["called"] == "get_weather", seen
        assert seen["arguments"].keys() == {"city"}, seen
        assert seen["arguments"]["city"] == "Paris" or seen.get("asked", WEATHER) != WEATHER, seen


def _check_understood(wire: Wire, *said: str) -> None:
    for heard, text in zip(_understood(wire), said, strict=True):
        assert likeness(heard, text) > 0.8, heard


def _check_typed(wire: Wire, answer: Answer) -> None:
    """Check that a typed question was answered, in text or aloud."""
    typed = [event["item"] for event in wire.events("client", "conversation.item.create")]
    assert [item["content"][0]["type"] for item in typed][-1] == "input_text"
    assert answer.done["status"] in ("completed", "incomplete")
    part = answer.done["output"][0]["content"][0]
    check_sense(QUESTION, part.get("text") or part["transcript"])


def _check_push_to_talk(wire: Wire, answer: Answer) -> None:
    """Check that the client, not the server, has ended the turn."""
    assert wire.events("server", "input_audio_buffer.speech_started") == []
    assert len(wire.events("server", "input_audio_buffer.committed")) == 1
    asked = [line.type for line in wire.messages if line.sender == "client"]
    assert "response.create" in asked[asked.index("input_audio_buffer.commit") :]
    _check_understood(wire, QUESTION)
    check_sense(_understood(wire)[-1], answer.transcript)


def _check_what_was_understood(wire: Wire) -> None:
    assert len(_understood(wire)) >= 3
    for heard, said in zip(_understood(wire), CLIPS.values(), strict=False):  # most clients type the last one
        assert likeness(heard, said) > 0.8, heard


def _check_said(answer: Answer, hear: Hear) -> None:
    """Check that the transcript matches the sound."""
    assert answer.done["status"] in ("completed", "incomplete"), answer.done
    (item,) = answer.done["output"]
    assert item["content"][0]["transcript"] == answer.transcript
    heard = " ".join(word for word, _ in hear(answer.pcm))
    assert likeness(heard, answer.transcript) > 0.5, (heard, answer.transcript)


def _check_interrupted(wire: Wire, story: Answer) -> None:
    assert story.done["status"] == "cancelled"
    assert story.done["status_details"]["reason"] == "turn_detected"
    assert [item["status"] for item in story.done["output"]] == ["incomplete"]
    between = [line.type for line in wire.messages[story.at : story.ended] if line.sender == "server"]
    started = story.at + [line.type for line in wire.messages[story.at :]].index("input_audio_buffer.speech_started")
    assert "input_audio_buffer.speech_started" in between  # comes before the end, since players stop on it
    assert story.until < started  # no sound after it


def left(wire: Wire, item: str) -> str:
    """Return the text of a cut reply as the server last showed it."""
    types = [(line.type, line.event) for line in wire.messages]
    cut = next(place for place, (kind, event) in enumerate(types) if kind == CUT and event["item_id"] == item)
    shown = [event["item"] for kind, event in types[cut:] if kind == "conversation.item.retrieved"]
    text = [one["content"][0]["transcript"] for one in shown if one["id"] == item]
    assert text, "the client has not asked what is left"
    return str(text[-1])


def _check_cut(wire: Wire, story: Answer, hear: Hear) -> None:
    """Check that the history keeps what was heard of the story."""
    asked = [event for event in wire.events("client", "conversation.item.truncate") if event["item_id"] == story.item]
    told = [event for event in wire.events("server", CUT) if event["item_id"] == story.item]
    assert len(asked) == len(told) >= 1
    text = left(wire, story.item)
    assert story.transcript.startswith(text.rstrip())
    assert 0 < len(words(text)) < len(words(story.transcript))
    end_s = asked[0]["audio_end_ms"] / 1000
    heard = [word for word, at_s in hear(story.pcm) if at_s <= end_s]
    assert abs(len(heard) - len(words(text))) <= 2, (heard, text)


def _check_tool(wire: Wire, call: Answer, answer: Answer) -> None:
    (item,) = call.done["output"]
    assert (item["type"], call.pcm) == ("function_call", b"")
    assert item["name"].rpartition("-")[2] == "get_weather"  # semantic-kernel writes the plugin's name before it
    results = [event["item"] for event in wire.events("client", "conversation.item.create")]
    assert [result["call_id"] for result in results if result["type"] == "function_call_output"] == [item["call_id"]]
    assert answer.transcript  # a small model may say anything about the result
    assert len(answer.pcm) > RATE
