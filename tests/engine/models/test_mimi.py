"""Mimi's decoder against transformers and Kyutai's own package, however frames are cut and streams are mixed."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from voxlane.engine.audio.torchaudio_import import functional  # before transformers, which imports torchaudio too
from voxlane.engine.errors import ModelConfigError, TensorError
from voxlane.engine.models.lfm2_audio.kyutai_names import kyutai_mimi
from voxlane.engine.models.lfm2_audio.mimi import MimiCodec
from voxlane.engine.models.lfm2_audio.mimi_config import MimiConfig
from voxlane.engine.weights.safetensors import SafetensorsDirectory, SafetensorsFiles

assert functional
TOLERANCE = 2e-5
"""Of samples whose loudness is 0.3, in float32: several times what was measured."""

STREAMS, FRAMES, GROUPS = 3, 24, 5

PLAIN: dict[str, Any] = {
    # The proportions of the published checkpoint: more codebooks than are used, a window that ends.
    "codebook_dim": 12, "codebook_size": 32, "hidden_size": 24, "intermediate_size": 40, "num_attention_heads": 2,
    "num_filters": 4, "num_hidden_layers": 2, "num_key_value_heads": 2, "num_quantizers": 7, "sampling_rate": 24_000,
    "sliding_window": 9, "upsample_groups": 24, "upsampling_ratios": [4, 3, 2],
    "vector_quantization_hidden_dimension": 12,
}  # fmt: skip
OTHER: dict[str, Any] = {
    **PLAIN, "attention_bias": True, "codebook_dim": 24, "compress": 3, "dilation_growth_rate": 3, "head_dim": 6,
    "kernel_size": 5, "last_kernel_size": 1, "norm_eps": 1e-3, "num_attention_heads": 4, "num_filters": 6,
    "num_hidden_layers": 3, "num_residual_layers": 2, "residual_kernel_size": 2, "rope_theta": 500.0,
    "sliding_window": 64, "upsampling_ratios": [5, 2], "vector_quantization_hidden_dimension": 24,
}  # fmt: skip


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with random checkpoints that transformers wrote, and what it decodes with them."""
    import transformers

    folder = tmp_path_factory.mktemp("mimi")
    for name, values in (("plain", PLAIN), ("other", OTHER)):
        torch.manual_seed(3)
        theta = {"rope_type": "default", "rope_theta": values.get("rope_theta", 10_000.0)}
        given = {key: value for key, value in values.items() if key != "rope_theta"}
        model = transformers.MimiModel(transformers.MimiConfig(**given, rope_parameters=theta)).eval()
        with torch.no_grad():
            _shake(model.state_dict())
            codes = torch.randint(values["codebook_size"], (STREAMS, FRAMES, GROUPS))
            loudness = model.decode(codes.transpose(1, 2)).audio_values.std()
            for tensor in model.decoder.decoder_seanet.layers[-1].parameters():
                tensor.mul_(0.3 / loudness)
            samples = model.decode(codes.transpose(1, 2)).audio_values[:, 0]
        model.save_pretrained(folder / name)
        save_file({"codes": codes, "samples": samples.contiguous()}, folder / name / "expected.safetensors")
    return folder


def _shake(tensors: dict[str, Tensor]) -> None:
    """Make every tensor matter: fresh codebooks are zero, and fresh scales nearly so."""
    for name, tensor in tensors.items():
        if name.endswith("cluster_usage"):
            tensor.uniform_(0.5, 2.0)
            tensor[0] = 0.0  # an entry that was never used
        elif name.endswith("embed_sum"):
            tensor.normal_(std=0.5)
            tensor[0] *= 1e-5
        elif name.endswith(".scale"):
            tensor.normal_()
        elif "layernorm" in name:
            tensor.add_(torch.randn_like(tensor), alpha=0.2)


@pytest.fixture(scope="module")
def codec(checkpoints: Path) -> MimiCodec:
    return MimiCodec.load(SafetensorsDirectory(checkpoints / "plain"), GROUPS)


@pytest.fixture(scope="module")
def expected(checkpoints: Path) -> tuple[Tensor, Tensor]:
    """Return codes [streams, frames, groups] and transformers' samples [streams, samples]."""
    tensors = load_file(checkpoints / "plain" / "expected.safetensors")
    return tensors["codes"], tensors["samples"]


def whole(codec: MimiCodec, codes: Tensor, max_frames: int = FRAMES) -> Tensor:
    return codec.decode(codes, codec.state(len(codes), max_frames), torch.arange(len(codes)))


@pytest.mark.parametrize("name", ["plain", "other"])
@pytest.mark.parametrize("max_frames", [1, 7, FRAMES])
def test_samples_are_transformers(checkpoints: Path, name: str, max_frames: int) -> None:
    codec = MimiCodec.load(SafetensorsDirectory(checkpoints / name), GROUPS)
    tensors = load_file(checkpoints / name / "expected.safetensors")
    samples = whole(codec, tensors["codes"], max_frames)
    assert samples.shape == (STREAMS, FRAMES * codec.frame_samples)
    assert 0.2 < samples.std() < 0.4
    torch.testing.assert_close(samples, tensors["samples"].clamp(-1, 1), rtol=0, atol=TOLERANCE)


