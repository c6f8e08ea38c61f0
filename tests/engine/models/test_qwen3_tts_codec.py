"""The 12 Hz codec's decoder against the package qwen-tts, however its frames are cut and its streams are mixed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from qwen_tts_peer import QwenTtsPeer
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from voxlane.engine.errors import ModelConfigError, TensorError
from voxlane.engine.models.qwen3_tts.codec import CodecState, Qwen3TTSCodec
from voxlane.engine.models.qwen3_tts.codec_config import CodecConfig
from voxlane.engine.weights.safetensors import SafetensorsDirectory

TOLERANCE = 2e-5
"""Of samples whose loudness is 0.3, in float32: three times what was measured, here and at the true size."""

STREAMS, FRAMES = 3, 24

PLAIN = {
    # Every key of the published checkpoint, and its proportions: heads wider than the hidden size, a window that ends.
    "attention_bias": False, "attention_dropout": 0.0, "codebook_dim": 24, "codebook_size": 37, "decoder_dim": 32,
    "head_dim": 12, "hidden_act": "silu", "hidden_size": 16, "intermediate_size": 28, "latent_dim": 20,
    "layer_scale_initial_scale": 0.01, "max_position_embeddings": 8000, "num_attention_heads": 2,
    "num_hidden_layers": 2, "num_key_value_heads": 2, "num_quantizers": 5, "num_semantic_quantizers": 1,
    "rms_norm_eps": 1e-05, "rope_theta": 10000, "semantic_codebook_size": 64, "sliding_window": 9,
    "upsample_rates": [4, 3, 2], "upsampling_ratios": [2, 2], "vector_quantization_hidden_dimension": 24,
}  # fmt: skip
OTHER = {
    **{key: PLAIN[key] for key in ("codebook_dim", "codebook_size", "latent_dim", "intermediate_size")},
    "attention_bias": True, "hidden_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "decoder_dim": 12,
    "num_hidden_layers": 3, "num_quantizers": 2, "sliding_window": 64, "upsample_rates": [5, 2],
    "upsampling_ratios": [3], "rope_theta": 500.0, "rms_norm_eps": 1e-3,
}  # fmt: skip


@pytest.fixture(scope="module")
def checkpoints(qwen_tts_peer: QwenTtsPeer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the checkpoints that the package wrote, and what it made of them."""
    folder = tmp_path_factory.mktemp("codecs")
    qwen_tts_peer.run("qwen_tts_peer_codec.py", folder, json.dumps({"plain": PLAIN, "other": OTHER}))
    return folder


@pytest.fixture(scope="module")
def codec(checkpoints: Path) -> Qwen3TTSCodec:
    return Qwen3TTSCodec.load(SafetensorsDirectory(checkpoints / "plain"))


@pytest.fixture(scope="module")
def expected(checkpoints: Path) -> tuple[Tensor, Tensor]:
    """Return codes [streams, frames, groups] and the package's samples [streams, samples]."""
    tensors = load_file(checkpoints / "plain" / "expected.safetensors")
    return tensors["codes"], tensors["samples"]


def whole(codec: Qwen3TTSCodec, codes: Tensor, max_frames: int = FRAMES) -> Tensor:
    return codec.decode(codes, codec.state(len(codes), max_frames), torch.arange(len(codes)))


@pytest.mark.parametrize("name", ["plain", "other"])
@pytest.mark.parametrize("max_frames", [1, 7, FRAMES])
def test_samples_are_the_packages(checkpoints: Path, name: str, max_frames: int) -> None:
    codec = Qwen3TTSCodec.load(SafetensorsDirectory(checkpoints / name))
    tensors = load_file(checkpoints / name / "expected.safetensors")
    samples = whole(codec, tensors["codes"], max_frames)
    assert samples.shape == (STREAMS, FRAMES * codec.frame_samples)
    assert samples.std() > 0.2
    torch.testing.assert_close(samples, tensors["samples"], rtol=0, atol=TOLERANCE)


