"""How the attention benchmarks time and choose, the device faked: turns, ways of a peer, lines for the code."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))

import gpu_kernels
from support.gpu import clock
from support.kernels import paged
from support.kernels.compiled import Compiled
from support.kernels.paged import Captured, Case, Took


class Device:
    """A device on which everything takes as long as it says, and all of it longer by the hour."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms = 0.0
        self.done: list[str] = []
        device = self

        class Event:
            def __init__(self, *, enable_timing: bool) -> None:
                self.at_ms = -1.0

            def record(self) -> None:
                self.at_ms = device.now_ms

            def elapsed_time(self, later: Event) -> float:
                assert 0.0 <= self.at_ms <= later.at_ms
                return later.at_ms - self.at_ms

        host_s = itertools.count(0.0, clock.WARM_SECONDS / 2)
        cuda = SimpleNamespace(Event=Event, synchronize=lambda: self.done.append("|"))
        monkeypatch.setattr(clock, "torch", SimpleNamespace(cuda=cuda))
        monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: next(host_s)))

    def work(self, name: str, takes_ms: float) -> Any:
        def run() -> None:
            self.done.append(name)
            self.now_ms += takes_ms + len(self.done)  # later is slower

        return run


def test_all_are_timed_in_turns_on_a_warm_device(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch)
    works = [device.work(name, 10.0) for name in "abc"]
    spans = clock.time_in_turns(works, 6, torch.device("cuda"))
    warm, timed = "".join(device.done).rstrip("|").rsplit("|", 1)
    assert warm == "abc"  # until the clock says that it is
    assert timed == "a" + "abcbcacab" * 2  # the first one is not timed
    assert [len(each) for each in spans] == [6, 6, 6]
    assert all(each == sorted(each) for each in spans)
    assert [sum(each) for each in spans] == pytest.approx([sum(spans[0])] * 3)  # a drift hits all alike


def test_what_counts_is_the_middle_of_all_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = [[9e-6, 1e-5, 1.1e-5, 1.2e-5, 9e-3], [1e-6] * 5]
    monkeypatch.setattr(paged, "time_in_turns", lambda works, count, device: rounds)
    entries = [Captured([lambda: None] * calls) for calls in (2, 1)]
    took = paged.race(entries, 5)
    assert [(each.median, each.low, each.high) for each in took] == [
        pytest.approx((5.5, 5.0, 6.0)),
        pytest.approx((1.0, 1.0, 1.0)),
    ]


def test_a_peer_is_timed_by_the_way_that_won_before(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    takes = {"slow": 9.0, "quick": 3.0, "late": 5.0}
    monkeypatch.setattr(gpu_kernels, "Captured", lambda calls: calls[0])
    monkeypatch.setattr(gpu_kernels, "race", lambda entries, rounds: [Took(takes[name], 0, 0) for name in entries])

    def ways() -> Iterator[Any]:
        yield from (("slow", ["slow"]), ("odd", []), ("quick", ["quick"]), ("late", ["late"]))
        raise RuntimeError("no more\nof it")

    assert gpu_kernels.fastest(ways(), (IndexError, RuntimeError)) == "quick"
    assert capsys.readouterr().out.splitlines() == [
        "  odd declined: IndexError list index out of range",
        "  late declined: RuntimeError no more",
    ]
    with pytest.raises(RuntimeError):
        gpu_kernels.fastest(ways(), (IndexError,))
    assert gpu_kernels.fastest(iter(()), ()) is None


def test_bars(capsys: pytest.CaptureFixture[str]) -> None:
    def took(**names: float) -> dict[str, Took]:
        return {name: Took(each, each, each) for name, each in names.items()}

    wide = Case(16, 8, 128, 8192, 64)
    narrow = Case(16, 8, 128, 8192, 64, kind=torch.int8)
    copy = wide.kv_bytes / 1e-4
    gpu_kernels.bars({wide: took(ours=100.0, FA3=101.0, FlashInfer=99.0, SDPA=90.0), narrow: took(ours=60.0)}, copy)
    head, *facts = capsys.readouterr().out.splitlines()
    assert head == "bars: 2 of 3 met"
    assert [fact.rsplit(" ", 1)[1] for fact in facts] == ["NO", "yes", "yes"]


@pytest.mark.parametrize(
    ("registers", "warps", "shared", "fits"),
    [(186, 1, 10_240, 8), (168, 1, 10_240, 12), (255, 2, 38_912, 4), (168, 2, 38_912, 5), (32, 4, 1024, 16)],
)
def test_programs_that_a_multiprocessor_holds(registers: int, warps: int, shared: int, fits: int) -> None:
    """Its registers are four quarters, and a warp lives in one of them."""
    assert Compiled("kernel", registers, 0, shared, warps).fits == fits
