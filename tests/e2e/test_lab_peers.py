"""hotato and callback-voice judge the recordings that `voxlane lab score` judges. Each has an environment of its own.

Two sets of recordings: synthetic calls with known timelines, and calls that callback-voice holds with planted agents
over plain PCM. Where a peer's figure differs from ours, a table says why. A difference that is not in the table is a
failure, and so is one of the table that is gone.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import venv
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lab_calls import CALLS, MAKING_RATE, RecordedCall, voice, wav_of

from voxlane.codecs.wav import decode_wav, encode_wav
from voxlane_lab.agents.server import agent_server
from voxlane_lab.agents.voice import AgentVoice
from voxlane_lab.metrics import StepFigures, Value
from voxlane_lab.score import score
from voxlane_lab.values import USER_RATE, StepRecord

pytestmark = pytest.mark.soak

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = ROOT / ".venv-clients"
SCRIPT = ROOT / "tests" / "support/lab/lab_peer_callback.py"
HOTATO = "hotato==1.20.0"
CALLBACK = "callback-voice==0.1.2"
CALLBACK_NEEDS = (
    "httpx",
    "numpy>=2.1",
    "onnxruntime",
    "pydantic",
    "pyyaml",
    "rich",
    "soundfile",
    "typer",
    "websockets",
)
INSTALL_S = 600

NEAR_MS = 40.0
"""How far two measurements of the same thing may lie apart. callback-voice claims 50 ms; most are within 10."""

LATE_S = 0.04
"""A caller whose ticks are later than this was not given the time it needs: the machine has too much to do."""

TRIES = 4
"""How often a call is held until its caller is not late."""

TAGS = {"turn": "line", "stop": "barge_in", "nothing": "backchannel"}
"""Our meanings in the words of callback-voice."""

Figures = dict[tuple[str, str], Value]
"""(call, figure) -> value, of the last step of a call that is no plain turn."""

PAUSE = "The agent paused and went on with the next sample. A peer takes every silence for a stop; nothing was lost."
STALE = "The old response spoke again after it had stopped. The peer waits for the last of it; we say both, apart."
STALE_OVER = "The peer counts the overlap up to the first silence only; the old response spoke over the person again."
OVER = "The agent spoke until the person had finished. It did not give way, so that no time of a yield is right."
OLD = "The first sound after the person is the rest of the old response. The answer comes later."
LAST = "The peer counts an unanswered turn only if the person speaks again. The call ended in silence."

HOTATO_DIFFERENT = {
    ("a pause for mhm", "false_stop"): PAUSE,
    ("a burst of stale sound", "talk_over_ms"): STALE_OVER,
    ("a burst of stale sound", "response_ms"): OLD,
    ("stale sound after the turn", "response_ms"): OLD,
}
CALLBACK_DIFFERENT = {
    ("a pause for mhm", "false_stop"): PAUSE,
    ("a burst of stale sound", "yield_ms"): STALE,
    ("stale sound after the turn", "response_ms"): OLD,
    ("talks over", "yield_ms"): OVER,
    ("never answers", "unanswered"): LAST,
}
HOTATO_PLANTED = {
    ("pauses_850, mhm", "false_stop"): PAUSE,
    ("stale, stop", "yield_ms"): STALE,
    ("stale, stop", "response_ms"): OLD,
}
CALLBACK_PLANTED = {
    ("pauses_850, mhm", "false_stop"): PAUSE,
    ("stale, stop", "yield_ms"): STALE,
    ("stale, stop", "response_ms"): OLD,
    ("never_answers, stop", "unanswered"): LAST,
}


@dataclass(frozen=True, slots=True)
class Judged:
    """A step of a recording as we judge it."""

    call: str
    file: Path
    step: StepRecord
    values: Mapping[str, Value]


def environment(name: str, *installs: Iterable[str]) -> Path:
    """Return the Python of a peer's environment, made when it is first wanted; skip where pip cannot."""
    place = ENVIRONMENTS / name
    python = place / "bin" / "python"
    ready = place / ".ready"
    wanted = json.dumps([list(one) for one in installs])
    if not ready.exists() or ready.read_text() != wanted:
        venv.create(place, with_pip=True, clear=True)
        for arguments in installs:
            pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
            done = subprocess.run(pip, capture_output=True, text=True, timeout=INSTALL_S)
            if done.returncode:
                pytest.skip(
                    f"pip cannot install {name}: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}"
                )
        ready.write_text(wanted)
    return python


