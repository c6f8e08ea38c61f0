"""LFM2-Audio's FastConformer encoder against transformers' Parakeet encoder, alone and among other clips."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from lfm2_audio_parts import (
    BACKBONE,
    ENCODER,
    SOUND,
    adapter_peer,
    encoder_peer,
    encoder_tensors,
    load_encoder,
    small_encoder,
)
from torch import Tensor, nn

from voxlane.engine.errors import ModelConfigError, TensorError
from voxlane.engine.models.lfm2_audio.conformer import Conformer, halve, halve_by_taps
from voxlane.engine.models.lfm2_audio.conformer_config import ConformerConfig
from voxlane.engine.models.lfm2_audio.conformer_weights import Halving
from voxlane.engine.models.loading import Mode
from voxlane.engine.models.settings import Settings

TOLERANCE = 2e-5
"""Of rows of the size of 1, in float32: several times what was measured."""

OTHER = {**ENCODER, "n_layers": 3, "d_model": 48, "n_heads": 4, "subsampling_factor": 4, "conv_kernel_size": 5,
         "subsampling_conv_channels": 6, "ff_expansion_factor": 4, "xscaling": True}  # fmt: skip


@pytest.fixture(scope="module", params=["plain", "other"])
def both(request: pytest.FixtureRequest) -> tuple[Any, Conformer]:
    """Return transformers' encoder and ours with the same numbers."""
    values = {"plain": ENCODER, "other": OTHER}[request.param]
    return encoder_peer(values), load_encoder(values, encoder_tensors(values))


def _mels(*lengths: int) -> list[Tensor]:
    return [torch.randn(length, 16, generator=torch.Generator().manual_seed(length)) for length in lengths]


@pytest.mark.parametrize("frames", [1, 7, 8, 9, 64, 203])
def test_rows_are_transformers(both: tuple[Any, Conformer], frames: int) -> None:
    peer, encoder = both
    (mel,) = _mels(frames)
    with torch.no_grad():
        wanted = peer(mel[None]).last_hidden_state[0]
    (rows,) = encoder.encode_rows([mel])
    assert rows.std() > 0.5
    torch.testing.assert_close(rows, wanted, rtol=0, atol=TOLERANCE)


def test_other_sounds_have_other_rows(both: tuple[Any, Conformer]) -> None:
    """Random numbers may make an encoder that hardly hears its clip: a comparison of its rows would show little."""
    one, other = _mels(90, 91)
    found = both[1].encode([one, other[:90]])
    assert (found[0] - found[1]).std() > 0.1 * found[0].std()


