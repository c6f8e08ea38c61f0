"""One call in ticks: what the microphone sends, what the card notes, and when the tester was late."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lab_voices import humming_corpus
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import serve

from voxlane_lab import holding
from voxlane_lab.agents.planted import planted
from voxlane_lab.agents.voice import AgentVoice
from voxlane_lab.call import LabCall
from voxlane_lab.dialects.choice import make_dialect
from voxlane_lab.dialects.dialect import DialectOptions, LabHandshake
from voxlane_lab.holding import Agent, hold_virtually
from voxlane_lab.judge import judged_call, judged_scenario
from voxlane_lab.person import clips, plan
from voxlane_lab.results import RunResult, exit_code, why_not_measurable
from voxlane_lab.scenario import Scenario, read_scenario
from voxlane_lab.values import TICK_S, USER_RATE, USER_TICK, Message, Recording

SCENARIO = """
name = "stop"
repeat = 1
[[step]]
say = "Tell me a long story about the sea."
[[step]]
say = "Stop, that is enough of it for now, thank you."
means = "stop"
[gates]
yield_ms.p95 = 900
"""
VOICE = AgentVoice.synthetic(1)


def a_call(scenario: Scenario, folder: Path, dialect: str = "native") -> LabCall:
    corpus, planned = humming_corpus(folder), plan(scenario, 0)
    asyncio.run(corpus.prepare([one.wanted for one in planned if one.wanted is not None]))
    bed = np.full(USER_RATE, 1000, np.int16) if scenario.user.noise else None
    options = DialectOptions("ws://planted.invalid/")
    return LabCall(scenario, 0, make_dialect(dialect, options, "x"), planned, clips(planned, corpus), bed)


def held(text: str, folder: Path, dialect: str = "native", fault: str = "none") -> Recording:
    call = a_call(read_scenario(text, name="test"), folder, dialect)
    hold_virtually(call, planted(fault, dialect, VOICE))
    return call.recording()


@pytest.mark.parametrize("dialect", ["native", "realtime", "twilio", "pcm"])
def test_both_tracks_have_every_tick_and_runs_say_what_was_played(tmp_path: Path, dialect: str) -> None:
    found = held(SCENARIO, tmp_path, dialect)
    ticks = len(found.queued)
    assert len(found.person) == len(found.microphone) == ticks * USER_TICK
    assert len(found.agent) == ticks * round(TICK_S * found.agent_rate)
    assert len(found.late_ms) == ticks
    played = np.zeros(len(found.agent), bool)
    for run in found.runs:
        sent = found.received[run.response][run.offset : run.offset + run.samples]
        assert np.array_equal(found.agent[run.at : run.end], sent)  # nothing lowers this agent
        assert not played[run.at : run.end].any()
        played[run.at : run.end] = True
    assert not found.agent[~played].any()


def test_what_is_voiced_is_known_to_the_sample(tmp_path: Path) -> None:
    found = held(SCENARIO, tmp_path)
    outside = np.ones(len(found.person), bool)
    for step in found.steps:
        for first, last in step.voiced:
            outside[first:last] = False
            assert np.abs(found.person[first : first + 160]).max() > 100
    assert np.abs(found.person[outside]).max() < 400


class Lagging:
    """A tester's machine that is late in one tick."""

    def __init__(self, call: LabCall, tick: int, late_ms: float) -> None:
        self._call, self._tick, self._late_ms = call, tick, late_ms

    def hold(self, agent: Agent) -> Recording:
        number = 0
        for message in self._call.open():
            self._deliver(agent.receive(message))
        while not self._call.over:
            late_ms = self._late_ms if number == self._tick else 0.0
            for message in self._call.begin_tick(late_ms):
                self._deliver(agent.receive(message))
            self._deliver(agent.tick())
            self._call.end_tick()
            number += 1
        return self._call.recording()

    def _deliver(self, messages: list[str | bytes]) -> None:
        for message in messages:
            self._call.arrive(message)


@pytest.mark.parametrize(("late_ms", "code"), [(19.0, 0), (21.0, 2), (300.0, 2)])
def test_a_late_tick_makes_its_step_invalid_and_not_slow(tmp_path: Path, late_ms: float, code: int) -> None:
    scenario = read_scenario(SCENARIO, name="test")
    on_time = held(SCENARIO, tmp_path).steps[1]
    tick = on_time.at // USER_TICK + 5  # in the middle of the interruption
    found = Lagging(a_call(scenario, tmp_path), tick, late_ms).hold(planted("none", "native", VOICE))
    assert [step.result for step in found.steps] == ["done", "late" if code else "done"]
    call = judged_call(found, answer_s=scenario.answer_s)
    assert (call.steps[1].values["yield_ms"] is None) == bool(code)
    result = RunResult(scenarios=[judged_scenario("stop", [call], scenario.gates, answer_s=scenario.answer_s)])
    assert exit_code(result) == code
    assert ("late" in why_not_measurable(result)) == bool(code)