@pytest.fixture(scope="module")
def hotato() -> Path:
    return environment("hotato", [HOTATO])


@pytest.fixture(scope="module")
def callback() -> Path:
    if sys.version_info >= (3, 12):
        return environment("callback", [CALLBACK])
    # It asks for Python 3.12 because of `type X = …` alone: our copy says `X = …`.
    python = environment("callback", CALLBACK_NEEDS, ["--no-deps", "--ignore-requires-python", CALLBACK])
    for file in (python.parents[1] / "lib").glob("python*/site-packages/callback_voice/**/*.py"):
        lines = file.read_text().splitlines(keepends=True)
        if any(line.startswith("type ") for line in lines):
            file.write_text("".join(line.removeprefix("type ") for line in lines))
    return python


def ours(name: str, file: Path, labels: str) -> Judged:
    """Return the last step of a recording that is no plain turn."""
    scored = score(file.read_bytes(), labels, name=name)
    steps: list[StepFigures] = scored.result.scenarios[0].calls[0].steps
    last = max((step.number for step in steps if step.means != "turn"), default=0)
    return Judged(name, file, scored.recording.steps[last], steps[last].values)


def our_figures(judged: Iterable[Judged]) -> Figures:
    names = ("yield_ms", "talk_over_ms", "response_ms", "false_stop", "unanswered")
    return {(one.call, name): one.values[name] for one in judged for name in names}