@settings(max_examples=examples(12))
@given(st.data())
def test_any_cut_of_any_mixture_is_each_stream_whole(
    codec: Qwen3TTSCodec, expected: tuple[Tensor, Tensor], data: st.DataObject
) -> None:
    codes, samples = expected
    rows = data.draw(st.permutations(range(STREAMS + 2)), label="rows")[:STREAMS]  # two rows stay unused
    state = codec.state(STREAMS + 2, data.draw(st.integers(1, 12), label="max_frames"))
    made: list[list[Tensor]] = [[] for _ in range(STREAMS)]
    at = [0] * STREAMS
    while waiting := [stream for stream in range(STREAMS) if at[stream] < FRAMES]:
        chosen = data.draw(st.lists(st.sampled_from(waiting), min_size=1, unique=True), label="streams")
        frames = data.draw(st.integers(1, min(FRAMES - at[stream] for stream in chosen)), label="frames")
        call = torch.stack([codes[stream, at[stream] : at[stream] + frames] for stream in chosen])
        sound = codec.decode(call, state, torch.tensor([rows[stream] for stream in chosen]))
        for stream, part in zip(chosen, sound, strict=True):
            made[stream].append(part)
            at[stream] += frames
    torch.testing.assert_close(torch.stack([torch.cat(parts) for parts in made]), samples, rtol=0, atol=TOLERANCE)
    unused = [row for row in range(STREAMS + 2) if row not in rows]
    assert not state.numbers[unused].any()
    assert not state.frames[unused].any()


def test_a_reset_stream_begins_anew(codec: Qwen3TTSCodec, expected: tuple[Tensor, Tensor]) -> None:
    codes, samples = expected
    state = codec.state(2)
    codec.decode(codes[:2, :11], state, torch.tensor([0, 1]))
    before = state.numbers[0].clone()
    state.reset(1)
    assert torch.equal(state.numbers[0], before)
    assert state.frames.tolist() == [11, 0]
    again = codec.decode(codes[2:], state, torch.tensor([1]))
    torch.testing.assert_close(again, samples[2:], rtol=0, atol=TOLERANCE)


def test_a_copied_stream_goes_on_and_leaves_its_source_alone(
    codec: Qwen3TTSCodec, expected: tuple[Tensor, Tensor]
) -> None:
    codes, samples = expected
    cut, first = 13 * codec.frame_samples, torch.tensor([0])
    state = codec.state(3, max_frames=4)
    codec.decode(codes[1:2], state, torch.tensor([2]))  # what the copy must not remember
    codec.decode(codes[:1, :13], state, first)
    state.copy(0, 2)
    codec.decode(codes[1:2, 13:], state, first)  # the source takes another way
    rest = codec.decode(codes[:1, 13:], state, torch.tensor([2]))
    torch.testing.assert_close(rest, samples[:1, cut:], rtol=0, atol=TOLERANCE)
    state.copy(2, 1)
    assert torch.equal(state.numbers[1], state.numbers[2])


def test_hours_later_it_sounds_the_same(codec: Qwen3TTSCodec) -> None:
    codes, rows, late = torch.randint(37, (1, 60, 5)), torch.arange(2), 10**9
    state = codec.state(2, max_frames=60)
    state.frames[1] = late  # the frames before are zeros that the first ones see; after 31 nothing is left of them
    early, later = codec.decode(codes.expand(2, -1, -1), state, rows)[:, 40 * codec.frame_samples :]
    torch.testing.assert_close(later, early, rtol=0, atol=TOLERANCE)


def test_nothing_is_read_on_the_host_but_codes_to_check_them(codec: Qwen3TTSCodec) -> None:
    state = codec.state(2)
    with _HostReads() as reads:
        codec.decode(torch.zeros(2, 1, 5, dtype=torch.int64), state, torch.arange(2))
    assert reads.names == ["aten::_local_scalar_dense"] * 2  # the least and the greatest code


