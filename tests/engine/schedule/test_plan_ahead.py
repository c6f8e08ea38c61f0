"""A plan made ahead and completed when the step before it has ended, against a plan made from the start."""

from __future__ import annotations

import copy
import random
from functools import partial

import pytest
from examples import examples, sweep
from hypothesis import event, given, settings
from hypothesis import strategies as st
from msgspec import structs
from simulation import Clock, LateConcurrentPrefill, LateEngine, Simulation, expected_text

from voxlane.engine.api import Cancel, Pause, Policy, Priority, Resume, SamplingParams, Submit, Text, ToEngine
from voxlane.engine.loop.delivery import Outbox
from voxlane.engine.memory.blocks import BlockPool, BlockTable
from voxlane.engine.schedule.cost import CostModel, Work
from voxlane.engine.schedule.plan import TEXT, Limits, ModelBatch, ModelResources, Plan
from voxlane.engine.schedule.plan_ahead import completed, plan_ahead
from voxlane.engine.schedule.request import Request
from voxlane.engine.schedule.scheduler import PATIENCE_S, Scheduler

CHAT = frozenset({"chat"})
SIZE = 4
SHORT = SamplingParams(max_tokens=3, ignore_eos=True)


def request(scheduler: Scheduler, name: str, prompt: int, tokens: int, priority: Priority, now: float) -> Request:
    pool = scheduler.resources["chat"].pool
    # No two begin alike: what a step has just computed is found by others once it was handed out, and not before.
    numbers = [1000 + int(name[1:]), *random.Random(name).choices(range(97), k=prompt)][:prompt]
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True)
    made = Request(name, "complete", numbers, prompt, BlockTable(pool), sampling=sampling, limit=10_000)
    made.priority, made.arrival_s, made.progress_s = priority, now, now
    return made


def finish(scheduler: Scheduler, plan: Plan, now: float) -> None:
    """Give every request in a step its token."""
    for row in plan.rows:
        one = row.request
        if row.reaches_end:
            one.tokens.append(7)
            one.first_token_s, one.last_token_s = one.first_token_s or now, now
        one.table.seal(one.tokens, min(row.start + row.count, len(one.tokens) - 1))
        if one.output_tokens == one.sampling.max_tokens:
            scheduler.remove(one)


def rows_of(plan: Plan) -> dict[str, tuple[int, int]]:
    return {row.request.id: (row.start, row.count) for row in plan.rows}


PROMPTS = st.lists(
    st.tuples(
        st.integers(1, 60), st.integers(1, 6), st.sampled_from([Priority.NORMAL, Priority.NORMAL, Priority.HIGH])
    ),
    max_size=5,
)


@settings(max_examples=examples(300), deadline=None)
@given(
    policy=st.sampled_from(["fcfs", "priority", "deadline"]),
    blocks=st.sampled_from([20, 400]),
    batch=st.integers(3, 12),
    tokens=st.integers(6, 64),
    budget=st.sampled_from([0.02, 0.05, 1.0]),
    arrivals=st.lists(PROMPTS, min_size=4, max_size=12),
)
def test_what_is_added_is_what_a_plan_from_the_start_would_hold(
    policy: Policy, blocks: int, batch: int, tokens: int, budget: float, arrivals: list[list[tuple[int, int, Priority]]]
) -> None:
    cost = CostModel()
    for count in range(1, 60):
        cost.observe(Work().plus(count, count), 5e-3 + 5e-4 * count)
    resources = ModelResources(BlockPool(blocks, SIZE, key=b"t"), BlockPool(0, SIZE), cost, abilities=TEXT)
    scheduler = Scheduler({"chat": resources}, Limits(batch, tokens, budget, policy))
    now, under_way, made = 0.0, Plan(), 0
    for prompts in arrivals:
        now += 0.01
        ahead = plan_ahead(scheduler, under_way, now, lambda request: True, CHAT) if under_way.rows else None
        for length, answer, priority in prompts:
            made += 1
            scheduler.add(request(scheduler, f"r{made}", min(length, 3 * blocks), answer, priority, now), made)
        other, finished = copy.deepcopy((scheduler, under_way))
        if ahead is not None:  # the other one knows nothing of it
            theirs = {one.id: one for one in other.requests.values()}
            for row in ahead.rows:
                theirs[row.request.id].table.rewind(row.start)
        finish(other, finished, now)
        afresh = other.schedule(now, CHAT)
        ahead = None if ahead is None else completed(scheduler, ahead, now)
        before = len(scheduler.requests)
        finish(scheduler, under_way, now)
        ended = len(scheduler.requests) < before
        if ahead is None:
            event("planned anew")
            ahead = scheduler.schedule(now, CHAT)
            assert rows_of(ahead) == rows_of(afresh)
        else:
            event("prompts added" if any(row.count > 1 for row in ahead.rows) else "decodes alone")
            decodes = {row.request.id for row in ahead.rows if row.count == 1}
            in_reach = blocks > 100 and decodes <= rows_of(afresh).keys()
            if in_reach and not ended:  # else a request had to yield, or there is room
                assert rows_of(ahead) == rows_of(afresh)
        under_way = ahead
        scheduler.check()


