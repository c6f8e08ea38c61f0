"""LFM2-Audio's config.json: what is read, and what is refused by name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from lfm2_audio_parts import BACKBONE, CONFIG

from voxlane.engine.errors import ModelConfigError
from voxlane.engine.models.lfm2_audio.config import Lfm2AudioConfig


def test_the_published_depth_transformer() -> None:
    values = CONFIG | {"codebooks": 8, "depthformer": {"layers": 6, "dim": 1024, "tie": True}}
    config = Lfm2AudioConfig.from_dict(values)
    depth = config.depth
    assert (config.groups, config.interleaved_text, config.interleaved_frames) == (8, 6, 12)
    assert (depth.layers, depth.heads, depth.kv_heads, depth.head_dim) == (6, 32, 8, 32)
    assert (depth.intermediate_size, depth.vocab_size, depth.qk_norm) == (2816, 2049, True)
    assert config.depth_tied


def test_the_backbones_section_is_handed_on() -> None:
    config = Lfm2AudioConfig.from_dict(CONFIG)
    assert config.backbone == {"model_type": "lfm2", "hidden_size": BACKBONE}
    assert config.hidden_size == BACKBONE


def broken() -> Iterator[tuple[str, object, str]]:
    """Yield keys and values that are refused, and the key that is named."""
    for key, value in {
        "codebooks": 1, "interleaved_n_text": 0, "interleaved_n_audio": "12", "surprise": 1, "encoder": None,
        "preprocessor": None, "lfm": None, "depthformer": None, "tie_audio_embeddings": "no",
    }.items():  # fmt: skip
        yield key, value, key
    yield "lfm", {}, "lfm"
    yield "lfm", {"hidden_size": -1}, r"lfm\.hidden_size"
    yield "lfm", [1], "lfm"
    for part, value in {"dim": 100, "layers": 0, "tie": 3, "heads": 4}.items():
        yield "depthformer", {"layers": 2, "dim": 128, "tie": True, part: value}, rf"depthformer\.{part}"
    yield "encoder", {"d_model": 3}, r"encoder\."


@pytest.mark.parametrize(("key", "value", "named"), list(broken()))
def test_what_we_do_not_do_is_refused_by_name(key: str, value: object, named: str) -> None:
    with pytest.raises(ModelConfigError, match=f"config key {named}"):
        Lfm2AudioConfig.from_dict(CONFIG | {key: value})