class _HostReads(TorchDispatchMode):
    """Records the operations whose result decides what is run next: a CUDA graph can hold none of them."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags:
            self.names.append(func.name())
        return func(*args, **(kwargs or {}))


# This machine's products in bfloat16 may be slow ones, of which torch warns.
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_bfloat16_sounds_the_same(checkpoints: Path, expected: tuple[Tensor, Tensor]) -> None:
    codes, samples = expected
    codec = Qwen3TTSCodec.load(SafetensorsDirectory(checkpoints / "plain"), torch.bfloat16)
    state = codec.state(STREAMS, max_frames=3)
    noise = codec.decode(codes, state, torch.arange(STREAMS)) - samples
    assert state.numbers.dtype is torch.bfloat16
    assert noise.std() < 0.1 * samples.std()  # 20 dB: rounding to 8 bits through 40 layers of noise-like weights


@pytest.mark.parametrize(
    ("codes", "rows", "message"),
    [
        (torch.zeros(1, 2, 4, dtype=torch.int64), [0], "codes"),
        (torch.zeros(1, 0, 5, dtype=torch.int64), [0], "codes"),
        (torch.zeros(0, 1, 5, dtype=torch.int64), [], "codes"),
        (torch.zeros(2, 1, 5, dtype=torch.int64), [0], "rows"),
        (torch.full((1, 1, 5), 37), [0], "outside 0 to 36"),
        (torch.full((1, 1, 5), -1), [0], "outside 0 to 36"),
    ],
)
def test_what_is_no_frame_is_refused(codec: Qwen3TTSCodec, codes: Tensor, rows: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        codec.decode(codes, codec.state(2), torch.tensor(rows))


def test_a_state_needs_streams(codec: Qwen3TTSCodec) -> None:
    assert isinstance(codec.state(1), CodecState)
    for sizes in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match="is none"):
            codec.state(*sizes)


CONFIG = {"model_type": "qwen3_tts_tokenizer_12hz", "decode_upsample_rate": 96, "decoder_config": PLAIN}


def broken() -> Iterator[tuple[dict[str, object], str]]:
    """Yield configurations with one thing wrong, and the key to be named."""
    for key, value in (
        ("model_type", "qwen3_tts_tokenizer_25hz"), ("decode_upsample_rate", 1920), ("output_sample_rate", 0),
        ("decoder_config", [1]), ("surprise", 1),
    ):  # fmt: skip
        yield {**CONFIG, key: value}, key
    for key, value in (
        ("hidden_act", "gelu"), ("num_semantic_quantizers", 2), ("num_key_value_heads", 3), ("head_dim", 7),
        ("rope_scaling", {"rope_type": "linear", "factor": 2.0}), ("layer_types", ["full_attention"] * 2),
        ("upsample_rates", []), ("upsampling_ratios", [2, 0]), ("decoder_dim", 4), ("codebook_dim", None),
        ("num_quantizers", 1), ("use_sliding_window", False),
    ):  # fmt: skip
        yield {**CONFIG, "decoder_config": {**PLAIN, key: value}}, f"decoder_config.{key}"


@pytest.mark.parametrize(("values", "key"), list(broken()), ids=lambda value: value if isinstance(value, str) else "")
def test_what_we_do_not_do_is_refused_by_name(values: dict[str, object], key: str) -> None:
    with pytest.raises(ModelConfigError, match=f"config key {key}:"):
        CodecConfig.from_dict(values)


def test_the_published_sizes() -> None:
    """A configuration that names nothing but what has no default is the published one's architecture."""
    config = CodecConfig.from_dict({"model_type": CONFIG["model_type"], "decoder_config": {"codebook_dim": 512}})
    assert (config.frame_samples, config.sample_rate, config.groups, config.window) == (1920, 24_000, 16, 72)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("pre_conv.conv.bias", None),
        ("decoder.1.block.2.conv1.conv.weight", torch.zeros(16, 16, 5)),
        ("quantizer.rvq_rest.vq.layers.4._codebook.embedding_sum", torch.zeros(37, 12)),
    ],
)
def test_a_wrong_tensor_is_named(checkpoints: Path, tmp_path: Path, name: str, change: Tensor | None) -> None:
    tensors = load_file(checkpoints / "plain" / "model.safetensors")
    tensors.pop(f"decoder.{name}", None)
    save_file(tensors if change is None else {**tensors, f"decoder.{name}": change}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((checkpoints / "plain" / "config.json").read_text())
    with pytest.raises(TensorError, match=name):
        Qwen3TTSCodec.load(SafetensorsDirectory(tmp_path))
