"""`engine.asr_model = "auto"`: the machine decides, a missing file does not make it deaf, and it says why."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from voxlane.engine.api import EngineConfig
from voxlane.engine.build import listener_choice
from voxlane.engine.build.listener_choice import ACCURATE, FRUGAL, choose_listener, listeners_for_cpu, rank_listeners
from voxlane.engine.errors import StoreError
from voxlane.engine.weights import store
from voxlane.engine.weights.catalog import load_catalog


def test_speed_decides_and_the_reason_says_so() -> None:
    assert listeners_for_cpu(36e9) == ([ACCURATE, FRUGAL], "this machine takes about 100 ms for a turn of 3 s with it")
    assert listeners_for_cpu(3.6e9) == ([FRUGAL], f"{ACCURATE} would take 1000 ms for a turn of 3 s")


@given(st.floats(1e6, 1e13))
def test_a_faster_machine_never_hears_worse(weights_s: float) -> None:
    slow, fast = (listeners_for_cpu(speed)[0] for speed in (weights_s, 2 * weights_s))
    assert slow[-1] == fast[-1] == FRUGAL
    assert len(slow) <= len(fast)


def test_the_catalog_has_both() -> None:
    assert {load_catalog()[name].task for name in (ACCURATE, FRUGAL)} == {"asr"}


def test_a_gpu_takes_the_model_whose_cost_grows_with_the_clip() -> None:
    assert rank_listeners(EngineConfig(), torch.device("cuda"))[0] == [FRUGAL]


def test_what_cannot_be_fetched_is_replaced_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(name: str, **_: object) -> Path:
        if name == ACCURATE:
            raise StoreError("no network")
        return Path(name)

    monkeypatch.setattr(store, "resolve", resolve)
    monkeypatch.setattr(listener_choice, "weights_per_second", lambda threads: 1e12)
    told: list[str] = []
    choice = choose_listener(EngineConfig(), torch.device("cpu"), lambda what, done: told.append(what))
    assert choice.model == FRUGAL
    assert choice.missed == f"{ACCURATE} could not be fetched (no network)"
    assert told == ["measuring this machine"]
