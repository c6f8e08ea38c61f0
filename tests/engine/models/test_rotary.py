"""The rotary frequencies against Hugging Face's, to the last bit."""

from __future__ import annotations

import pytest
import torch
from lazily import transformers

from voxlane.engine.errors import ModelConfigError
from voxlane.engine.models.rotary import Rope, parse_rope
from voxlane.engine.models.settings import Settings

CONTEXT = 4096
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024,
}


def parse(scaling: dict[str, object], theta: float = 10_000.0) -> Rope:
    return parse_rope(Settings(scaling, "rope_scaling."), theta, CONTEXT, CONTEXT)


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("theta", [10_000.0, 500_000.0])
@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 3.0},
        {"rope_type": "dynamic", "factor": 3.0},
        LLAMA3,
        LLAMA3 | {"original_max_position_embeddings": None},
        YARN,
        YARN | {"factor": 0.5},
        YARN | {"beta_fast": 16.0, "beta_slow": 2.0, "truncate": False},
        YARN | {"attention_factor": 1.7},
        YARN | {"mscale": 0.7},
        YARN | {"mscale": 0.7, "mscale_all_dim": 1.3},
        YARN | {"original_max_position_embeddings": 4},  # the ramp's upper end below its lower
        YARN | {"original_max_position_embeddings": 6},  # both ends of the ramp fall together
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_frequencies_equal_the_reference(scaling: dict[str, object], theta: float, head_dim: int) -> None:
    given = {key: value for key, value in scaling.items() if value is not None}
    config = transformers.LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_theta": theta, **given},
    )
    wanted, factor = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS[str(scaling["rope_type"])](
        config, torch.device("cpu")
    )
    rope = parse(scaling, theta)
    assert torch.equal(rope.frequencies(head_dim), wanted)
    assert rope.attention_factor == factor
    cos, sin = rope.tables(head_dim, 50)
    angles = torch.arange(50.0)[:, None] * wanted
    assert torch.equal(cos, angles.cos() * factor)
    assert torch.equal(sin, angles.sin() * factor)


def test_both_spellings_of_the_kind() -> None:
    assert parse({"type": "linear", "factor": 2.0}) == parse({"rope_type": "linear", "factor": 2.0})
    assert parse({}) == parse({"rope_type": "default"}) == Rope(10_000.0)
    assert parse({"rope_theta": 5.0}).theta == 5.0


def test_yarn_without_a_factor_takes_the_ratio_of_contexts() -> None:
    assert parse(YARN | {"factor": None}) == parse(YARN)


@pytest.mark.parametrize(
    ("scaling", "named"),
    [
        ({"rope_type": "longrope", "factor": 2.0}, "rope_scaling.rope_type"),
        ({"type": "mrope"}, "rope_scaling.type"),
        ({"rope_type": "linear"}, "rope_scaling.factor"),
        ({"rope_type": "linear", "factor": -1.0}, "rope_scaling.factor"),
        ({"rope_type": "linear", "factor": float("nan")}, "rope_scaling.factor"),
        ({"rope_type": "linear", "factor": True}, "rope_scaling.factor"),
        (LLAMA3 | {"low_freq_factor": None}, "rope_scaling.low_freq_factor"),
        (LLAMA3 | {"high_freq_factor": 1.0}, "rope_scaling.high_freq_factor"),
        (YARN | {"truncate": "no"}, "rope_scaling.truncate"),
        ({"partial_rotary_factor": 0.5}, "rope_scaling.partial_rotary_factor"),
        ({"mrope_section": [1, 2]}, "rope_scaling.mrope_section"),
        ({"rope_theta": "big"}, "rope_scaling.rope_theta"),
    ],
)
def test_what_is_refused_is_named(scaling: dict[str, object], named: str) -> None:
    with pytest.raises(ModelConfigError, match=rf"config key {named}: ") as raised:
        parse(scaling)
    assert "\n" not in str(raised.value)