def test_rows_of_a_padded_batch_are_transformers(both: tuple[Any, Conformer]) -> None:
    peer, encoder = both
    mels = _mels(40, 97, 16)
    mask = torch.arange(97) < torch.tensor([[40], [97], [16]])
    with torch.no_grad():
        wanted = peer(nn.utils.rnn.pad_sequence(mels, batch_first=True), attention_mask=mask).last_hidden_state
    for rows, row in zip(encoder.encode_rows(mels), wanted, strict=True):
        torch.testing.assert_close(rows, row[: len(rows)], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("mode", ["float32", "packed"])
def test_a_clip_has_the_same_bits_alone_and_among_others(mode: Mode) -> None:
    encoder = small_encoder(mode)
    mels = _mels(130, 9, 55, 1, 64)
    together = encoder.encode(mels)
    for mel, rows in zip(mels, together, strict=True):
        assert rows.shape == (-(-len(mel) // 8), BACKBONE)
        (alone,) = encoder.encode([mel])
        assert torch.equal(alone, rows)


@pytest.mark.parametrize(("mode", "noise"), [("packed", 0.03), ("bfloat16", 0.01)])
def test_narrow_weights_make_nearly_the_same_rows(mode: Mode, noise: float) -> None:
    (wide,), (narrow,) = (small_encoder(kind).encode(_mels(90)) for kind in ("float32", mode))
    assert 0 < (narrow - wide).std() < noise * wide.std()


def test_a_longer_clip_before_it_does_not_change_a_clip(both: tuple[Any, Conformer]) -> None:
    """Keys of distances are computed anew when a clip is longer than all before it."""
    _, encoder = both
    short, longer = _mels(50, 3000)
    before = encoder.encode([short])[0]
    encoder.encode([longer[: encoder.config.max_states * 4]])
    assert torch.equal(encoder.encode([short])[0], before)


def test_the_adapter_is_torchs(both: tuple[Any, Conformer]) -> None:
    _, encoder = both
    (mel,) = _mels(77)
    with torch.no_grad():
        wanted = adapter_peer(encoder.config.hidden_size)(encoder.encode_rows([mel])[0])
    torch.testing.assert_close(encoder.encode([mel])[0], wanted, rtol=0, atol=TOLERANCE)


def test_clips_that_are_none_are_refused(both: tuple[Any, Conformer]) -> None:
    _, encoder = both
    for mels in ([], [torch.zeros(0, 16)], [torch.zeros(16)], [torch.zeros(5000, 16)]):
        with pytest.raises(ValueError, match="frames are needed"):
            encoder.encode(mels)


def test_the_published_sizes() -> None:
    """These are the proportions that LFM2-Audio-1.5B is documented with: 12.5 rows a second."""
    values = {**ENCODER, "feat_in": 128, "d_model": 512, "n_heads": 8, "n_layers": 17, "subsampling_conv_channels": 256}
    config = ConformerConfig.read(Settings(values), Settings({**SOUND, "features": 128}))
    assert (config.bands, config.head_dim, config.halvings) == (16, 64, 3)
    assert config.states(10 * 16_000) == 126
    assert config.states(79) == 1


def broken() -> Iterator[tuple[str, str, object]]:
    """Yield sections, keys and values that are refused."""
    for key, value in {
        "subsampling": "striding", "subsampling_factor": 6, "causal_downsampling": True, "reduction": "pooling",
        "self_attention_model": "rel_pos_local_attn", "n_heads": 3, "att_context_size": [70, 13], "untie_biases": False,
        "conv_kernel_size": 8, "conv_norm_type": "layer_norm", "conv_context_size": [8, 0], "feat_out": 7,
        "surprise": 1, "d_model": None,
    }.items():  # fmt: skip
        yield "encoder", key, value
    for key, value in {
        "normalize": "all_features", "sample_rate": 24_000, "window_size": 0.02, "window_stride": 0.02, "n_fft": 400,
        "features": 80, "pad_to": 16, "window": "hamming", "log": False, "preemph": 0.9,
    }.items():  # fmt: skip
        yield "preprocessor", key, value


@pytest.mark.parametrize(("section", "key", "value"), list(broken()))
def test_what_we_do_not_do_is_refused_by_name(section: str, key: str, value: object) -> None:
    top = Settings(
        {
            "encoder": ENCODER,
            "preprocessor": SOUND,
            section: {"encoder": ENCODER, "preprocessor": SOUND}[section] | {key: value},
        }
    )
    with pytest.raises(ModelConfigError, match=rf"config key {section}\.{key}:"):
        ConformerConfig.read(top.section("encoder"), top.section("preprocessor"))


@pytest.mark.parametrize(
    "name", ["layers.1.self_attn.pos_bias_u", "pre_encode.conv.5.weight", "layers.0.conv.batch_norm.bias"]
)
def test_a_wrong_tensor_is_named(name: str) -> None:
    tensors = encoder_tensors(ENCODER)
    with pytest.raises(TensorError, match=rf"conformer\.{name} has shape"):
        load_encoder(ENCODER, tensors | {f"conformer.{name}": torch.zeros(3)})
    del tensors[f"conformer.{name}"]
    with pytest.raises(TensorError, match=rf"conformer\.{name} is missing"):
        load_encoder(ENCODER, tensors)


@pytest.mark.parametrize(("channels", "frames", "bands"), [(1, 9, 16), (8, 5, 8), (8, 1, 3), (1, 2, 2)])
def test_halving_tap_by_tap_is_the_convolution(channels: int, frames: int, bands: int) -> None:
    """As a device does it."""
    generator = torch.Generator().manual_seed(5)
    weight, bias, x = (
        torch.randn(shape, generator=generator) for shape in ((8, 1, 3, 3), (8,), (channels, frames, bands))
    )
    mix = torch.randn((8, 8, 1, 1), generator=generator), torch.randn(8, generator=generator)
    for halving in (Halving(weight, bias, None), Halving(weight, bias, mix)):
        torch.testing.assert_close(halve_by_taps(x, halving), halve(x, halving), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("frames", "room"), [(1, 104), (8, 160), (9, 104), (65, 160), (100, 104)])
def test_a_padded_clip_has_the_rows_of_the_clip(frames: int, room: int) -> None:
    """As a graph computes it: the shapes are those of the room, and nothing past the clip counts."""
    encoder = small_encoder()
    mel = torch.randn((frames, 16), generator=torch.Generator().manual_seed(frames))
    padded = torch.zeros((room, 16))
    padded[:frames] = mel
    with torch.inference_mode():
        (wanted,) = encoder.encode([mel])
        encoder.prepare(room // 8)
        rows = encoder.encode_padded(padded, torch.tensor(frames))
    assert rows.shape == (room // 8, encoder.output_size)
    torch.testing.assert_close(rows[: len(wanted)], wanted, rtol=1e-4, atol=1e-5)
