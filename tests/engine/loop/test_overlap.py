"""A step under way while the next one is planned: commands at every boundary, on a device that is never early.

The pretended device does what it was told at the launch, goes on with tokens the host has not seen, and fails at once
if a page it reads holds another prefix, or if a step is launched for a request that has left. So a right output says
that no token was lost or doubled, and that a command was in force in the very next step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace

import hypothesis.strategies as st
import pytest
import torch
from examples import SOAK, examples
from hypothesis import HealthCheck, settings
from hypothesis.stateful import initialize, precondition, rule
from simulation import Clock, LateConcurrentPrefill, LateEngine, Simulation, expected_text, next_token, reason

from voxlane.engine.api import (
    Cancel,
    Finished,
    FromEngine,
    Pause,
    Priority,
    Resume,
    SamplingParams,
    StepStats,
    Submit,
    Text,
    ToEngine,
)
from voxlane.engine.memory.blocks import StateWindow
from voxlane.engine.runners.cuda.device import HUNG_S, DeviceLost, Stopwatch
from voxlane.engine.schedule.cost import Work
from voxlane.engine.schedule.request import RequestState
from voxlane.engine.schedule.scheduler import PATIENCE_S

from .test_core_simulation import EngineLoop, windows


def greedy(name: str, text: str, tokens: int, **settings: object) -> Submit:
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True)
    return Submit(name, "complete", text=text, sampling=sampling, **settings)  # type: ignore[arg-type]


def late(
    *, eager: bool = False, slow: int = 0, concurrent_prefill: tuple[bool, int] | None = None, **settings: object
) -> Simulation:
    """Return a simulation on a late device; `concurrent_prefill`: whether prompts beside it are eager, how slow."""

    def engine(clock: Clock, block_tokens: int) -> LateEngine:
        made = LateEngine(clock, block_tokens, eager=eager, slow=slow)
        if concurrent_prefill is not None:
            LateConcurrentPrefill.of(made, eager=concurrent_prefill[0], slow=concurrent_prefill[1])
        return made

    return Simulation(make_engine=engine, **{"blocks": 60, "host_blocks": 8, **settings})  # type: ignore[arg-type]


class LateLoop(EngineLoop):
    """The same random commands, before a step and at the moment one under way is over."""

    @initialize(
        policy=st.sampled_from(["fcfs", "priority", "deadline"]),
        blocks=st.integers(5, 30),
        host=st.sampled_from([0, 3, 40]),
        batch=st.integers(2, 5),
        tokens=st.integers(4, 24),
        lookup=st.sampled_from([0, 0, 0, 3]),
        budget=st.sampled_from([0.001, 0.02, 1.0]),
        cache=st.booleans(),
        eager=st.booleans(),
        slow=st.sampled_from([0, 2]),
        concurrent_prefill=st.sampled_from([None, (True, 0), (True, 3), (False, 0), (False, 5)]),
        window=windows,
    )
    def start(
        self, policy, blocks, host, batch, tokens, lookup, budget, cache, eager, slow, concurrent_prefill, window
    ):
        self.simulation = late(
            blocks=blocks, host_blocks=host, prefix_cache=cache, policy=policy, max_batch=batch,
            max_step_tokens=tokens, lookup_tokens=lookup, step_budget_s=budget, eager=eager, slow=slow,
            concurrent_prefill=concurrent_prefill, window=window,
        )  # fmt: skip
        self.sent = {}
        self.cancelled = set()
        self.submitted = 0
        self.limit = blocks * 4

    @rule(count=st.integers(1, 6))
    def step(self, count):
        for _ in range(count):
            if self.simulation.core.busy:
                before = self.under_way
                self.simulation.step()
                assert before or self.under_way, "a step for nothing"

    @property
    def under_way(self) -> bool:
        return self.simulation.engine.under_way is not None or self.simulation.core._lane.busy

    @precondition(lambda self: self.sent)
    @rule(data=st.data(), kind=st.sampled_from(["cancel", "pause", "resume", "interrupt", "submit"]))
    def surprise(self, data, kind):
        """Let a command come just as a step is over."""
        name = data.draw(st.sampled_from(sorted(self.sent)))
        commands: dict[str, Callable[[], ToEngine]] = {
            "cancel": lambda: Cancel(name),
            "pause": lambda: Pause((name,)),
            "resume": lambda: Resume(name),
            "interrupt": lambda: self.simulation.pause_session("s"),
            "submit": lambda: greedy("late", "AB", 3, priority=Priority.CRITICAL),
        }
        if not self.simulation.core.busy or (kind == "submit" and "late" in self.sent):
            return
        if kind == "submit":
            self.sent["late"] = ("AB", 3)
        self.simulation.step(commands[kind]())
        if kind == "cancel" and reason(self.simulation.ends[name]) == "cancelled":
            self.cancelled.add(name)


LateLoop.TestCase.settings = settings(
    max_examples=examples(200), stateful_step_count=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestLateLoop = LateLoop.TestCase

COMMANDS: dict[str, tuple[ToEngine, ...]] = {
    "cancel": (Cancel("b"),),
    "cancel all": (Cancel("a"), Cancel("b"), Cancel("c")),
    "pause": (Pause(("b",)),),
    "pause and resume": (Pause(("b",)), Resume("b")),
    "interrupt": (Pause(("b", "c")),),
    "interrupt and ask": (Pause(("b", "c")), greedy("d", "DCBA", 3, priority=Priority.CRITICAL)),
}
LENGTHS = {"a": ("ABCDE", 9), "b": ("EDCBA", 14), "c": ("ABCDEFGHI", 12), "d": ("DCBA", 3)}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("where", ["before", "under way", "over", "over, quick device"])
def test_commands_at_every_boundary(command: str, where: str) -> None:
    for boundary in range(18) if SOAK else (0, 1, 3, 6, 11, 16):
        simulation = late(eager="quick" in where, slow=where == "under way")
        for name, (prompt, count) in list(LENGTHS.items())[:3]:
            simulation.send(greedy(name, prompt, count, session="s" if name != "a" else ""))
        for _ in range(boundary):
            simulation.step()
        before = len(simulation.texts.get("b", ""))
        running = simulation.core.busy
        if where == "before":
            simulation.send(*COMMANDS[command])
        else:
            simulation.step(*COMMANDS[command])
        stopped = len(simulation.texts.get("b", ""))
        assert stopped <= before + 1
        for _ in range(3):
            simulation.step()
        if command.startswith(("cancel", "interrupt")) or command == "pause":
            # Of a step under way when the command came, one token more; of a later one, none.
            assert len(simulation.texts.get("b", "")) <= before + 1, (boundary, command)
        simulation.send(*(Resume(name) for name in LENGTHS))
        simulation.run(most=60)
        for name, (prompt, count) in LENGTHS.items():
            end = simulation.ends.get(name)
            if end is None:
                assert (name, command == "interrupt and ask") == ("d", False)
            elif reason(end) == "cancelled":
                assert running
                assert command.startswith("cancel")
                assert expected_text(prompt, count).startswith(simulation.texts.get(name, ""))
            else:
                assert simulation.texts[name] == expected_text(prompt, count), (boundary, name)
        assert simulation.pool.used == 0
        simulation.core.idle()


@pytest.mark.parametrize("where", ["before", "over"])
def test_an_urgent_request_is_in_the_next_step(where: str) -> None:
    """However many steps were planned ahead before it came."""
    simulation = late(max_batch=8)
    for name in "abc":
        simulation.send(greedy(name, "ABC", 40, session="s"))
    for _ in range(10):
        simulation.step()
    commands = Pause(("a", "b", "c")), greedy("d", "ABC", 1, priority=Priority.CRITICAL)
    if where == "before":
        simulation.send(*commands)
        simulation.step()
    else:
        simulation.step(*commands)
    simulation.step()
    assert simulation.texts["d"] == expected_text("ABC", 1)
    assert all(simulation.scheduler.requests[name].state is RequestState.PAUSED for name in "abc")


@pytest.mark.parametrize("beside", [False, True])
def test_a_step_that_never_ends_is_noticed_by_the_loop_that_asks_for_it(monkeypatch, *, beside: bool) -> None:
    simulation = late(concurrent_prefill=(False, 0), policy="deadline")
    monkeypatch.setattr(torch.cuda, "Event", lambda *, enable_timing: SimpleNamespace(record=str, query=bool))
    watch = Stopwatch(torch.device("cuda"), simulation.clock)
    simulation.send(greedy("a", "ABC", 40))
    simulation.step()
    hung = simulation.engine.concurrent_prefill if beside else simulation.engine
    monkeypatch.setattr(hung, "done", lambda ticket: watch.done())
    watch.stop()
    asked = 0

    def receive() -> list[ToEngine]:
        nonlocal asked
        asked += 1
        assert asked < 10 * HUNG_S, "it was not noticed"
        simulation.clock.now += 1.0
        return [greedy("d", "DCBA", 3, priority=Priority.CRITICAL)] if beside and asked == 1 else []

    def go_on() -> None:
        while True:
            simulation.core.step(receive)

    with pytest.raises(DeviceLost):
        go_on()
    assert asked >= HUNG_S


def test_one_that_waits_is_not_overtaken_by_plans_ahead() -> None:
    simulation = late(max_batch=8, step_budget_s=1.0)
    simulation.send(greedy("a", "ABC", 40))
    for _ in range(5):
        simulation.step()
    simulation.send(greedy("b", "ABC", 1))
    simulation.step()
    simulation.step()
    assert simulation.texts["b"] == expected_text("ABC", 1)


@pytest.mark.parametrize("limits", [{"step_budget_s": 0.001, "max_batch": 64}, {"max_batch": 24, "policy": "fcfs"}])
def test_where_not_all_fit_steps_are_planned_ahead_too(limits: dict) -> None:
    """By time, for 36 of 50 rows in a step: they take turns. By places: the others wait until a request ends."""
    simulation = late(blocks=600, **limits)
    assert isinstance(simulation.engine, LateEngine)
    names = [f"r{number}" for number in range(50)]
    for name in names:
        simulation.send(greedy(name, "ABC", 40))
    simulation.run(most=400)
    assert simulation.texts == dict.fromkeys(names, expected_text("ABC", 40))
    assert simulation.engine.prepared > 0.6 * simulation.steps
    assert simulation.steps > 50


def test_one_that_waits_for_a_place_gets_its_turn_in_the_end() -> None:
    simulation = late(max_batch=2)
    simulation.engine.step_s = 0.1
    for name in "ab":
        simulation.send(greedy(name, "ABC", 100))
    for _ in range(5):
        simulation.step()
    simulation.send(greedy("c", "ABC", 1))
    begin = simulation.clock.now
    while "c" not in simulation.ends:
        simulation.step()
    assert PATIENCE_S < simulation.clock.now - begin < PATIENCE_S + 0.4


def test_one_that_must_not_be_left_out_is_in_every_step() -> None:
    simulation = late(blocks=600, step_budget_s=0.001, max_batch=64)
    for number in range(50):
        simulation.send(greedy(f"r{number}", "ABC", 40))
    for _ in range(20):
        simulation.step()
    simulation.send(greedy("c", "ABC", 20, priority=Priority.CRITICAL))
    begin = simulation.steps
    while "c" not in simulation.ends:
        simulation.step()
    assert simulation.steps - begin <= 22


@pytest.mark.parametrize("kind", [{"priority": Priority.CRITICAL}, {"priority": Priority.HIGH}, {"deadline_s": 0.1}])
def test_one_that_goes_before_others_waits_no_longer_than_on_a_host(kind: dict) -> None:
    def others_went_on(simulation: Simulation) -> int:
        for name in "ab":
            simulation.send(greedy(name, "ABC", 60))
        for _ in range(5):
            simulation.step()
        simulation.send(greedy("c", "ABC", 1, **kind))
        begin = len(simulation.texts["a"] + simulation.texts["b"])
        while "c" not in simulation.ends:
            simulation.step()
        return len(simulation.texts["a"] + simulation.texts["b"]) - begin

    on_host = others_went_on(Simulation(blocks=60, host_blocks=0, max_batch=2))
    assert on_host <= others_went_on(late(max_batch=2)) <= on_host + 2  # the step that was under way


@pytest.mark.parametrize("host_blocks", [0, 20])
def test_where_blocks_run_out_somebody_gives_way(host_blocks: int) -> None:
    simulation = late(blocks=9, host_blocks=host_blocks, prefix_cache=False)
    for name in "abc":
        simulation.send(greedy(name, "ABC", 20))
    simulation.run(most=200)
    assert simulation.texts == dict.fromkeys("abc", expected_text("ABC", 20))
    assert sum(end.stats.preemptions for end in simulation.ends.values() if isinstance(end, Finished)) > 0
    assert simulation.pool.used == 0


@pytest.mark.parametrize("policy", ["fcfs", "priority", "deadline"])
def test_in_the_steady_state_every_step_is_planned_ahead(policy: str) -> None:
    """Also the step after the prompts, and the step after a request has reached its length."""
    simulation = late(policy=policy, max_batch=8, step_budget_s=1.0)
    assert isinstance(simulation.engine, LateEngine)
    for name, count in (("a", 30), ("b", 20), ("c", 20)):
        simulation.send(greedy(name, "ABC", count))
    simulation.run()
    assert simulation.steps == 31  # one to begin with, and one to end with
    assert simulation.engine.foreseen == 29
    assert simulation.texts == {name: expected_text("ABC", count) for name, count in (("a", 30), ("b", 20), ("c", 20))}


def test_one_that_ends_by_itself_was_in_a_step_for_nothing() -> None:
    """A stop string ends a request whose next step is under way: its blocks are free at once, its neighbours go on."""
    simulation = late(max_batch=8)
    text = expected_text("ABC", 12)
    stop = text[5:7]
    length = text.index(stop)
    sampling = SamplingParams(max_tokens=12, ignore_eos=True, stop=(stop,))
    simulation.send(Submit("a", "complete", text="ABC", sampling=sampling), greedy("b", "CBA", 20))
    while "a" not in simulation.ends:
        simulation.step()
    simulation.send(greedy("c", "BCA", 20))  # takes the blocks that a step under way still writes to
    simulation.run()
    assert simulation.texts == {"a": text[:length], "b": expected_text("CBA", 20), "c": expected_text("BCA", 20)}
    assert simulation.pool.used == 0


@pytest.mark.parametrize("where", ["launch", "wait"])
@pytest.mark.parametrize("window", [None, StateWindow(2, 2), StateWindow(2, 3)])
def test_a_fault_ends_the_rows_of_its_step_and_nobody_else(where: str, window: StateWindow | None) -> None:
    for boundary in range(1, 12):
        simulation = late(max_batch=2, blocks=40, window=window)
        assert isinstance(simulation.engine, LateEngine)
        for name in "ab":
            simulation.send(greedy(name, "ABCDEF", 8))
        for _ in range(boundary):
            simulation.step()
        simulation.engine.fail_next, simulation.engine.fail_wait = where == "launch", where == "wait"
        simulation.send(greedy("c", "FEDCBA", 8))
        simulation.run(most=60)
        # It finds in the cache what was computed, and nothing that the broken step should have computed.
        simulation.send(greedy("d", "ABCDEF" + expected_text("ABCDEF", 8), 3))
        simulation.run(most=60)
        assert reason(simulation.ends["d"]) == "length"
        for name, prompt in (("a", "ABCDEF"), ("b", "ABCDEF"), ("c", "FEDCBA")):
            if reason(simulation.ends[name]) == "failed":
                assert expected_text(prompt, 8).startswith(simulation.texts.get(name, ""))
            else:
                assert simulation.texts[name] == expected_text(prompt, 8)
        fewest = 1 if where == "wait" else 0  # a plan ahead that cannot be launched is made anew, without a trace
        assert fewest <= sum(reason(end) == "failed" for end in simulation.ends.values()) <= 2
        assert simulation.pool.used == 0


def test_what_a_step_brought_is_told_while_the_next_one_runs() -> None:
    simulation = late()
    assert isinstance(simulation.engine, LateEngine)
    simulation.send(greedy("a", "ABC", 5))
    assert not [message for message in simulation.step() if isinstance(message, Text)]
    told = [message for message in simulation.step() if isinstance(message, Text)]
    assert [message.text for message in told] == [chr(64 + next_token([1, 2, 3]))]
    assert simulation.engine.under_way is not None


def test_time_that_overlaps_is_not_counted_twice() -> None:
    simulation = late()
    begin = simulation.clock.now
    for name in "ab":
        simulation.send(greedy(name, "ABC", 9))
    simulation.run()
    (stats,) = simulation.core.idle()
    assert isinstance(stats, StepStats)
    assert stats.steps == 9
    assert stats.decode_tokens == 16
    assert stats.forward_s == pytest.approx(simulation.clock.now - begin)  # the device never rested
    assert stats.busy_s == pytest.approx(simulation.clock.now - begin)
    assert stats.interval_s == pytest.approx(simulation.clock.now - begin)
    assert stats.pressing_s == 0  # no request had more than normal priority
    assert stats.blocks_available == 1
    assert simulation.scheduler.resources["chat"].cost.predict(Work().plus(1, 9)) == pytest.approx(6e-3, rel=0.3)


def test_the_time_of_steps_for_conversations_and_the_blocks_they_hold_are_told() -> None:
    simulation = late()
    simulation.send(greedy("a", "ABC", 9, priority=Priority.HIGH), greedy("b", "ABC", 40))
    for _ in range(12):
        simulation.step()
    used = simulation.pool.used
    stats = simulation.core._telemetry.report(simulation.scheduler)
    assert 0 < stats.pressing_s < stats.busy_s  # "b" went on alone
    assert used > 0
    assert stats.blocks_available == pytest.approx(1 - used / simulation.pool.num_blocks)


def test_a_critical_prompt_is_read_beside_the_step_and_told_before_it_is_over() -> None:
    simulation = late(slow=20, concurrent_prefill=(False, 3), max_batch=8)
    for name in "ab":
        simulation.send(greedy(name, "ABC", 40, session="s"))
    for _ in range(4):
        simulation.step()
    lane, told, early = simulation.engine.concurrent_prefill, [], []
    coming = [Pause(("a", "b")), greedy("d", "DCBA", 3, session="s", priority=Priority.CRITICAL)]

    def receive() -> list[ToEngine]:
        came, coming[:] = list(coming), []
        return came

    def tell(messages: list[FromEngine]) -> None:
        told.extend(messages)
        early.extend(messages if simulation.engine.under_way is not None else [])

    rest = simulation.core.step(receive, tell)
    assert lane.launched == 1
    assert [message.text for message in early if isinstance(message, Text)] == [expected_text("DCBA", 1)]
    assert [message.request_id for message in told if isinstance(message, Text)] == ["d", "a", "b"]  # these are paused
    simulation._collect([*told, *rest])
    simulation.send(Resume("a"), Resume("b"))
    simulation.run(most=200)
    answer = expected_text("ABC", 40)
    assert simulation.texts == {"a": answer, "b": answer, "d": expected_text("DCBA", 3)}


@pytest.mark.parametrize("moment", ["before", "half way"])
@pytest.mark.parametrize("stopped", [[f"r{number}" for number in range(40)], ["r30"]], ids=["all", "one"])
def test_who_is_stopped_while_a_step_is_handed_out_writes_only_the_token_under_way(
    stopped: list[str], moment: str
) -> None:
    """The step that is over has brought one as well: it is told first."""
    simulation = late(blocks=600, max_batch=64, step_budget_s=1.0)
    names = [f"r{number}" for number in range(40)]
    for name in names:
        simulation.send(greedy(name, "ABC", 12, session="s"))
    for _ in range(5):
        simulation.step()
    told: list[FromEngine] = []
    urgent = greedy("urgent", "CBA", 1, session="s", priority=Priority.CRITICAL)
    coming: list[ToEngine] = [Pause(tuple(stopped)), Submit("mark", "tts", session="s"), urgent]

    def receive() -> list[ToEngine]:
        core = simulation.core
        handing_out = (
            core._delivery._ended is not None
            if moment == "before"
            else 0 < len(core._delivery._undelivered) < len(names)
        )
        if not handing_out or simulation.engine.under_way is None:
            return []
        came, coming[:] = list(coming), []
        return came

    for _ in range(4):
        told += simulation.core.step(receive, told.extend)
    assert not coming, "no step was under way while another was handed out"
    mark = next(place for place, message in enumerate(told) if getattr(message, "request_id", "") == "mark")
    after = Counter(message.request_id for message in told[mark:] if isinstance(message, Text))
    assert [after[name] for name in stopped] == [1] * len(stopped)
    simulation._collect(told)
    simulation.send(*(Resume(name) for name in names))
    simulation.run(most=60)
    assert {simulation.texts[name] for name in names} == {expected_text("ABC", 12)}


@pytest.mark.parametrize("concurrent_prefill", [(True, 9), (False, 9)])
@pytest.mark.parametrize("command", [Cancel("d"), Pause(("d",))])
def test_who_is_read_beside_the_step_can_be_stopped(concurrent_prefill: tuple[bool, int], command: ToEngine) -> None:
    simulation = late(concurrent_prefill=concurrent_prefill, blocks=12, max_batch=8)
    simulation.send(greedy("a", "ABC", 20))
    simulation.step()
    simulation.step(greedy("d", "DCBA", 3, session="t", priority=Priority.CRITICAL))
    simulation.step()
    assert simulation.scheduler.requests["d"].state is RequestState.CONCURRENT
    simulation.send(command, greedy("e", "EEEEEEEE", 3))  # which may have its blocks
    for _ in range(8):
        simulation.step()
    assert simulation.texts.get("d", "") == ("" if isinstance(command, Cancel) else expected_text("DCBA", 1))
    simulation.send(Resume("d"))
    simulation.run(most=100)
    assert simulation.texts["a"] == expected_text("ABC", 20)
    assert simulation.texts["e"] == expected_text("EEEEEEEE", 3)
    assert reason(simulation.ends["d"]) == ("cancelled" if isinstance(command, Cancel) else "length")


def test_a_fault_beside_the_step_ends_nobody_else() -> None:
    simulation = late(concurrent_prefill=(False, 0), max_batch=8)
    simulation.send(greedy("a", "ABC", 20))
    simulation.step()
    simulation.engine.concurrent_prefill.fail_next = True
    simulation.step(greedy("d", "DCBA", 3, priority=Priority.CRITICAL))
    simulation.run(most=100)
    assert reason(simulation.ends["d"]) == "failed"
    assert simulation.texts == {"a": expected_text("ABC", 20)}
    assert simulation.pool.used == 0


def test_nobody_is_read_beside_a_step_that_moves_blocks() -> None:
    """What it swaps out counts as free when it is planned, and is read when the device comes to it."""
    simulation = late(concurrent_prefill=(True, 0), slow=6, blocks=14, host_blocks=40, max_batch=8, prefix_cache=False)
    simulation.scheduler.resources["chat"].swap_block_s = 1e-9
    prompts = {"a": "ABCDEFGHIJKLMNOPQRST", "b": "TSRQPONMLKJIHGFEDCBA"}
    simulation.send(*(greedy(name, prompt, 30) for name, prompt in prompts.items()))
    while simulation.texts.keys() != prompts.keys():
        simulation.step()
    lane = simulation.engine.concurrent_prefill
    lane.takes = lambda request: request.id == "lane"  # the other wants something that the host has to choose
    simulation.send(greedy("big", "ZZZZZYYYYYXXXXXWWWWW", 2, priority=Priority.CRITICAL))
    while not any(step.plan.loads["chat"].moves for step in simulation.core._running_steps):
        simulation.step()
    simulation.step(greedy("lane", "MMMMNNNN", 1, priority=Priority.CRITICAL))
    simulation.run(most=600)
    for name, prompt in prompts.items():
        assert simulation.texts[name] == expected_text(prompt, 30)
    assert simulation.texts["lane"] == expected_text("MMMMNNNN", 1)


def test_prompts_beside_a_step_may_hold_the_last_blocks() -> None:
    simulation = late(blocks=5, host_blocks=0, concurrent_prefill=(False, 40), max_batch=8)
    simulation.send(greedy("r", "ABC", 16))
    while len(simulation.texts.get("r", "")) < 8:
        simulation.step()
    simulation.send(greedy("d", "DCBADCBA", 1, priority=Priority.CRITICAL))
    simulation.run(most=300)
    assert simulation.texts == {"r": expected_text("ABC", 16), "d": expected_text("DCBADCBA", 1)}


def test_who_was_cancelled_in_a_step_may_find_its_cached_blocks_taken() -> None:
    simulation = late(concurrent_prefill=(True, 0), blocks=5, host_blocks=0, max_batch=4)
    simulation.send(greedy("a", "ABCDEFGHI", 8))
    while len(simulation.texts.get("a", "")) < 4:
        simulation.step()
    simulation.send(Cancel("a"), greedy("c", "DCBADCBADCBADCB", 1, priority=Priority.CRITICAL))
    simulation.run(most=100)
    assert simulation.texts["c"] == expected_text("DCBADCBADCBADCB", 1)


def test_who_comes_while_a_prompt_is_read_goes_too_and_the_third_waits_for_that_and_not_for_a_step() -> None:
    simulation = late(slow=0, concurrent_prefill=(False, 12), max_batch=8)
    simulation.send(greedy("a", "ABC", 40))
    simulation.step()
    simulation.step()
    simulation.step(greedy("d", "DCBA", 1, priority=Priority.CRITICAL))
    simulation.step(greedy("e", "EEDD", 1, priority=Priority.CRITICAL))
    simulation.step(greedy("f", "FFDD", 1, priority=Priority.CRITICAL))
    lane = simulation.engine.concurrent_prefill
    assert lane.launched == len(lane.together) == 2
    seen: set[str] = set()
    while simulation.core.busy:
        seen |= {row.request.id for step in simulation.core._running_steps for row in step.plan.rows}
        simulation.step()
    assert lane.launched == 3
    assert seen == {"a"}
    assert simulation.texts["e"] == expected_text("EEDD", 1)
    assert simulation.texts["f"] == expected_text("FFDD", 1)