def ask(name: str, text: str) -> Submit:
    return Submit(name, "complete", text=text, sampling=SamplingParams(max_tokens=30, ignore_eos=True))


def watched(simulation: Simulation) -> list[dict[str, int]]:
    """Return a list that gets the requests of each step from now on, with how many tokens each has in it."""
    launched: list[dict[str, int]] = []
    launch = simulation.engine.launch

    def begin(load: ModelBatch) -> object:
        launched.append({row.request.job: row.count for row in load.rows})
        return launch(load)

    simulation.engine.launch = begin  # type: ignore[method-assign]
    return launched


def test_prompts_that_come_and_those_that_go_on_are_in_the_very_next_step() -> None:
    """The device does not wait for a plan: every step but the first is launched before the one before it is told."""
    simulation = Simulation(
        make_engine=partial(LateEngine, slow=2), blocks=400, host_blocks=0, max_step_tokens=8, step_budget_s=1.0
    )
    simulation.send(ask("a", "ABC"))
    for _ in range(4):
        simulation.step()
    prompts = {"b": "ABCDEFGHIJKLMNOPQRST", "c": "CBA"}
    launched = watched(simulation)
    foreseen = simulation.engine.foreseen
    simulation.step(*(ask(name, text) for name, text in prompts.items()))
    for _ in range(5):
        simulation.step()
    assert [step.get("b", 0) for step in launched[:4]] == [7, 7, 6, 1]
    assert simulation.engine.foreseen - foreseen >= 4, "it waited for a plan"
    simulation.run()
    for name, text in {"a": "ABC", **prompts}.items():
        assert simulation.texts[name] == expected_text(text, 30)


def planned_anew(*args: object) -> Plan:
    raise AssertionError("planned anew")


def test_a_critical_answer_has_its_place_in_a_full_step_that_was_planned_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    def engine(clock: Clock, block_tokens: int) -> LateEngine:
        made = LateEngine(clock, block_tokens, slow=6)
        LateConcurrentPrefill.of(made, eager=False, slow=1)
        return made

    simulation = Simulation(make_engine=engine, blocks=400, host_blocks=0, max_batch=4, policy="deadline")
    names = "abcd"
    simulation.send(*(ask(name, "ABC") for name in names))
    for _ in range(6):
        simulation.step()
    launched = watched(simulation)
    with monkeypatch.context() as patch:
        patch.setattr(simulation.scheduler, "schedule", planned_anew)
        simulation.step(structs.replace(ask("z", "CBA"), priority=Priority.CRITICAL))
        for _ in range(6):
            simulation.step()
    assert launched[0].keys() == {"z", "a", "b", "c"}
    assert "d" in launched[1], "a request that had no place has one in the next step"
    simulation.run()
    assert {simulation.texts[name] for name in names} == {expected_text("ABC", 30)}
    assert simulation.texts["z"] == expected_text("CBA", 30)


@pytest.mark.parametrize(("policy", "priority"), [("priority", Priority.HIGH), ("deadline", Priority.CRITICAL)])
def test_who_is_planned_for_again_and_again_but_in_no_step_has_its_turn_in_the_end(
    policy: Policy, priority: Priority
) -> None:
    """Requests that go first come all the time, so each plan made ahead is planned anew: that is no progress."""
    simulation = Simulation(
        make_engine=partial(LateEngine, slow=2, step_s=0.05), blocks=200, host_blocks=0, max_batch=2, policy=policy
    )
    simulation.send(ask("a", "ABC"))
    for _ in range(4):
        simulation.step()
    begin = simulation.clock.now
    while "a" not in simulation.ends and simulation.clock.now < begin + 5 * PATIENCE_S:
        crowd = len(simulation.scheduler.requests) >= 5
        other = Submit(f"r{simulation.steps}", "complete", text="CBA", sampling=SHORT, priority=priority)
        simulation.step(*([] if crowd else [other]))
    assert simulation.texts["a"] == expected_text("ABC", 30)


