"""Whole calls with hand-made servers that do what no planted agent does: pause, lower, and send all sound at once."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from examples import sweep
from lab_voices import humming_corpus

from voxlane.codecs.g711 import decode_mulaw, encode_mulaw
from voxlane_lab.call import LabCall
from voxlane_lab.definitions import Value
from voxlane_lab.dialects.choice import make_dialect
from voxlane_lab.dialects.dialect import DialectOptions, LabTool
from voxlane_lab.holding import hold_virtually
from voxlane_lab.judge import judged_call
from voxlane_lab.person import clips, plan
from voxlane_lab.scenario import read_scenario
from voxlane_lab.values import TICK_S, Message, Pcm, Recording

RATES = {"native": 24_000, "realtime": 24_000, "twilio": 8_000, "pcm": 16_000}
STORY_S = 20.0
LOUD = 100.0  # the RMS of a tick in which the person speaks
TURN = 'name = "x"\nrepeat = 1\nanswer_s = 4\n[[step]]\nsay = "Tell me a long story about the sea."\n'
MURMUR = TURN + '[[step]]\nsound = "mhm"\nmeans = "nothing"\n'
STOP = TURN + '[[step]]\nmeans = "stop"\nsay = "Stop, that is enough of it for now, thank you very much."\n'


def voice(seconds: float, rate: int, seed: int = 1) -> Pcm:
    """Return sound that never repeats itself and is never silent."""
    return np.random.default_rng(seed).normal(0, 3000, round(seconds * rate)).astype(np.int16)


class HandMade:
    """A server that tells a story after the first turn, all of it at once, and then follows a plan.

    `then` has what it sends, by the seconds since the person began the second step.
    """

    def __init__(self, dialect: str, then: Mapping[float, Any], *, story_s: float = STORY_S) -> None:
        self._dialect = dialect
        self._then = dict(then)
        self._story = voice(story_s, RATES[dialect])
        self._stream = ""
        self._sequence = 0
        self._quiet_s = self._spoken_s = 0.0
        self._told = False
        self._onset_s: float | None = None
        self._now_s = 0.0

    def receive(self, message: Message) -> list[Message]:
        sound = self._microphone(message)
        if sound is None:
            return self._greeting(message)
        loud = bool(np.sqrt(np.mean(sound.astype(np.float64) ** 2)) > LOUD)
        self._quiet_s = 0.0 if loud else self._quiet_s + TICK_S
        self._spoken_s += TICK_S if loud else 0.0
        if self._told and loud and self._onset_s is None:
            self._onset_s = self._now_s
        return []

    def tick(self) -> list[Message]:
        self._now_s += TICK_S
        if not self._told and self._spoken_s > 0.5 and self._quiet_s >= 0.6:
            self._told = True
            return self.speak(1, self._story)
        if self._onset_s is None:
            return []
        due = [at_s for at_s in self._then if self._now_s - self._onset_s >= at_s - 1e-9]
        return [message for at_s in sorted(due) for message in self._written(self._then.pop(at_s))]

    def speak(self, response: int, pcm: Pcm) -> list[Message]:
        """Return the messages of a whole response."""
        pieces = np.array_split(pcm, max(1, len(pcm) // (RATES[self._dialect] // 50)))
        name = f"r{response}"
        match self._dialect:
            case "native":
                sent, offset = [], 0
                for piece in pieces:
                    sent.append(("audio", response, offset, piece.astype("<i2").tobytes()))
                    offset += len(piece)
                return self._written([*sent, ("audio_done", response, len(pcm))])
            case "realtime":
                deltas = [
                    {
                        "type": "response.output_audio.delta",
                        "response_id": name,
                        "item_id": f"i{response}",
                        "delta": base64.b64encode(piece.astype("<i2").tobytes()).decode(),
                    }
                    for piece in pieces
                ]
                done = {"type": "response.output_audio.done", "response_id": name}
                over = {"type": "response.done", "response": {"id": name, "status": "completed"}}
                return self._written([{"type": "response.created", "response": {"id": name}}, *deltas, done, over])
            case "twilio":
                return self._written([self._media(piece) for piece in pieces])
        return [piece.astype("<i2").tobytes() for piece in pieces]

    def _media(self, piece: Pcm) -> dict[str, Any]:
        return {"event": "media", "media": {"payload": base64.b64encode(encode_mulaw(piece / 32768)).decode()}}

    def _written(self, what: Any) -> list[Message]:
        if callable(what):
            return list(what(self))
        found: list[Message] = []
        for one in what if isinstance(what, list) else [what]:
            self._sequence += 1
            if self._dialect == "native":
                found.append(msgpack.packb((one[0], self._sequence, *one[1:])))
            else:
                found.append(json.dumps(one | ({"streamSid": self._stream} if self._stream else {})))
        return found

    def _greeting(self, message: Message) -> list[Message]:
        if self._dialect == "native":
            return self._written(("ready", {})) if msgpack.unpackb(message)[0] == "hello" else []
        body = json.loads(message)
        if body.get("event") == "start":
            self._stream = body["start"]["streamSid"]
        return self._written({"type": "session.updated"}) if body.get("type") == "session.update" else []

    def _microphone(self, message: Message) -> Pcm | None:
        data = b""
        if self._dialect == "native":
            fields = msgpack.unpackb(message)
            data = fields[1] if fields[0] == "audio" else b""
        elif self._dialect == "pcm" and isinstance(message, bytes):
            data = message
        elif isinstance(message, str):
            body = json.loads(message)
            data = base64.b64decode(body.get("audio") or body.get("media", {}).get("payload") or "")
            if self._dialect == "twilio" and data:
                return np.rint(decode_mulaw(data) * 32768).astype(np.int16)
        return np.frombuffer(data, "<i2") if data else None


def hold_with(server: HandMade, dialect: str, text: str, folder: Path) -> tuple[Recording, list[dict[str, Value]]]:
    """Hold a call; return it and the figures of its steps that have one."""
    scenario = read_scenario(text, name="test")
    corpus, planned = humming_corpus(folder), plan(scenario, 0)
    asyncio.run(corpus.prepare([one.wanted for one in planned if one.wanted is not None]))
    tools = tuple(LabTool(one.name, one.description, one.result, one.takes_s) for one in scenario.tool)
    client = make_dialect(dialect, DialectOptions("ws://served.invalid/", tools=tools), "x")
    call = LabCall(scenario, 0, client, planned, clips(planned, corpus))
    hold_virtually(call, server)
    recording = call.recording()
    assert recording.failure == ""
    assert [step.result for step in recording.steps] == ["done"] * len(scenario.step)
    steps = judged_call(recording, answer_s=scenario.answer_s).steps
    return recording, [{name: value for name, value in one.values.items() if value is not None} for one in steps]


# ---- the native dialect pauses and lowers


def test_a_hold_that_is_released_is_a_pause_without_a_skip(tmp_path: Path) -> None:
    server = HandMade("native", {0.2: ("hold", 1), 0.8: ("release", 1)})
    _, (_, murmur) = hold_with(server, "native", MURMUR, tmp_path)
    assert murmur["false_stop"] is False
    assert murmur["pause_ms"] == pytest.approx(600, abs=20)
    assert (murmur["skipped_ms"], murmur["repeated_ms"]) == (0, 0)
    assert murmur["mute_ms"] == pytest.approx(220, abs=40)
    assert "duck_ms" not in murmur


def test_a_voice_that_is_lowered_is_no_stop(tmp_path: Path) -> None:
    server = HandMade("native", {0.1: ("duck", 1, 0.3), 0.9: ("release", 1)})
    _, (_, murmur) = hold_with(server, "native", MURMUR, tmp_path)
    assert murmur["false_stop"] is False
    assert murmur["duck_ms"] == pytest.approx(120, abs=40)
    assert (murmur["pause_ms"], murmur["skipped_ms"], murmur["repeated_ms"]) == (0, 0, 0)
    assert "mute_ms" not in murmur


def test_a_voice_that_is_lowered_to_nothing_is_no_stop_either(tmp_path: Path) -> None:
    server = HandMade("native", {0.1: ("duck", 1, 0.0), 0.9: ("release", 1)})
    _, (_, murmur) = hold_with(server, "native", MURMUR, tmp_path)
    assert murmur["false_stop"] is False


def test_a_hold_that_becomes_an_interruption_is_the_yield(tmp_path: Path) -> None:
    server = HandMade("native", {0.1: ("duck", 1, 0.3), 0.2: ("hold", 1), 0.9: ("interrupted", 1, "Once upon", 100)})
    _, (_, stop) = hold_with(server, "native", STOP, tmp_path)
    assert stop["missed"] is False
    assert stop["yield_ms"] == pytest.approx(220, abs=40)
    assert (stop["stale_ms"], stop["stale_wire_ms"]) == (0, 0)


def test_a_hold_that_is_dropped_for_a_murmur_is_a_false_stop(tmp_path: Path) -> None:
    server = HandMade("native", {0.2: ("hold", 1), 0.8: ("interrupted", 1, "Once upon", 100)})
    _, (_, murmur) = hold_with(server, "native", MURMUR, tmp_path)
    assert murmur["false_stop"] is True


def test_a_hold_that_is_never_released_is_a_false_stop(tmp_path: Path) -> None:
    _, (_, murmur) = hold_with(HandMade("native", {0.2: ("hold", 1)}), "native", MURMUR, tmp_path)
    assert murmur["false_stop"] is True


# ---- twenty seconds of sound at once

CLEARS = {
    "native": ("interrupted", 1, "Once upon", 100),
    "realtime": {"type": "input_audio_buffer.speech_started"},
    "twilio": {"event": "clear"},
    "pcm": {"type": "clear"},
}


@pytest.mark.parametrize("dialect", RATES)
def test_a_long_queue_that_is_dropped_is_a_yield(tmp_path: Path, dialect: str) -> None:
    server = HandMade(dialect, {0.3: CLEARS[dialect], 3.6: lambda one: one.speak(2, voice(1.5, RATES[dialect], 2))})
    recording, (turn, stop) = hold_with(server, dialect, STOP, tmp_path)
    assert max(recording.queued) > 19 * RATES[dialect]
    assert turn["unanswered"] is False
    assert stop["missed"] is False
    assert stop["yield_ms"] == pytest.approx(320, abs=40)
    assert stop["stale_ms"] == 0
    assert (stop["unanswered"], stop["answered_twice"]) == (False, False)
    assert stop["response_ms"] == pytest.approx(stop["first_byte_ms"], abs=20)


@pytest.mark.parametrize("dialect", sweep(RATES))
def test_a_long_queue_that_is_not_dropped_is_a_missed_interruption(tmp_path: Path, dialect: str) -> None:
    _, (_, stop) = hold_with(HandMade(dialect, {}), dialect, STOP, tmp_path)
    assert stop["missed"] is True
    assert "yield_ms" not in stop
    assert (stop["talk_over_ms"] or 0) > 1000


@pytest.mark.parametrize("dialect", sweep(RATES))
def test_a_long_queue_bears_a_murmur(tmp_path: Path, dialect: str) -> None:
    _, (_, murmur) = hold_with(HandMade(dialect, {}), dialect, MURMUR, tmp_path)
    assert murmur["false_stop"] is False
    assert (murmur["pause_ms"], murmur["skipped_ms"], murmur["repeated_ms"]) == (0, 0, 0)


@pytest.mark.parametrize("dialect", sweep(RATES))
def test_a_long_queue_that_is_dropped_for_a_murmur_is_a_false_stop(tmp_path: Path, dialect: str) -> None:
    _, (_, murmur) = hold_with(HandMade(dialect, {0.3: CLEARS[dialect]}), dialect, MURMUR, tmp_path)
    assert murmur["false_stop"] is True


# ---- a person who speaks while a tool works

TOOL = """
name = "x"
repeat = 1
answer_s = 4
[[step]]
say = "What is the weather like in Paris right now?"
answered = false
[[step]]
when = { agent = "calling_tool" }
means = "stop"
say = "Never mind the weather. What is the capital of France?"
[[tool]]
name = "weather"
description = "Tell the weather."
takes_s = 6.0
"""
CALLS: dict[str, Any] = {
    "native": ("tool_call", 1, "c1", "weather", "{}"),
    "realtime": [
        {"type": "response.created", "response": {"id": "r1"}},
        {"type": "response.function_call_arguments.done", "call_id": "c1", "name": "weather", "arguments": "{}"},
        {"type": "response.done", "response": {"id": "r1", "status": "completed"}},
    ],
}


class ToolServer(HandMade):
    """A server that calls a tool after the first turn, and follows its plan from the second step on."""

    def speak(self, response: int, pcm: Pcm) -> list[Message]:
        return self._written(CALLS[self._dialect]) if response == 1 else super().speak(response, pcm)


def says(response: int) -> Callable[[HandMade], list[Message]]:
    """Return what sends a response of 1.5 s."""
    return lambda server: server.speak(response, voice(1.5, 24_000, response))


@pytest.mark.parametrize(("dialect", "twice"), [("native", True), ("realtime", False)])
def test_an_answer_to_what_was_asked_before_the_tool_is_an_answer_too_many(
    tmp_path: Path, dialect: str, twice: bool
) -> None:
    plan_of: dict[float, Any] = {4.5: says(2)}
    if twice:
        plan_of[7.0] = says(3)  # the weather, when the tool is done
    _, (_, stop) = hold_with(ToolServer(dialect, plan_of), dialect, TOOL, tmp_path)
    assert stop["unanswered"] is False
    assert stop["answered_twice"] is twice
    assert stop["response_ms"] == pytest.approx(stop["first_byte_ms"], abs=20)
    assert "yield_ms" not in stop  # nothing was to be heard
