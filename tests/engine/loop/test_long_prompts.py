"""Long prompts that are read beside the loop: others go on meanwhile, and every command about them counts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from msgspec import structs
from simulation import Letters, Simulation, expected_text, reason

from voxlane.engine.api import Cancel, Pause, Priority, Resume, SamplingParams, Submit
from voxlane.engine.errors import Refusal
from voxlane.engine.jobs import chat
from voxlane.engine.jobs.chat import ChatJobFactory
from voxlane.engine.schedule.request import RequestState
from voxlane.engine.text.constraint import Grammars

DEADLINE_S = 120.0
LONG = "ABCDEFGHIJ"
VERY_LONG = LONG + "KL"


def greedy(name: str, prompt: str = LONG, *, session: str = "", priority: Priority = Priority.NORMAL) -> Submit:
    sampling = SamplingParams(max_tokens=5, ignore_eos=True)
    return Submit(name, "complete", text=prompt, sampling=sampling, session=session, priority=priority)


class Gated(Letters):
    """Reads nothing in other threads until the gate is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()

    def encode(self, text: str, *, add_bos: bool = False) -> list[int]:
        if threading.current_thread() is not threading.main_thread():
            assert self.gate.wait(DEADLINE_S)
        return super().encode(text, add_bos=add_bos)


@pytest.fixture
def simulation(monkeypatch: pytest.MonkeyPatch) -> Iterator[Simulation]:
    monkeypatch.setattr(chat, "LONG_CHARACTERS", len(LONG))
    monkeypatch.setattr(chat, "CRITICAL_LONG_CHARACTERS", len(VERY_LONG))
    made = Simulation(blocks=40, host_blocks=0)
    letters = made.intake._tokenizer = Gated()
    with ThreadPoolExecutor(1) as normal, ThreadPoolExecutor(1) as high, ThreadPoolExecutor(1) as critical:
        readers = {Priority.NORMAL: normal, Priority.HIGH: high, Priority.CRITICAL: critical}
        made.core._factories._factories = {"chat": ChatJobFactory(made.intake, letters, readers=readers)}
        yield made
        letters.gate.set()


def open_gate(simulation: Simulation) -> None:
    simulation.intake._tokenizer.gate.set()


def test_short_and_critical_prompts_overtake_and_the_others_keep_their_order(simulation: Simulation) -> None:
    simulation.send(greedy("a"), greedy("b"), greedy("short", "ABC"), greedy("urgent", priority=Priority.CRITICAL))
    while len(simulation.ends) < 2:
        assert simulation.core.busy
        simulation.step()
    assert simulation.texts == {"short": expected_text("ABC", 5), "urgent": expected_text(LONG, 5)}
    open_gate(simulation)
    begun: list[str] = []
    while simulation.core.busy:
        begun += [one for one in simulation.scheduler.requests if one not in begun]
        simulation.step()
    assert begun == ["a", "b"]
    assert simulation.texts["a"] == simulation.texts["b"] == expected_text(LONG, 5)


def test_who_was_cancelled_before_being_read_ends_once_and_is_in_no_step(simulation: Simulation) -> None:
    simulation.send(greedy("a"), greedy("b"), Cancel("b"), Cancel("a"))
    assert {name: reason(end) for name, end in simulation.ends.items()} == {"a": "cancelled", "b": "cancelled"}
    assert not simulation.core.busy
    simulation.send(greedy("a", LONG + "K"))  # the id is free, and what was read under it is dropped
    open_gate(simulation)
    simulation.ends.clear()
    simulation.run()
    assert simulation.texts == {"a": expected_text(LONG + "K", 5)}


def test_who_is_refused_leaves_nothing_to_be_read(simulation: Simulation) -> None:
    factory = simulation.core._factories._factories["chat"]
    wish = structs.replace(greedy("wish"), sampling=SamplingParams(max_tokens=5, schema='{"type": "object"}'))
    for _ in range(3):
        with pytest.raises(Refusal, match="cannot constrain"):  # this factory has no grammars
            factory.open(wish, 0.0)
    reader = factory._readers[Priority.NORMAL]
    waiting = reader._work_queue.qsize()
    assert sum(not reader._work_queue.get().future.cancelled() for _ in range(waiting)) == 0


def test_a_very_long_critical_prompt_holds_nobody_up(simulation: Simulation) -> None:
    simulation.send(greedy("huge", VERY_LONG, priority=Priority.CRITICAL), greedy("short", "ABC"))
    while "short" not in simulation.ends:
        simulation.step()
    assert "huge" not in simulation.ends
    open_gate(simulation)
    simulation.run()
    assert simulation.texts["huge"] == expected_text(VERY_LONG, 5)


def test_who_was_stopped_before_being_read_waits_for_its_resume(simulation: Simulation) -> None:
    simulation.send(greedy("a", session="s"), Pause(("a",)))
    open_gate(simulation)
    simulation.run()
    assert simulation.scheduler.requests["a"].state is RequestState.PAUSED
    assert simulation.texts == {}
    simulation.send(Resume("a"))
    simulation.run()
    assert simulation.texts == {"a": expected_text(LONG, 5)}


def test_what_reading_shows_to_be_too_long_is_refused_then_and_a_bad_request_at_once(simulation: Simulation) -> None:
    bad = Submit("bad", "complete", text=LONG, sampling=SamplingParams(temperature=-1.0))
    simulation.send(greedy("long", LONG * 16), bad)
    assert set(simulation.ends) == {"bad"}
    open_gate(simulation)
    simulation.run()
    assert simulation.ends["long"].code == "too_long"
    assert "160 tokens" in simulation.ends["long"].detail


def test_those_being_read_count_as_waiting(simulation: Simulation) -> None:
    simulation.core._factories._max_waiting = 2
    simulation.send(greedy("a"), greedy("b"), greedy("c"))
    assert simulation.ends["c"].code == "overloaded"


def test_who_is_being_read_when_the_desk_closes_is_the_last(simulation: Simulation) -> None:
    before, letters = set(threading.enumerate()), simulation.intake._tokenizer
    readers = {Priority.NORMAL: ThreadPoolExecutor(1)}
    factory = ChatJobFactory(simulation.intake, letters, Grammars(letters, letters.vocab_size), readers)
    jobs = [factory.open(greedy(name), 0.0) for name in "abc"]
    factory._grammars.warm_up()
    open_gate(simulation)
    factory.close()
    assert set(threading.enumerate()) == before
    assert all(job.awaited.done() for job in jobs), "a job would wait for ever"


class Fragile(Gated):
    """Cannot read a text with a Z, for an unforeseen reason."""

    def encode(self, text: str, *, add_bos: bool = False) -> list[int]:
        if "Z" in text:
            raise KeyError("Z")
        return super().encode(text, add_bos=add_bos)


@pytest.mark.parametrize("prompt", ["ABZ", LONG + "Z"])
def test_a_prompt_that_cannot_be_read_ends_its_own_request(simulation: Simulation, prompt: str) -> None:
    simulation.intake._tokenizer = Fragile()
    open_gate(simulation)
    simulation.send(greedy("a", prompt), greedy("b", "ABC"))
    simulation.run()
    assert {name: reason(end) for name, end in simulation.ends.items()} == {"a": "failed", "b": "length"}
    assert simulation.texts == {"b": expected_text("ABC", 5)}
