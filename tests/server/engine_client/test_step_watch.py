"""The rule that tells a hung step thread from one that takes long, by facts alone."""

from __future__ import annotations

import itertools

import pytest

from voxlane.server.engine_client.step_watch import LOOK_S, StepWatch, ThreadFacts

HANG_S = 2.0


def looks_until_hung(
    watch: StepWatch, facts: list[ThreadFacts | None], *, count: int = 7, allowed_s: float = 0.0, loading: bool = False
) -> int | None:
    """Return after how many looks at these facts, with a count that stands still, the thread counts as hung.

    The first look only sees the count.
    """
    for number, fact in enumerate(facts, start=1):
        if watch.check(count, allowed_s, fact, loading=loading):
            return number
    return None


def running(share: float, looks: int) -> list[ThreadFacts | None]:
    """Return the facts of a thread that runs, with this share of a processor."""
    return [ThreadFacts("R", number * LOOK_S * share) for number in range(looks)]


def same(state: str, looks: int) -> list[ThreadFacts | None]:
    return [ThreadFacts(state, 1.0)] * looks


@pytest.mark.parametrize("state", ["S", "T", "t", "I"])
def test_a_thread_that_stands_still_hangs(state: str) -> None:
    assert looks_until_hung(StepWatch(HANG_S), same(state, 100)) == round(HANG_S / LOOK_S) + 1


def test_a_thread_that_cannot_be_looked_at_is_judged_by_its_count() -> None:
    assert looks_until_hung(StepWatch(HANG_S), [None] * 100) == round(HANG_S / LOOK_S) + 1


def test_a_thread_that_runs_without_progress_hangs() -> None:
    assert looks_until_hung(StepWatch(HANG_S), running(1.0, 100)) == round(HANG_S / LOOK_S) + 1


def test_a_thread_that_gets_little_of_the_processor_has_more_time() -> None:
    found = looks_until_hung(StepWatch(HANG_S), running(0.1, 1000))
    assert found is not None
    assert found * LOOK_S >= 10 * HANG_S


@pytest.mark.parametrize("facts", [running(0.0, 1000), same("D", 1000)], ids=["no processor", "disk"])
def test_a_thread_that_cannot_go_on_does_not_hang(facts: list[ThreadFacts | None]) -> None:
    assert looks_until_hung(StepWatch(HANG_S), facts) is None


@pytest.mark.parametrize("state", ["S", "R", "T"])
def test_a_thread_that_counts_never_hangs(state: str) -> None:
    watch = StepWatch(HANG_S)
    for count in range(1000):
        assert not watch.check(count, 0.0, ThreadFacts(state, count * LOOK_S))


def test_an_announced_operation_may_take_as_long_as_it_says() -> None:
    assert looks_until_hung(StepWatch(HANG_S), same("S", 1000), allowed_s=30.0) == round(30.0 / LOOK_S) + 1


def test_a_stopped_process_has_no_such_allowance() -> None:
    assert looks_until_hung(StepWatch(HANG_S), same("T", 1000), allowed_s=30.0) == round(HANG_S / LOOK_S) + 1


def test_a_loading_engine_is_only_given_up_when_it_is_stopped() -> None:
    assert looks_until_hung(StepWatch(HANG_S), same("S", 1000), loading=True) is None
    assert looks_until_hung(StepWatch(HANG_S), same("T", 1000), loading=True) == round(HANG_S / LOOK_S) + 1


def test_a_stop_that_ends_in_time_is_forgotten() -> None:
    watch = StepWatch(HANG_S)
    few = round(HANG_S / LOOK_S) - 1
    for facts in itertools.chain.from_iterable((*same("T", few), *running(0.0, 1)) for _ in range(5)):
        assert not watch.check(7, 60.0, facts)


def test_a_hang_need_not_be_looked_for() -> None:
    assert looks_until_hung(StepWatch(0.0), same("T", 10_000)) is None