def test_noise_echo_and_loss_reach_the_microphone_and_not_the_persons_track(tmp_path: Path) -> None:
    quiet = held(SCENARIO, tmp_path)
    noisy = held(SCENARIO + '[user]\nnoise = { bed = "white", snr_db = 10 }\n[line]\nloss = 0.1\n', tmp_path)
    echo = held(SCENARIO + "[line]\necho = { level_db = -10, delay_ms = 100 }\n", tmp_path)
    assert np.array_equal(quiet.microphone, quiet.person)
    lost = ~noisy.microphone.reshape(-1, USER_TICK).any(axis=1)
    assert 0.03 < lost.mean() < 0.2
    assert np.abs(noisy.microphone - noisy.person)[~np.repeat(lost, USER_TICK)].min() > 0
    assert np.abs((echo.microphone - echo.person).astype(np.int32)).max() > 100
    assert not np.abs(echo.person).max() > np.abs(quiet.person).max()


def test_a_server_that_is_never_ready(tmp_path: Path) -> None:
    class Silent:
        def receive(self, message: str | bytes) -> list[str | bytes]:
            return []

        def tick(self) -> list[str | bytes]:
            return []

    call = a_call(read_scenario(SCENARIO, name="test"), tmp_path)
    hold_virtually(call, Silent())
    assert "ready" in call.failure
    assert [step.result for step in call.recording().steps] == ["not_reached", "not_reached"]


def test_a_call_that_is_closed_says_why(tmp_path: Path) -> None:
    call = a_call(read_scenario(SCENARIO, name="test"), tmp_path)
    call.closed("the server closed the connection (code 1011)")
    call.closed("later")
    assert call.over
    assert call.recording().failure == "the server closed the connection (code 1011)"
    assert [step.result for step in call.recording().steps] == ["not_reached", "not_reached"]


class Flooding:
    """A server that sends much more than a voice needs."""

    def __init__(self, messages: list[Message]) -> None:
        self._messages = messages

    def receive(self, message: Message) -> list[Message]:
        return []

    def tick(self) -> list[Message]:
        return self._messages


@pytest.mark.parametrize(
    ("messages", "says"), [(['{"type": "x"}'] * 2000, "messages within 0 s"), ([bytes(2**24)] * 2, "MiB within 0 s")]
)
def test_a_server_that_floods_ends_the_call(tmp_path: Path, messages: list[Message], says: str) -> None:
    call = a_call(read_scenario(SCENARIO, name="test"), tmp_path, "pcm")
    hold_virtually(call, Flooding(messages))
    assert call.failure.startswith("the server floods: ")
    assert call.failure.endswith(says)
    assert call.now_s < 1


def test_twenty_seconds_of_sound_at_once_are_no_flood(tmp_path: Path) -> None:
    call = a_call(read_scenario(SCENARIO, name="test"), tmp_path, "pcm")
    for _ in range(2000):
        call.arrive(bytes(320))
    assert not call.failure


def test_a_server_that_is_being_started_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call = a_call(read_scenario(SCENARIO, name="test"), tmp_path, "pcm")
    with socket.create_server(("127.0.0.1", 0)) as once:
        port = once.getsockname()[1]

    async def start_after_a_refusal() -> None:
        refused = asyncio.Event()

        async def connect_and_tell(*address: Any, **options: Any) -> ClientConnection:
            try:
                return await connect(*address, **options)
            except OSError:
                refused.set()
                raise

        monkeypatch.setattr(holding, "connect", connect_and_tell)
        monkeypatch.setattr(holding, "AGAIN_S", 0.01)
        monkeypatch.setattr(holding, "STARTS_S", 60.0)
        held_call = asyncio.create_task(holding.hold(call, LabHandshake(f"ws://127.0.0.1:{port}/"), lambda now: None))
        await refused.wait()
        async with serve(lambda connection: asyncio.sleep(0), "127.0.0.1", port):
            await held_call

    asyncio.run(start_after_a_refusal())
    assert call.failure == "the server closed the connection (code 1000)"


def test_a_server_that_does_not_start_is_not_waited_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call = a_call(read_scenario(SCENARIO, name="test"), tmp_path, "pcm")
    with socket.create_server(("127.0.0.1", 0)) as once:
        port = once.getsockname()[1]
    monkeypatch.setattr(holding, "STARTS_S", 0.0)
    asyncio.run(holding.hold(call, LabHandshake(f"ws://127.0.0.1:{port}/"), lambda now: None))
    assert call.failure == f"ws://127.0.0.1:{port}/ cannot be reached: does the server run?"