def hotato_figures(python: Path, judged: Iterable[Judged]) -> Figures:
    found: Figures = {}
    for one in judged:
        command = [python.parent / "hotato", "run", "--stereo", one.file, "--format", "json", "--no-fail"]
        command += ["--onset", str(one.step.first / USER_RATE), "--expect", expected(one.step)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        (event,) = json.loads(done.stdout)["events"]
        verdict, latency = event["verdict"], event["signals"]["latency"]
        if one.step.means == "stop":
            found[one.call, "yield_ms"] = milliseconds(verdict["seconds_to_yield"])
            found[one.call, "talk_over_ms"] = milliseconds(verdict["talk_over_sec"])
            found[one.call, "response_ms"] = milliseconds(latency["response_gap_sec"])
        else:
            found[one.call, "false_stop"] = verdict["did_yield"]
    return found


def expected(step: StepRecord) -> str:
    return "hold" if step.means == "nothing" else "yield"


def callback_figures(printed: str, judged: Iterable[Judged]) -> Figures:
    verdicts: dict[str, Any] = json.loads(printed)
    found: Figures = {}
    for one in judged:
        verdict = verdicts[one.call]
        if one.step.means == "stop":
            found[one.call, "yield_ms"] = milliseconds(last_of(verdict["yields_s"]))
            answered = len(verdict["responses_s"]) > 1  # the first answer is that to the question
            found[one.call, "response_ms"] = milliseconds(last_of(verdict["responses_s"]) if answered else None)
            if one.values["unanswered"] is not None:
                found[one.call, "unanswered"] = bool(verdict["unanswered"])
        else:
            found[one.call, "false_stop"] = bool(verdict["false_yields"])
    return found


def last_of(samples: list[float]) -> float | None:
    return samples[-1] if samples else None


def milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def differences(mine: Figures, theirs: Figures) -> dict[tuple[str, str], tuple[Value, Value]]:
    """Return where a peer's figure is another than ours: (ours, theirs)."""
    return {key: (mine[key], value) for key, value in theirs.items() if not is_same(mine[key], value)}


def is_same(one: Value, other: Value) -> bool:
    if one is None or other is None or isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return abs(one - other) <= NEAR_MS


def run(python: Path, *arguments: object) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    command = [python, SCRIPT, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=environment).stdout


# ---- synthetic calls


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[Judged]:
    """The calls with someone who interrupts or murmurs, in folders as callback-voice keeps its own."""
    folder = tmp_path_factory.mktemp("recorded")
    calls = [call for call in CALLS if any(step.means != "turn" for step in call.steps)]
    return [ours(call.name, kept(call, folder / call.name), call.labels()) for call in calls]


def kept(call: RecordedCall, folder: Path) -> Path:
    folder.mkdir()
    data = wav_of(call)
    samples, rate = decode_wav(data, mono=False)
    (folder / "call.wav").write_bytes(data)
    (folder / "caller_clean.wav").write_bytes(encode_wav(samples[:, 0], rate))
    events = [
        {"t_s": one.at_s, "end_s": one.until_s, "kind": "caller_utterance", "data": {"tag": TAGS[one.means]}}
        for one in call.steps
    ]
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder / "call.wav"


def test_hotato_judges_the_recorded_calls(hotato: Path, recorded: list[Judged]) -> None:
    found = differences(our_figures(recorded), hotato_figures(hotato, recorded))
    assert found.keys() == HOTATO_DIFFERENT.keys(), found


def test_callback_voice_judges_the_recorded_calls(callback: Path, recorded: list[Judged]) -> None:
    printed = run(callback, "score", recorded[0].file.parents[1])
    found = differences(our_figures(recorded), callback_figures(printed, recorded))
    assert found.keys() == CALLBACK_DIFFERENT.keys(), found


# ---- planted agents

# Not "talks_over": its old response and its answer are 320 ms apart, and one late packet brings them together.
STOPPED = ("none", "slow_yield", "stale", "answers_twice", "never_answers")
MURMURED = ("none", "stops_for_mhm", "pauses_850")
CLIPS = {"ask": (11, 1.2), "stop": (12, 2.0), "mhm": (13, 0.3), "bye": (14, 0.8)}  # text and seconds


@dataclass(frozen=True, slots=True)
class Driven:
    """Calls that callback-voice has held with planted agents."""

    judged: list[Judged]
    printed: str  # its own verdicts


@pytest.fixture(scope="module")
def driven(callback: Path, tmp_path_factory: pytest.TempPathFactory) -> Driven:
    if "VOXLANE_PEERS" not in os.environ:
        pytest.skip("a peer that calls in real time needs a quiet machine: make test-clients runs it")
    folder = tmp_path_factory.mktemp("driven")
    printed = asyncio.run(drive(callback, folder))
    late_s = max(verdict["late_s"] for verdict in json.loads(printed).values())
    if late_s > LATE_S:
        pytest.skip(f"callback-voice was {late_s * 1000:.0f} ms late: this machine has too much to do")
    judged = [
        ours(name, folder / "calls" / name / "call.wav", labels_of(folder / "calls" / name))
        for name in json.loads(printed)
    ]
    return Driven(judged, printed)


async def drive(python: Path, folder: Path) -> str:
    """Serve the agents, and let callback-voice call all of them at once."""
    tones = AgentVoice.synthetic(1)
    async with AsyncExitStack() as servers:
        calls = []
        for fault in dict.fromkeys((*STOPPED, *MURMURED)):
            server = await servers.enter_async_context(agent_server(fault, tones, dialects=["pcm"]))
            url = server.url("pcm")
            if fault in STOPPED:
                calls.append(planned(f"{fault}, stop", url, {"barge_in": {"say": "stop"}}, 17.0))
            if fault in MURMURED:
                calls.append(planned(f"{fault}, mhm", url, {"backchannel": {"say": "mhm"}}, 11.0))
        return await held(python, folder, calls)


async def held(python: Path, folder: Path, calls: list[dict[str, Any]]) -> str:
    """Let callback-voice hold calls, and those again in which it was late; return its verdicts on all."""
    plan, clips, printed = folder / "plan.json", made_clips(folder), "{}"
    for _ in range(TRIES):
        plan.write_text(json.dumps({"clips": clips, "calls": calls}))
        printed = await asyncio.to_thread(run, python, "call", folder / "calls", plan)
        verdicts = json.loads(printed)
        calls = [call for call in calls if verdicts[call["name"]]["late_s"] > LATE_S]
        if not calls:
            break
    return printed


def planned(name: str, url: str, event: dict[str, dict[str, Any]], seconds: float) -> dict[str, Any]:
    """Return a call: a question, a sound two seconds into the answer, and then a person who listens."""
    ((kind, says),) = event.items()
    listens = {"silence": {"on": "caller_turn", "turn": 2, "duration_s": 15.0}}
    events = [{kind: {"on": "agent_turn", "turn": 1, "after_s": 2.0, **says}}, listens]
    return {"name": name, "url": url, "script": ["ask", "bye"], "events": events, "seconds": seconds}


def made_clips(folder: Path) -> dict[str, str]:
    files = {}
    for name, (text, seconds) in CLIPS.items():
        sound = voice(text, 190.0)[: round(seconds * MAKING_RATE) : MAKING_RATE // USER_RATE]
        np.save(folder / f"{name}.npy", (sound * 10 ** (-23 / 20)).astype(np.float32))
        files[name] = str(folder / f"{name}.npy")
    return files


def labels_of(folder: Path) -> str:
    """Return our labels of a call that callback-voice has recorded."""
    meanings = {tag: means for means, tag in TAGS.items()}
    lines = ["answer_s = 5.0\n"]
    for text in (folder / "events.jsonl").read_text().splitlines():
        event = json.loads(text)
        if event["kind"] == "caller_utterance" and event["data"]["tag"] in meanings:
            times = f"at_s = {event['t_s']}\nuntil_s = {event['end_s']}"
            lines.append(f'[[step]]\n{times}\nmeans = "{meanings[event["data"]["tag"]]}"\n')
    return "".join(lines)


def test_we_find_each_planted_fault_in_the_recordings_of_callback_voice(driven: Driven) -> None:
    values = {one.call: one.values for one in driven.judged}
    # This caller does not obey "clear": what was sent ahead is heard as well.
    above = {
        ("slow_yield, stop", "yield_ms"): 1540,
        ("stale, stop", "stale_ms"): 900,
        ("pauses_850, mhm", "pause_ms"): 780,
    }
    for (call, name), least in above.items():
        value = values[call][name]
        assert value is not None, (call, name)
        assert value > least, (call, name)
        assert (values["none, " + call.split(", ")[1]][name] or 0) < least, name
    flags = ("missed", "false_stop", "answered_twice", "unanswered")
    assert {name: {call for call in values if values[call][name] is True} for name in flags} == {
        "missed": set(),
        "false_stop": {"stops_for_mhm, mhm"},
        "answered_twice": {"answers_twice, stop"},
        "unanswered": {"never_answers, stop"},
    }


def test_hotato_judges_the_planted_agents(hotato: Path, driven: Driven) -> None:
    theirs = hotato_figures(hotato, driven.judged)
    # A packet that comes late leaves a hole: it closes the hole, and we count what sounds.
    theirs = {key: value for key, value in theirs.items() if key[1] != "talk_over_ms"}
    found = differences(our_figures(driven.judged), theirs)
    assert found.keys() == HOTATO_PLANTED.keys(), found


def test_callback_voice_judges_the_planted_agents(driven: Driven) -> None:
    found = differences(our_figures(driven.judged), callback_figures(driven.printed, driven.judged))
    assert found.keys() == CALLBACK_PLANTED.keys(), found
