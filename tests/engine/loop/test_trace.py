"""Chrome's viewer reads the trace; it shows which request was in which step, and holds no content."""

from __future__ import annotations

import json
from pathlib import Path

from simulation import Simulation

from voxlane.engine.api import Priority, SamplingParams, Submit
from voxlane.engine.loop.trace import REQUESTS, STEPS, Trace


def traced(path, *, close: bool):
    simulation = Simulation(blocks=20, host_blocks=0, max_step_tokens=8)
    with Trace(path) as trace:
        simulation.core._telemetry._trace = trace
        sampling = SamplingParams(max_tokens=4, ignore_eos=True)
        simulation.send(Submit("secret-id", "complete", text="ABCDEFGHIJ", sampling=sampling))
        simulation.send(Submit("other", "complete", text="AB", sampling=sampling, priority=Priority.CRITICAL))
        simulation.run()
        simulation.core.idle()
        if not close:
            return simulation, path.read_text()
    return simulation, path.read_text()


def test_every_step_and_every_row_is_there_in_order(tmp_path):
    simulation, text = traced(tmp_path / "t.json", close=True)
    events = json.loads(text)
    spans = [event for event in events if event["ph"] == "X"]
    steps = [event for event in spans if event["pid"] == STEPS and event["name"] == "step"]
    assert len(steps) == simulation.steps
    assert all(event["dur"] >= 0 for event in spans)
    for step in steps:
        rows = [e for e in spans if e["pid"] == REQUESTS and e["name"] != "queued" and inside(e, step)]
        assert len(rows) == step["args"]["rows"]
    names = [e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == REQUESTS]
    assert sorted(name.split()[0] for name in names) == ["critical", "normal"]


def inside(event, step) -> bool:
    return step["ts"] <= event["ts"] < step["ts"] + step["dur"]


def test_a_trace_without_its_end_can_be_read_up_to_there(tmp_path):
    _, text = traced(tmp_path / "t.json", close=False)
    assert json.loads(text.rstrip().rstrip(",") + "]")


def test_only_its_owner_may_read_a_trace(tmp_path):
    path = tmp_path / "t.json"
    path.touch(mode=0o644)  # of before
    with Trace(path):
        assert path.stat().st_mode & 0o777 == 0o600


def test_a_full_disk_ends_the_trace_and_not_the_engine(caplog):
    simulation = Simulation(blocks=20, host_blocks=0)
    simulation.core._telemetry._trace = Trace(Path("/dev/full"))
    for name in "abc":
        simulation.send(Submit(name, "complete", text="AB", sampling=SamplingParams(max_tokens=4, ignore_eos=True)))
        simulation.run()
        simulation.core.idle()
    assert set(simulation.ends) == set("abc")
    assert "No space left" in caplog.text
    assert caplog.text.count("trace=off") == 1
    simulation.core._telemetry._trace.close()


def test_it_holds_neither_text_nor_ids(tmp_path):
    simulation, text = traced(tmp_path / "t.json", close=True)
    assert "ABCDEFGHIJ" not in text
    assert "secret-id" not in text
    assert simulation.texts["other"] not in text
