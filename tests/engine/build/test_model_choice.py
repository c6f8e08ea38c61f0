"""`engine.model = "auto"`: the machine decides, a missing file does not keep it from talking, and it says why."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from checkpoints import CONFIGS, write_checkpoint
from hypothesis import given
from hypothesis import strategies as st

from voxlane.engine.api import EngineConfig
from voxlane.engine.build import model_choice
from voxlane.engine.build.model_choice import Candidate, candidates, choose_model, for_cpu, for_gpu, take_first
from voxlane.engine.errors import StoreError
from voxlane.engine.weights import store
from voxlane.engine.weights.hub import COMPLETE

LARGE, MIDDLE, SMALL = MODELS = [
    Candidate("large", 1_500_000_000, 1_100_000_000, 8.0),
    Candidate("middle", 500_000_000, 490_000_000, 8.0),
    Candidate("small", 135_000_000, 98_000_000, 0.0),
]
PLENTY = 1 << 40


def name_for(weights_s: float, free_bytes: int = PLENTY) -> str:
    return for_cpu(MODELS, weights_s, free_bytes, cache_bytes=768 << 20, first_word_ms=700)[0][0].name


def test_speed_decides() -> None:
    assert name_for(100e9) == "large"
    assert name_for(12e9) == "middle"
    assert name_for(6e9) == "middle", "it is late, but the smallest seldom makes sense"
    assert name_for(2e9) == "small"


def test_memory_decides() -> None:
    assert name_for(100e9, 16 << 30) == "large"
    assert name_for(100e9, 2800 << 20) == "middle"
    assert name_for(100e9, 100 << 20) == "small", "the smallest model is the last resort"


def test_the_reason_names_the_speed_and_what_was_passed_over() -> None:
    models, reason = for_cpu(MODELS, 30e9, PLENTY, 0, 700)
    assert models == [MIDDLE, SMALL]
    told = "its first word is heard about 541 ms after a person's last one on this machine; large would take 763"
    assert reason == told
    assert for_cpu(MODELS, 30e9, PLENTY, 0, 800)[0] == MODELS, "who waits longer gets the better one"
    _, reason = for_cpu(MODELS, 100e9, 2 << 30, 0, 700)
    assert "large needs 2.3 GB and 2.1 are free" in reason


@given(st.floats(1e6, 1e13), st.integers(0, PLENTY), st.integers(0, 1 << 33))
def test_a_faster_machine_never_gets_a_smaller_model(weights_s: float, free: int, cache: int) -> None:
    def size(speed: float, room: int) -> int:
        models, _ = for_cpu(MODELS, speed, room, cache, 700)
        assert models[-1] is SMALL, "what can always serve is always among them"
        return models[0].parameters

    assert size(weights_s * 2, free) >= size(weights_s, free)
    assert size(weights_s, free * 2) >= size(weights_s, free)


def test_a_gpu_takes_the_largest_that_was_pulled_and_fits() -> None:
    pulled = [SMALL, Candidate("hf:a/8b", 8_000_000_000, 0, 0.0), Candidate("hf:a/70b", 70_000_000_000, 0, 0.0)]
    models, reason = for_gpu(MODELS, pulled, 80 << 30)
    assert [model.name for model in models] == ["hf:a/8b", "large", "middle", "small"]
    assert "largest model on this machine" in reason
    assert [model.name for model in for_gpu(MODELS, [], 80 << 30)[0]] == ["large", "middle", "small"]
    assert [model.name for model in for_gpu(MODELS, [], 3 << 30)[0]] == ["middle", "small"]
    assert [model.name for model in for_gpu(MODELS, [], 1 << 20)[0]] == ["small"]


def test_what_cannot_be_fetched_is_replaced_by_the_next_and_told() -> None:
    asked: list[str] = []

    def fetch(model: Candidate) -> None:
        asked.append(model.name)
        if model is not SMALL:
            raise StoreError(f"no network for {model.name}")

    chosen = take_first(MODELS, "it is quick", fetch)
    assert asked == ["large", "middle", "small"]
    assert chosen.model == "small"
    assert chosen.missed == (
        "large could not be fetched (no network for large); middle could not be fetched (no network for middle)"
    )
    assert take_first([SMALL], "it is quick", fetch).missed == ""
    with pytest.raises(StoreError, match="no network for middle"):
        take_first([LARGE, MIDDLE], "it is quick", fetch)


def test_the_candidates_are_in_the_catalog_best_first() -> None:
    sizes = [model.parameters for model in candidates()]
    assert sizes == sorted(sizes, reverse=True)
    assert candidates()[-1].least_tokens_s == 0, "the last one serves wherever nothing else can"


def test_pulled_models_are_chat_models_of_the_catalog_and_of_hubs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(store.CACHE_VARIABLE, str(tmp_path))
    snapshots = [tmp_path / "hub" / f"models--own--{name}" / "snapshots" / "1" for name in ("chat", "half", "other")]
    for folder in snapshots:
        folder.mkdir(parents=True)
        write_checkpoint(folder, CONFIGS["llama"])
    for folder in (snapshots[0], snapshots[2]):
        (folder / COMPLETE).touch()
    (snapshots[2] / "config.json").write_text('{"model_type": "whisper"}')
    (found,) = model_choice.pulled_models()
    assert found.name == "hf:own/chat"
    assert found.parameters > 0


def test_the_first_start_measures_fetches_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(model_choice, "weights_per_second", lambda threads: 1e9)
    monkeypatch.setattr(store, "resolve", lambda name, *, mirrors, progress: progress(1.0))
    chosen = choose_model(EngineConfig(), torch.device("cpu"), lambda what, done: told.append(what))
    assert chosen.model == "smollm2-135m-instruct"
    assert told == ["measuring this machine", "fetching smollm2-135m-instruct, 98 MB"]
