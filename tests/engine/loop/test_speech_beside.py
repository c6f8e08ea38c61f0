"""A voice that is asked in a thread beside the steps: the same sound in the same order, and no step waits for it."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from typing import Any

import pytest
from simulation import Clock, reason
from speech_simulation import PretendSynthesiser

from voxlane.engine.api import Append, Cancel, EndInput, Finished, Pause, Resume, Samples, Started, Submit
from voxlane.engine.jobs.speak_clauses import SpeakClausesJobFactory
from voxlane.engine.loop.core import Core
from voxlane.engine.memory.blocks import BlockPool
from voxlane.engine.runners.clause_tts import ClauseTTS
from voxlane.engine.schedule.cost import CostModel
from voxlane.engine.schedule.plan import Limits, ModelResources
from voxlane.engine.schedule.scheduler import Scheduler

NOTHING = BlockPool(0, 1, prefix_cache=False)
CLAUSES = ("One clause,", "and another one,", "and the last.")


class Later(Executor):
    """Does what it was asked for when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[Future[Any], Any]] = []

    def submit(self, function: Any, /, *arguments: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.asked.append((future, lambda: function(*arguments, **options)))
        return future

    def work(self) -> None:
        future, call = self.asked.pop(0)
        if future.cancelled():
            return
        try:
            future.set_result(call())
        except RuntimeError as error:
            future.set_exception(error)


def build(model: PretendSynthesiser, beside: Executor | None) -> Core:
    resources = ModelResources(NOTHING, BlockPool(0, 1, prefix_cache=False), CostModel())
    factories = {"tts": SpeakClausesJobFactory(model, NOTHING, beside)}
    return Core(Scheduler({"tts": resources}, Limits()), {"tts": ClauseTTS(model)}, factories, clock=Clock())


def begin(core: Core, name: str = "t") -> list[Any]:
    return core.handle([Submit(name, "tts"), *(Append(name, text=text) for text in CLAUSES), EndInput(name)])


def finish(core: Core, thread: Later) -> list[Any]:
    messages = []
    while core.busy:
        if thread.asked:
            thread.work()
        messages += core.step()
    return messages


def test_the_same_messages_as_in_steps() -> None:
    core, thread = build(PretendSynthesiser(), None), Later()
    expected = begin(core)
    while core.busy:
        expected += core.step()
    core = build(PretendSynthesiser(), thread)
    got = begin(core) + finish(core, thread)
    assert [type(message) for message in got] == [type(message) for message in expected]
    assert isinstance(got[0], Started)
    assert [message for message in got if isinstance(message, Samples)] == [
        message for message in expected if isinstance(message, Samples)
    ]
    assert reason(got[-1]) == "eos"
    core.idle()


def test_a_step_does_not_wait_and_a_pause_holds() -> None:
    thread = Later()
    core = build(PretendSynthesiser(), thread)
    messages = begin(core)
    for _ in range(5):
        messages += core.step()
    assert len(thread.asked) == 1  # one clause after the other
    assert not any(isinstance(message, Samples) for message in messages)
    core.handle([Pause(("t",))])
    thread.work()
    assert not core.busy
    core.handle([Resume("t")])
    assert any(isinstance(message, Samples) for message in core.step())
    (end,) = core.handle([Cancel("t")])
    assert isinstance(end, Finished)
    assert not core.busy
    core.idle()


def test_a_fault_ends_the_request_alone(caplog: pytest.LogCaptureFixture) -> None:
    class Faulty(PretendSynthesiser):
        def synthesise(self, prepared: Any, **options: Any) -> Any:
            if len(prepared.ids) == 2 + len(CLAUSES[1]):
                raise RuntimeError("broken")
            return super().synthesise(prepared, **options)

    thread = Later()
    core = build(Faulty(), thread)
    messages = begin(core) + finish(core, thread)
    assert reason(messages[-1]) == "failed"
    assert sum(isinstance(message, Samples) for message in messages) == 1
    assert "clause failed" in caplog.text
    core.idle()


def test_a_clause_of_a_cancelled_job_is_taken_back_from_the_thread() -> None:
    thread = Later()
    core = build(PretendSynthesiser(), thread)
    begin(core)
    core.step()
    ((future, _),) = thread.asked
    assert not future.cancelled()
    core.handle([Cancel("t")])
    assert future.cancelled()
