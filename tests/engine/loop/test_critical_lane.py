"""A critical prompt under `deadline`: its step holds no other request, and all go on after it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from simulation import (
    Clock,
    LateConcurrentPrefill,
    LateEngine,
    Letters,
    PretendEngine,
    Simulation,
    expected_text,
    reason,
)

from voxlane.engine.api import (
    Cancel,
    FromEngine,
    Pause,
    Policy,
    Priority,
    Resume,
    SamplingParams,
    Submit,
    Text,
    ToEngine,
)
from voxlane.engine.jobs.job import Change, Job
from voxlane.engine.loop import core
from voxlane.engine.loop.critical_lane import HOLD_S
from voxlane.engine.schedule.budget import StepTime
from voxlane.engine.schedule.plan import ModelBatch, Plan
from voxlane.engine.schedule.request import Request, RequestState


def greedy(name: str, text: str, tokens: int, priority: Priority = Priority.NORMAL, *, session: str = "") -> Submit:
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True)
    return Submit(name, "complete", text=text, sampling=sampling, priority=priority, session=session)


def tokens_of(simulation: Simulation) -> dict[str, int]:
    return {name: len(text) for name, text in simulation.texts.items()}


@pytest.mark.parametrize(("policy", "alone"), [("deadline", True), ("priority", False)])
def test_who_is_in_the_step_of_a_critical_prompt(policy: Policy, *, alone: bool) -> None:
    simulation = Simulation(blocks=64, host_blocks=0, policy=policy)
    simulation.send(greedy("a", "ABC", 20), greedy("b", "CBA", 20))
    for _ in range(4):
        simulation.step()
    before = tokens_of(simulation)
    simulation.send(greedy("c", "AAAA", 3, Priority.CRITICAL), greedy("d", "BBBB", 3, Priority.CRITICAL))
    simulation.step()
    after = tokens_of(simulation)
    assert after["c"] == after["d"] == 1
    assert (after["a"], after["b"]) == (before["a"] + (not alone), before["b"] + (not alone))
    simulation.step()  # one that decodes shares its steps
    assert tokens_of(simulation)["a"] == after["a"] + 1
    while simulation.core.busy:
        simulation.step()
    for name, prompt, count in (("a", "ABC", 20), ("b", "CBA", 20), ("c", "AAAA", 3), ("d", "BBBB", 3)):
        assert simulation.texts[name] == expected_text(prompt, count)


def test_a_stream_of_critical_prompts_leaves_every_other_step_to_the_others() -> None:
    simulation = Simulation(blocks=256, host_blocks=0, policy="deadline")
    simulation.send(greedy("a", "ABC", 60))
    for _ in range(4):
        simulation.step()
    before = tokens_of(simulation)["a"]
    for number in range(20):
        simulation.send(greedy(f"c{number}", "AAAA", 1, Priority.CRITICAL))
        simulation.step()
    assert tokens_of(simulation)["a"] == before + 10
    assert all(len(simulation.texts[f"c{number}"]) == 1 for number in range(20))


def test_a_burst_of_prompts_holds_up_nobody_who_is_being_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(blocks=1024, host_blocks=0, policy="deadline", max_batch=128)
    simulation.send(greedy("a", "ABC", 60), greedy("z", "CCC", 60))
    for _ in range(4):
        simulation.step()
    read = Letters.encode

    def slowly(self: Letters, text: str, **options: bool) -> list[int]:
        simulation.clock.now += 1e-3
        return read(self, text, **options)

    monkeypatch.setattr(Letters, "encode", slowly)
    before, begin = tokens_of(simulation)["a"], simulation.clock.now
    burst = [greedy(f"b{number}", "CBA", 2) for number in range(100)]
    simulation.step(*burst, Cancel("b1"), Cancel("z"))
    assert reason(simulation.ends["z"]) == "cancelled", "what takes no time waits for no prompts"
    assert tokens_of(simulation)["a"] == before + 1
    assert simulation.clock.now - begin < 0.05, "all of them were read first"
    simulation.run()
    assert simulation.texts["a"] == expected_text("ABC", 60)
    assert reason(simulation.ends["b1"]) == "cancelled"
    assert not simulation.texts.get("b1"), "it was in a step although it was cancelled before its prompt was read"
    assert all(simulation.texts[submit.request_id] == expected_text("CBA", 2) for submit in burst[2:])


@pytest.mark.parametrize("slow", [1, 6, 11])
def test_who_was_read_beside_the_steps_goes_on_in_the_very_next_one(slow: int) -> None:
    def engine(clock: Clock, block_tokens: int) -> LateEngine:
        made = LateEngine(clock, block_tokens, slow=3)
        LateConcurrentPrefill.of(made, eager=False, slow=slow)
        return made

    simulation = Simulation(make_engine=engine, blocks=64, host_blocks=0, policy="deadline")
    simulation.send(greedy("a", "ABC", 40))
    for _ in range(4):
        simulation.step()
    launched: list[set[str]] = []  # the requests of each step that began after the first token was sent
    launch = simulation.engine.launch

    def begin(load: ModelBatch) -> object:
        launched.append({row.request.job for row in load.rows})
        return launch(load)

    def tell(messages: list[FromEngine]) -> None:
        if any(isinstance(message, Text) and message.request_id == "d" for message in messages):
            simulation.engine.launch = begin  # type: ignore[method-assign]

    coming = [greedy("d", "DCBA", 2, Priority.CRITICAL)]
    while not launched:
        simulation.core.step(lambda: [coming.pop()] if coming else [], tell)
    assert launched[0] == {"a", "d"}


def test_a_step_waits_for_critical_prompts_but_not_for_ever() -> None:
    """However many there are: it waits HOLD_S, and then it goes first."""

    def engine(clock: Clock, block_tokens: int) -> LateEngine:
        made = LateEngine(clock, block_tokens, slow=2, step_s=1e-3, token_s=0.0)
        concurrent_prefill = LateConcurrentPrefill.of(made, eager=False, slow=40)
        concurrent_prefill.step_s = concurrent_prefill.token_s = 0.0
        return made

    simulation = Simulation(make_engine=engine, blocks=4096, host_blocks=0, policy="deadline")
    simulation.send(greedy("a", "ABC", 200))
    for _ in range(4):
        simulation.step()
    lane, launch, clock = simulation.core._lane, simulation.engine.launch, simulation.clock
    begun: list[float] = []
    names = (f"d{number}" for number in itertools.count())

    def begin(load: ModelBatch) -> object:
        begun.append(clock.now)
        return launch(load)

    def receive() -> list[ToEngine]:
        clock.now += 1e-4
        return [] if lane._waiting else [greedy(next(names), "DCBA", 1, Priority.CRITICAL)]  # one always waits

    simulation.engine.launch = begin  # type: ignore[method-assign]
    first = clock.now
    while clock.now < first + 1.0:
        simulation.core.step(receive)
    gaps = [late - early for early, late in itertools.pairwise(begun)]
    assert sum(gap > HOLD_S for gap in gaps) > 50, "no step waits"
    assert max(gaps) < HOLD_S + 3e-3, "a step takes one, and is looked at a few times"


def test_a_step_gives_way_after_critical_prompts_that_no_step_waited_for() -> None:
    def engine(clock: Clock, block_tokens: int) -> LateEngine:
        made = LateEngine(clock, block_tokens)
        LateConcurrentPrefill.of(made, eager=False, slow=12)
        return made

    simulation = Simulation(make_engine=engine, blocks=400, host_blocks=0, policy="deadline")
    simulation.step(greedy("a", "ABC", 1, Priority.CRITICAL))
    simulation.run()
    simulation.clock.now += 10.0
    launched: list[set[str]] = []
    launch = simulation.engine.launch

    def begin(load: ModelBatch) -> object:
        launched.append({row.request.job for row in load.rows})
        return launch(load)

    simulation.engine.launch = begin  # type: ignore[method-assign]
    simulation.step(greedy("b", "ABC", 30, Priority.CRITICAL), greedy("n", "ABC", 30))
    while not launched:
        simulation.step()
    assert launched[0] == {"b", "n"}


class Worker(Job):
    """Has always something to do that takes a millisecond."""

    wants_work = True
    done = 0

    def __init__(self, submit: Submit, clock: Clock) -> None:
        super().__init__(submit, clock.now)
        self._clock = clock

    def work(self, now: float) -> Change:
        self._clock.now += 1e-3
        Worker.done += 1
        return Change()


def test_a_step_that_gave_way_waits_for_no_more_work_than_one_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def engine(clock: Clock, block_tokens: int) -> LateEngine:
        made = LateEngine(clock, block_tokens, slow=0)
        LateConcurrentPrefill.of(made, eager=False, slow=6)
        return made

    monkeypatch.setattr(core, "WORK_BUDGET_S", 1.0)
    monkeypatch.setattr(Worker, "done", 0)
    simulation = Simulation(make_engine=engine, blocks=256, host_blocks=0, policy="deadline")
    simulation.send(greedy("a", "ABC", 100))
    for _ in range(4):
        simulation.step()
    simulation.step(greedy("d", "DCBA", 1, Priority.CRITICAL))
    while simulation.core._running_steps:
        simulation.step()
    assert simulation.core._lane.holding, "no step gives way"
    jobs = [Worker(greedy(f"w{number}", "A", 1), simulation.clock) for number in range(40)]
    for job in jobs:
        simulation.core._jobs.jobs[job.submit.request_id] = job
        simulation.core._jobs.apply(job, Change(), simulation.clock.now)
    simulation.step()
    assert 10 <= Worker.done < 40
    assert simulation.core._running_steps, "the step goes on"


CROWD = [greedy(f"c{number}", "CBA", 2, Priority.CRITICAL, session=f"t{number}") for number in range(150)]


class SlowLetters(Letters):
    """Reads every prompt in the time a real one takes, and notes in which state one request was meanwhile."""

    def __init__(self, clock: Clock, watched: Request) -> None:
        self._clock, self._watched = clock, watched
        self.states: list[RequestState] = []

    def encode(self, text: str, *, add_bos: bool = False) -> list[int]:
        self._clock.now += 7e-4
        self.states.append(self._watched.state)
        return super().encode(text, add_bos=add_bos)


def answering(*, device: bool) -> tuple[Simulation, SlowLetters]:
    """Return an engine in the midst of two answers, on the host or on a device with a lane beside its steps."""

    def late(clock: Clock, block_tokens: int) -> LateEngine:
        made = LateEngine(clock, block_tokens, slow=3)
        LateConcurrentPrefill.of(made, eager=False, slow=3)
        return made

    engine = late if device else PretendEngine
    simulation = Simulation(make_engine=engine, blocks=2000, host_blocks=0, policy="deadline", max_batch=400)
    simulation.send(greedy("mine", "ABC", 60, session="s"), greedy("other", "ABC", 60, session="o"))
    for _ in range(4):
        simulation.step()
    letters = SlowLetters(simulation.clock, simulation.scheduler.requests["mine"])
    simulation.intake._tokenizer = letters
    return simulation, letters


def finish(simulation: Simulation) -> None:
    """See to it that all of the crowd is answered."""
    simulation.send(Resume("mine"))
    simulation.run()
    assert {simulation.texts[submit.request_id] for submit in CROWD} == {expected_text("CBA", 2)}
    assert simulation.texts["other"] == expected_text("ABC", 60)
    assert simulation.pool.used == 0


@pytest.mark.parametrize("device", [False, True])
@pytest.mark.parametrize("stop", [Pause(("mine",)), Cancel("mine")])
def test_who_stops_something_waits_for_nobodys_prompt(stop: ToEngine, *, device: bool) -> None:
    simulation, letters = answering(device=device)
    simulation.step(*CROWD, greedy("another", "CBA", 1), stop)
    assert letters.states, "there was no prompt to wait for"
    assert RequestState.RUNNING not in letters.states
    finish(simulation)


@pytest.mark.parametrize("device", [False, True])
@pytest.mark.parametrize("after", [1, 2, 7, 100])
def test_an_interruption_waits_for_one_prompt_at_most(after: int, *, device: bool) -> None:
    """Whenever it comes while those of a crowd are being read."""
    simulation, letters = answering(device=device)
    crowd: list[ToEngine] = list(CROWD)
    came: list[int] = []

    def receive() -> list[ToEngine]:
        found, crowd[:] = list(crowd), []
        if len(letters.states) >= after and not came:
            came.append(len(letters.states))
            found.append(Pause(("mine",)))
        return found

    while len(letters.states) < len(CROWD):
        simulation._collect(simulation.core.step(receive))
    assert came[0] == after, "a prompt was read without a poll"
    assert RequestState.RUNNING not in letters.states[after:]
    finish(simulation)


@pytest.mark.parametrize("device", [False, True])
def test_a_crowd_of_critical_prompts_is_read_a_few_at_a_time(*, device: bool) -> None:
    """The first of them are answered before the last are read."""
    simulation, letters = answering(device=device)
    coming: list[ToEngine] = list(CROWD)
    while len(letters.states) < len(CROWD):
        read = len(letters.states)
        simulation.step(*coming)
        coming.clear()
        assert 0 < len(letters.states) - read < 40
    assert len(simulation.ends) > 50
    finish(simulation)


@pytest.mark.parametrize("lookup", [0, 8])
def test_a_step_holds_as_many_answers_as_if_time_were_asked_for_before_each(
    lookup: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guesses make a step longer than the tokens of the requests that decode."""

    def planned() -> list[list[tuple[str, int, int]]]:
        simulation = Simulation(
            blocks=4000, host_blocks=0, max_batch=64, max_step_tokens=2048, lookup_tokens=lookup, step_budget_s=0.045
        )
        simulation.send(*(greedy(f"r{number}", "ABCDEFGH" * 4, 60) for number in range(24)))
        cost, schedule = simulation.scheduler.resources["chat"].cost, simulation.scheduler.schedule
        monkeypatch.setattr(cost, "observe", lambda *learnt: None)
        monkeypatch.setattr(cost, "_weights", [4.0, 4.0, 64.0, 1.0, 1.0, 0.0])
        plans: list[Plan] = []

        def kept(*args: Any) -> Plan:
            plans.append(schedule(*args))
            return plans[-1]

        monkeypatch.setattr(simulation.scheduler, "schedule", kept)
        simulation.run()
        return [[(row.request.id, row.count, len(row.drafts)) for row in plan.rows] for plan in plans]

    found = planned()
    monkeypatch.setattr(StepTime, "fits_all", lambda *asked: False)
    assert found == planned()
    assert max(map(len, found)) == 24 if not lookup else any(drafts for plan in found for _, _, drafts in plan)
