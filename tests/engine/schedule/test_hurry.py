"""While an answer is late, a model that hurries runs steps for it and for what is needed soon."""

from __future__ import annotations

from dataclasses import replace

import pytest

from voxlane.engine.api import Policy, Priority
from voxlane.engine.memory.blocks import BlockPool, BlockTable
from voxlane.engine.schedule.cost import CostModel
from voxlane.engine.schedule.plan import CONVERSATION, SPEECH_FRAMES, Abilities, Limits, ModelResources
from voxlane.engine.schedule.request import Request, RequestState
from voxlane.engine.schedule.scheduler import PATIENCE_S, SPARE_S, Scheduler

NOW = 100.0


def house(abilities: Abilities = CONVERSATION, policy: Policy = "deadline") -> Scheduler:
    pool, host = BlockPool(64, 16, prefix_cache=False), BlockPool(0, 16, prefix_cache=False)
    resources = ModelResources(pool, host, CostModel(), abilities=abilities)
    return Scheduler({"speech": resources}, Limits(max_batch=16, step_budget_s=1.0, policy=policy))


def speaking(scheduler: Scheduler, name: str, ahead_s: float) -> Request:
    """Add a request whose listener has so much audio; below zero it waits for its first."""
    table = BlockTable(scheduler.resources["speech"].pool)
    table.append(8)
    request = Request(name, "converse", [1] * 9, 8, table, priority=Priority.HIGH, model="speech", due_s=NOW + ahead_s)
    request.joins_from_s = NOW - 1.0
    scheduler.add(request)
    request.state, request.started, request.progress_s = RequestState.RUNNING, True, NOW
    return request


def planned(scheduler: Scheduler) -> set[str]:
    return {row.request.id for row in scheduler.schedule(NOW).rows}


def test_a_late_answer_shares_its_steps_with_what_is_needed_soon() -> None:
    scheduler = house()
    speaking(scheduler, "late", -0.01)
    speaking(scheduler, "soon", SPARE_S / 2)
    speaking(scheduler, "relaxed", 2 * SPARE_S)
    speaking(scheduler, "resting", 5.0).not_needed_before_s = NOW + 4.0
    assert planned(scheduler) == {"late", "soon"}


def test_without_a_late_answer_all_share_a_step() -> None:
    scheduler = house()
    speaking(scheduler, "soon", SPARE_S / 2)
    speaking(scheduler, "relaxed", 2 * SPARE_S)
    speaking(scheduler, "resting", 5.0).not_needed_before_s = NOW + 4.0
    assert planned(scheduler) == {"soon", "relaxed", "resting"}


@pytest.mark.parametrize(
    ("abilities", "policy"),
    [(SPEECH_FRAMES, "deadline"), (replace(CONVERSATION, hurries=False), "deadline"), (CONVERSATION, "priority")],
)
def test_only_a_model_that_hurries_does_so_and_only_by_deadlines(abilities: Abilities, policy: Policy) -> None:
    scheduler = house(abilities, policy)
    speaking(scheduler, "late", -0.01)
    speaking(scheduler, "relaxed", 2 * SPARE_S)
    assert planned(scheduler) == {"late", "relaxed"}


def test_a_request_that_was_left_out_is_needed_soon_in_time() -> None:
    """Late answers that follow each other without a break keep no listener without audio."""
    scheduler = house()
    late, relaxed = speaking(scheduler, "late", -0.01), speaking(scheduler, "relaxed", 1.0)
    assert relaxed.due_s is not None
    for step in range(100):
        late.due_s, late.tokens = NOW + step / 100 - 0.01, [*late.tokens, 1]
        if "relaxed" in {row.request.id for row in scheduler.schedule(NOW + step / 100).rows}:
            break
    left_s = relaxed.due_s - (NOW + step / 100)
    assert 0 < left_s <= SPARE_S
    assert SPARE_S < PATIENCE_S, "no request starves by this rule"