@settings(max_examples=examples(12))
@given(st.data())
def test_any_cut_of_any_mixture_is_each_stream_whole(
    codec: MimiCodec, expected: tuple[Tensor, Tensor], data: st.DataObject
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
    heard = torch.stack([torch.cat(parts) for parts in made])
    torch.testing.assert_close(heard, samples.clamp(-1, 1), rtol=0, atol=TOLERANCE)
    unused = [row for row in range(STREAMS + 2) if row not in rows]
    assert not state.numbers[unused].any()
    assert not state.frames[unused].any()


def test_a_moved_stream_goes_on_and_its_old_row_begins_anew(codec: MimiCodec, expected: tuple[Tensor, Tensor]) -> None:
    codes, samples = expected
    cut, state = 13 * codec.frame_samples, codec.state(3, max_frames=4)
    codec.decode(codes[1:2], state, torch.tensor([2]))  # the moved stream must not remember this
    codec.decode(codes[:1, :13], state, torch.tensor([0]))
    state.copy(0, 2)
    state.reset(0)
    both = codec.decode(torch.stack((codes[0, 13:], codes[2, :11])), state, torch.tensor([2, 0]))
    torch.testing.assert_close(both[0], samples[0, cut:].clamp(-1, 1), rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(both[1], samples[2, : 11 * codec.frame_samples].clamp(-1, 1), rtol=0, atol=TOLERANCE)
    assert state.frames.tolist() == [11, 0, 24]


def test_hours_later_it_sounds_the_same(codec: MimiCodec) -> None:
    codes, late = torch.randint(32, (1, 60, GROUPS)), 10**9
    state = codec.state(2, max_frames=60)
    state.frames[1] = late  # the frames before are zeros that the first ones see; later nothing is left of them
    early, later = codec.decode(codes.expand(2, -1, -1), state, torch.arange(2))[:, 40 * codec.frame_samples :]
    torch.testing.assert_close(later, early, rtol=0, atol=TOLERANCE)


# This machine's products in bfloat16 may be slow ones, of which torch warns.
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_bfloat16_sounds_the_same(checkpoints: Path, expected: tuple[Tensor, Tensor]) -> None:
    codes, samples = expected
    codec = MimiCodec.load(SafetensorsDirectory(checkpoints / "plain"), GROUPS, torch.bfloat16)
    state = codec.state(STREAMS, max_frames=3)
    noise = codec.decode(codes, state, torch.arange(STREAMS)) - samples.clamp(-1, 1)
    assert state.numbers.dtype is torch.bfloat16
    assert noise.std() < 0.1 * samples.std()


KYUTAI = (
    (r"^decoder\.layers\.(2|5|8)\.conv\.", r"decoder.model.\1.convtr.convtr."),
    (r"^(\w+coder)\.layers\.(.*)conv\.(weight|bias)$", r"\1.model.\2conv.conv.\3"),
    (r"^(up|down)sample\.conv\.", r"\1sample.convtr.convtr.convtr."),
    (r"_transformer\.layers\.", "_transformer.transformer.layers."), (r"input_layernorm", "norm1"),
    (r"post_attention_layernorm", "norm2"), (r"mlp\.fc", "linear"), (r"self_attn_layer_scale", "layer_scale_1"),
    (r"mlp_layer_scale", "layer_scale_2"), (r"self_attn\.o_proj", "self_attn.out_projs.0"),
    (r"\.semantic_\w+\.", ".rvq_first."), (r"\.acoustic_\w+\.", ".rvq_rest."),
    (r"\.layers\.(\d)\.codebook\.(initialized)?", r".vq.layers.\1._codebook._\2"),
    (r"_codebook\._embed_sum", "_codebook.embedding_sum"), (r"_codebook\._cluster", "_codebook.cluster"),
)  # fmt: skip
"""What becomes of transformers' names in Kyutai's file, one change after the other."""


def write_as_kyutai(tensors: dict[str, Tensor], folder: Path) -> None:
    """Write a checkpoint as Kyutai's package does: other names, and queries, keys and values in one matrix."""
    found = {}
    for name, tensor in tensors.items():
        part = name.rpartition("self_attn.")[2]
        if part in ("k_proj.weight", "v_proj.weight"):
            continue
        if part == "q_proj.weight":
            q, k, v = (tensors[name.replace("q_proj", f"{one}_proj")] for one in "qkv")
            heads = PLAIN["num_attention_heads"]
            pairs = [one.view(heads, 2, -1, one.shape[1]).transpose(1, 2).reshape(one.shape) for one in (q, k)]
            name, tensor = name.replace("q_proj", "in_projs.0"), torch.cat([*pairs, v])
        for pattern, replacement in KYUTAI:
            name = re.sub(pattern, replacement, name)
        found[name] = tensor
    save_file(found, folder / "kyutai.safetensors")


@pytest.fixture(scope="module", params=["renamed", pytest.param("package", marks=pytest.mark.soak)])
def kyutai(request: pytest.FixtureRequest, checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a checkpoint as Kyutai's package writes it, or that the package wrote, and its sound."""
    folder = tmp_path_factory.mktemp("kyutai")
    if request.param == "package":
        request.getfixturevalue("moshi_peer").run("moshi_peer_codec.py", folder, json.dumps(PLAIN))
    else:
        write_as_kyutai(load_file(checkpoints / "plain" / "model.safetensors"), folder)
        shutil.copy(checkpoints / "plain" / "expected.safetensors", folder / "kyutai_expected.safetensors")
    return folder


@pytest.mark.parametrize("fused", ["in_projs.0.weight", "in_proj_weight"])
def test_kyutais_file_sounds_as_kyutais_package_plays_it(kyutai: Path, tmp_path: Path, fused: str) -> None:
    """The published file has the names of the package's first version, which the package still reads."""
    tensors = load_file(kyutai / "kyutai.safetensors")
    old = {"in_projs.0.weight": fused, "out_projs.0.weight": "out_proj.weight"}
    for new, name in old.items() if fused == "in_proj_weight" else ():
        tensors = {key.replace(new, name): tensor for key, tensor in tensors.items()}
    save_file(tensors, tmp_path / "mimi.safetensors")
    answer = load_file(kyutai / "kyutai_expected.safetensors")
    file = SafetensorsFiles([tmp_path / "mimi.safetensors"])
    codec = MimiCodec.load(kyutai_mimi(file, PLAIN), answer["codes"].shape[2])
    samples = whole(codec, answer["codes"])
    assert samples.std() > 0.05
    torch.testing.assert_close(samples, answer["samples"].clamp(-1, 1), rtol=0, atol=TOLERANCE)


def test_kyutais_file_has_the_published_sizes_unless_told_otherwise(kyutai: Path) -> None:
    with pytest.raises(TensorError, match=r"semantic_\w+\.output_proj\.weight has shape"):
        MimiCodec.load(kyutai_mimi(SafetensorsFiles([kyutai / "kyutai.safetensors"])))


def test_the_published_sizes() -> None:
    config = MimiConfig.from_dict({})
    assert (config.frame_samples, config.sample_rate, config.quantisers, config.window) == (1920, 24_000, 32, 250)


def broken() -> Iterator[tuple[str, object]]:
    """Yield keys and values that are refused."""
    yield from {
        "model_type": "encodec", "surprise": 1, "hidden_act": "relu", "num_semantic_quantizers": 2,
        "use_causal_conv": False, "use_conv_shortcut": True, "trim_right_ratio": 0.5, "num_key_value_heads": 3,
        "head_dim": 7, "upsampling_ratios": [], "upsample_groups": 1, "compress": 5, "frame_rate": 1.0,
        "vector_quantization_hidden_dimension": 13, "num_quantizers": 1,
    }.items()  # fmt: skip


@pytest.mark.parametrize(("key", "value"), list(broken()))
def test_what_we_do_not_do_is_refused_by_name(key: str, value: object) -> None:
    with pytest.raises(ModelConfigError, match=f"config key {key}:"):
        MimiConfig.from_dict({**PLAIN, key: value})


def test_another_rotation_is_refused_by_name() -> None:
    with pytest.raises(ModelConfigError, match=r"config key rope_parameters\.rope_type:"):
        MimiConfig.from_dict({**PLAIN, "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}})


@pytest.mark.parametrize("groups", [1, 8])
def test_codes_without_a_codebook_are_refused(checkpoints: Path, groups: int) -> None:
    with pytest.raises(ValueError, match="of 7 codebooks"):
        MimiCodec.load(SafetensorsDirectory(checkpoints / "plain"), groups)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("decoder.layers.0.conv.bias", None),
        ("upsample.conv.weight", torch.zeros(24, 24, 4)),
        ("decoder.layers.99.conv.bias", torch.zeros(1)),
        ("quantizer.acoustic_residual_vector_quantizer.layers.3.codebook.embed_sum", torch.zeros(32, 24)),
    ],
)
def test_a_wrong_tensor_is_named(checkpoints: Path, tmp_path: Path, name: str, change: Tensor | None) -> None:
    tensors = load_file(checkpoints / "plain" / "model.safetensors")
    tensors.pop(name, None)
    save_file(tensors if change is None else {**tensors, name: change}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((checkpoints / "plain" / "config.json").read_text())
    with pytest.raises(TensorError, match=name):
        MimiCodec.load(SafetensorsDirectory(tmp_path), GROUPS)
