"""A step that gives way on the device, interpreted on the CPU: how long it stands still, and for which requests."""

from __future__ import annotations

import threading

import pytest
import torch

from voxlane.engine.kernels import yield_flag
from voxlane.engine.kernels.yield_flag import YieldFlag
from voxlane.engine.kernels.yield_flag_triton import yield_to_critical

MOST_NS = 50_000
LONG_NS = 10**15


@pytest.fixture
def way() -> YieldFlag:
    return YieldFlag.make(3, torch.device("cpu"))


def test_nobody_is_waited_for_who_does_not_ask(way: YieldFlag) -> None:
    way.waited_ns.fill_(7)
    yield_to_critical(way, MOST_NS, first=False)
    assert way.waited_ns.tolist() == [7]
    yield_to_critical(way, MOST_NS, first=True)
    assert way.waited_ns.tolist() == [0]


@pytest.mark.parametrize("asker", [0, 1, 2])
def test_a_step_stands_still_once_for_so_long_and_the_next_one_again(way: YieldFlag, asker: int) -> None:
    way.asked[asker] = 1
    yield_to_critical(way, MOST_NS, first=True)
    assert way.waited_ns.tolist() == [MOST_NS]
    yield_to_critical(way, MOST_NS, first=False)
    assert way.waited_ns.tolist() == [MOST_NS], "it has waited long enough"
    yield_to_critical(way, MOST_NS, first=True)
    assert way.waited_ns.tolist() == [MOST_NS]


@pytest.mark.parametrize("first", [True, False])
def test_a_step_that_may_not_stand_still_does_not(way: YieldFlag, first: bool) -> None:
    way.asked.fill_(1)
    yield_to_critical(way, 0, first=first)
    assert way.waited_ns.tolist() == [0]


def test_a_step_goes_on_when_nobody_asks_any_more(way: YieldFlag) -> None:
    way.asked[1] = 1
    timer = threading.Timer(0.05, way.asked.zero_)
    timer.start()
    yield_to_critical(way, LONG_NS, first=True)
    timer.join()
    assert 0 < int(way.waited_ns) < LONG_NS


def test_on_a_cpu_nobody_is_waited_for(way: YieldFlag) -> None:
    way.asked.fill_(1)
    yield_flag.yield_to_critical(way, first=True)
    assert way.waited_ns.tolist() == [0]