def test_who_comes_back_into_a_step_planned_ahead_leaves_it_as_small_as_a_step_may_be() -> None:
    simulation = Simulation(
        make_engine=partial(LateEngine, slow=2), blocks=200, host_blocks=0, max_step_tokens=3, step_budget_s=1.0
    )
    simulation.send(*(ask(name, "ABC") for name in "abcd"))
    launched = watched(simulation)
    while len(simulation.texts) < 4:
        simulation.step()
    simulation.step(Pause(("d",)))
    for _ in range(3):
        simulation.step()
    simulation.step(Resume("d"))
    simulation.run()
    assert max(sum(step.values()) for step in launched) == 3
    assert {simulation.texts[name] for name in "abcd"} == {expected_text("ABC", 30)}


def test_what_cannot_wait_overtakes_what_is_about_others_and_nothing_else() -> None:
    told: list[str] = []
    outbox = Outbox()
    outbox.open(lambda messages: told.extend(message.text for message in messages if isinstance(message, Text)))
    outbox.add([Text("a", 0, "a1"), Text("b", 0, "b1")])
    outbox.overtake([Text("z", 0, "z1")])
    assert told == ["z1"]
    outbox.overtake([])
    outbox.overtake([Text("b", 0, "b2")])
    assert told == ["z1", "a1", "b1", "b2"]
    assert not outbox.take()


def test_a_step_that_gave_way_goes_on_with_what_was_planned_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that were stopped meanwhile are not in it, and nothing of it is planned a second time."""

    def engine(clock: Clock, block_tokens: int) -> LateEngine:
        made = LateEngine(clock, block_tokens)
        LateConcurrentPrefill.of(made, eager=False, slow=6)
        return made

    simulation = Simulation(make_engine=engine, blocks=400, host_blocks=0, policy="deadline")
    simulation.send(*(ask(name, "ABC") for name in "abc"))
    for _ in range(6):
        simulation.step()
    launched = watched(simulation)
    with monkeypatch.context() as patch:
        patch.setattr(simulation.scheduler, "schedule", planned_anew)
        simulation.step(structs.replace(ask("z", "CBA"), priority=Priority.CRITICAL))
        while simulation.core._running_steps:
            simulation.step()
        assert simulation.core._lane.holding, "no step gives way"
        simulation.step(Pause(("b",)), Cancel("c"))
        before = len(launched)
        while len(launched) == before:
            simulation.step()
    assert launched[-1].keys() == {"z", "a"}
    simulation.send(Resume("b"))
    simulation.run()
    assert {simulation.texts[name] for name in "ab"} == {expected_text("ABC", 30)}
    assert simulation.pool.used == 0


class Creeping(Clock):
    """Time that passes whenever it is read, so that planning takes long enough for polls."""

    def __call__(self) -> float:
        self.now += 2e-4
        return self.now


@pytest.mark.parametrize("seed", sweep(range(60), here=10))
def test_whatever_comes_at_any_look_nobody_is_in_a_step_who_was_stopped(seed: int) -> None:
    """The pretended device fails if a step is launched for a request that has left, or on pages of others."""
    chance = random.Random(seed)

    def engine(clock: Clock, block_tokens: int) -> LateEngine:
        made = LateEngine(clock, block_tokens, slow=chance.choice([0, 3, 8]), step_s=1e-3, token_s=1e-5)
        LateConcurrentPrefill.of(made, eager=False, slow=chance.choice([0, 4]))
        return made

    simulation = Simulation(make_engine=engine, blocks=60, host_blocks=0, max_batch=6, policy="deadline")
    simulation.clock.__class__ = Creeping
    core, wanted, stopped = simulation.core, dict[str, tuple[str, int]](), set[str]()

    def come() -> ToEngine:
        number, one = len(wanted), chance.choice([*wanted, "nobody"])
        kind = chance.choice([Cancel, Pause, Resume, Resume, "session", Submit, Submit])
        if kind is not Submit or number > 30:
            if kind is Cancel:
                stopped.add(one)
            if kind == "session":
                return simulation.pause_session(f"s{number % 3}")
            return Pause((one,)) if kind is Pause else Resume(one) if kind is Submit else kind(one)
        wanted[f"r{number}"] = text, tokens = "".join(chance.choices("ABCDE", k=chance.randint(1, 12))), number % 9 + 1
        sampling = SamplingParams(max_tokens=tokens, ignore_eos=True)
        urgent = chance.choice([Priority.NORMAL, Priority.CRITICAL])
        return Submit(f"r{number}", "complete", text=text, sampling=sampling, session=f"s{number % 3}", priority=urgent)

    def receive() -> list[ToEngine]:
        return [come()] if chance.random() < 0.3 else []

    for _ in range(120):
        simulation._collect(core.step(receive))
    simulation.send(*map(Resume, wanted))
    simulation.run()
    for name, (text, tokens) in wanted.items():
        full = expected_text(text, tokens)
        assert full.startswith(simulation.texts.get(name, "")) if name in stopped else simulation.texts[name] == full
    assert simulation.pool.used == 0
