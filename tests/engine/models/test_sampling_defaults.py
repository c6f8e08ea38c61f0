"""What a model's files recommend is taken where a request says nothing, and never where it says something."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from checkpoints import CONFIGS, write_checkpoint
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from voxlane.engine.api import MODEL_DECIDES, SamplingDefaults, SamplingParams, sampling_of
from voxlane.engine.models.sampling_defaults import GENERATION_CONFIG, defaults_of, filled
from voxlane.engine.weights.files import OpenedWeights, open_weights

SMALL, LARGE = 500_000_000, 3_000_000_000


def directory(path: Path, said: object) -> OpenedWeights:
    folder = write_checkpoint(path, CONFIGS["llama"])
    if said is not None:
        (folder / GENERATION_CONFIG).write_text(said if isinstance(said, str) else json.dumps(said))
    return open_weights(folder)


def gguf_file(path: Path, **said: float) -> OpenedWeights:
    writer = gguf.GGUFWriter(path / "model.gguf", "llama")
    sizes = {"block_count": 1, "embedding_length": 32, "feed_forward_length": 32, "attention.head_count": 1}
    for key, size in {**sizes, "context_length": 8, "attention.head_count_kv": 1}.items():
        writer.add_uint32(f"llama.{key}", size)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-6)
    for key, value in said.items():
        add = writer.add_int32 if isinstance(value, int) else writer.add_float32
        add(f"general.sampling.{key}", value)  # type: ignore[operator]
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return open_weights(path / "model.gguf")


def test_a_silent_model_is_drawn_by_its_size(tmp_path: Path) -> None:
    for weights in (directory(tmp_path / "a", None), gguf_file(tmp_path), directory(tmp_path / "b", {"top_k": None})):
        assert defaults_of(weights, SMALL) == SamplingDefaults(0.3)
        assert defaults_of(weights, LARGE) == SamplingDefaults(0.7)


def test_generation_config_is_heeded(tmp_path: Path) -> None:
    said = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.1, "do_sample": True, "eos": 1}
    found = defaults_of(directory(tmp_path, said), SMALL)
    assert found == SamplingDefaults(0.7, 20, 0.8, 0.0, 1.1, GENERATION_CONFIG)


@pytest.mark.parametrize(
    ("said", "temperature"),
    [
        ({"do_sample": False, "temperature": 0.9}, 0.0),
        ({"do_sample": True}, 1.0),
        ({"do_sample": None, "top_p": 0.5}, 0.3),
        ({"do_sample": True, "temperature": 0.6}, 0.6),
    ],
)
def test_whether_to_sample_decides_the_temperature(tmp_path: Path, said: Any, temperature: float) -> None:
    assert defaults_of(directory(tmp_path, said), SMALL).temperature == temperature


def test_a_gguf_file_says_it_in_its_fields(tmp_path: Path) -> None:
    found = defaults_of(gguf_file(tmp_path, temp=0.95, top_k=40, min_p=0.05, penalty_repeat=1.05), SMALL)
    assert found == SamplingDefaults(0.95, 40, 1.0, 0.05, 1.05, "general.sampling.*")


@pytest.mark.parametrize("said", ["{", "[" * 100_000, "[]", '"x"'])
def test_a_file_that_is_none_is_left_out(tmp_path: Path, said: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert defaults_of(directory(tmp_path, said), SMALL) == SamplingDefaults(0.3)
    assert GENERATION_CONFIG in caplog.text


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", -1), ("temperature", "hot"), ("top_p", 0), ("top_p", True), ("top_k", 1 << 30), ("min_p", 2)],
)
def test_a_wrong_value_is_left_out_and_named(
    tmp_path: Path, name: str, value: object, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        found = defaults_of(directory(tmp_path, {name: value, "repetition_penalty": 1.2}), SMALL)
    assert found == SamplingDefaults(0.3, repetition_penalty=1.2, source=GENERATION_CONFIG)
    assert name in caplog.text


OWN = SamplingDefaults(0.6, 20, 0.9, 0.1, 1.1)
MAYBE = st.none() | st.sampled_from([0, 1])


@given(st.tuples(MAYBE, MAYBE, MAYBE, MAYBE, MAYBE))
def test_what_is_given_stays_and_the_rest_is_the_models(values: tuple[int | None, ...]) -> None:
    asked = structs.replace(sampling_of(*values), seed=5)
    found = filled(asked, OWN)
    assert (found.unset, found.seed) == ((), 5)
    for name, value in zip(MODEL_DECIDES, values, strict=True):
        neutral = SamplingParams() if values[0] == 0 else OWN
        assert getattr(found, name) == (getattr(neutral, name) if value is None else value)


def test_parameters_of_the_engines_own_tasks_stay_as_they_are() -> None:
    assert filled(SamplingParams(), OWN).is_plain_greedy
    assert filled(sampling_of(0.0), OWN).is_plain_greedy
