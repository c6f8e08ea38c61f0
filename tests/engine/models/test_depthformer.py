"""LFM2-Audio's depth transformer and frame table against a slow reference, alone and among other rows."""

from __future__ import annotations

import struct

import pytest
import torch
from lfm2_audio_parts import (
    BACKBONE,
    CODES,
    CONFIG,
    DEPTH_LAYERS,
    ENCODER,
    GROUPS,
    TensorsInMemory,
    depth_parts,
    encoder_tensors,
)
from lfm2_audio_reference import SlowDepthformer
from torch import Tensor

from voxlane.engine.errors import TensorError
from voxlane.engine.kernels.sampling.sampling import MIN_P, POSITION, SEED_LOW, TEMPERATURE, TOP_K, TOP_P
from voxlane.engine.models.lfm2_audio.depthformer import Depthformer
from voxlane.engine.models.lfm2_audio.ends import Lfm2AudioEnds
from voxlane.engine.models.loading import Mode

TOLERANCE = 1e-4
"""Of logits of the size of 10, in float32: several times what was measured."""
END = CODES - 1


def load(parts: dict[str, Tensor], *, tied: bool, mode: Mode = "float32") -> Lfm2AudioEnds:
    config = CONFIG | {"depthformer": {**CONFIG["depthformer"], "tie": tied}}  # type: ignore[dict-item]
    return Lfm2AudioEnds.load(TensorsInMemory(encoder_tensors(ENCODER) | parts, config), mode)


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "apart"])
def both(request: pytest.FixtureRequest) -> tuple[SlowDepthformer, Depthformer]:
    """Return the slow reference and the depth transformer with the same numbers."""
    parts = depth_parts(tied=request.param)
    return SlowDepthformer(parts, GROUPS, DEPTH_LAYERS), load(parts, tied=request.param).depthformer


def hidden_rows(count: int) -> Tensor:
    return torch.randn(count, BACKBONE, generator=torch.Generator().manual_seed(count))


def test_logits_and_likeliest_codes_are_the_references(both: tuple[SlowDepthformer, Depthformer]) -> None:
    slow, fast = both
    hidden = hidden_rows(3)
    logits: list[Tensor] = []

    def likeliest(rows: Tensor, group: int) -> Tensor:
        assert rows.shape == (3, CODES if group == 0 else CODES - 1)
        logits.append(rows.clone())
        return rows.argmax(dim=1)

    frames = fast.unroll(hidden, likeliest, fast.scratch(4))
    assert frames.shape == (3, GROUPS)
    for row, frame in enumerate(frames.tolist()):
        assert frame == slow.greedy(hidden[row])
        for group in range(GROUPS):
            wanted = slow.logits(hidden[row], frame[:group]).float()[: logits[group].shape[1]]
            torch.testing.assert_close(logits[group][row], wanted, rtol=0, atol=TOLERANCE)


def packet(rows: int, temperature: float, seed: int = 0) -> Tensor:
    """Return sampling's packet for rows with different seeds and positions."""
    made = torch.zeros(rows, MIN_P + 1, dtype=torch.int32)
    made[:, POSITION] = torch.arange(rows) * GROUPS
    made[:, SEED_LOW] = torch.arange(rows) + seed
    made[:, TOP_K] = 40
    made[:, TEMPERATURE], made[:, TOP_P] = struct.unpack("<ii", struct.pack("<ff", temperature, 1.0))
    return made


def test_without_chance_the_likeliest_codes_are_chosen(both: tuple[SlowDepthformer, Depthformer]) -> None:
    slow, fast = both
    hidden, frames = hidden_rows(2), torch.full((2, GROUPS), -7)
    fast.complete(hidden, frames, packet(2, 0.0), fast.scratch(2))
    assert frames.tolist() == [slow.greedy(row) for row in hidden]


@pytest.mark.parametrize("mode", ["float32", "packed"])
def test_a_row_has_the_same_codes_alone_and_among_others(mode: Mode) -> None:
    depthformer = load(depth_parts(tied=True), tied=True, mode=mode).depthformer
    hidden, chances, scratch = hidden_rows(5), packet(5, 1.0), depthformer.scratch(5)
    together, again = torch.empty((5, GROUPS), dtype=torch.int64), torch.empty((5, GROUPS), dtype=torch.int64)
    depthformer.complete(hidden, together, chances, scratch)
    for row in range(5):
        depthformer.complete(hidden[row : row + 1], again[row : row + 1], chances[row : row + 1], scratch)
    assert torch.equal(again, together)
    depthformer.complete(hidden, again, packet(5, 1.0, seed=99), scratch)
    assert not torch.equal(again, together)  # they were drawn


def test_a_row_without_finite_logits_fails_alone(both: tuple[SlowDepthformer, Depthformer]) -> None:
    _, fast = both
    hidden, frames, scratch = hidden_rows(2), torch.zeros((2, GROUPS), dtype=torch.int64), fast.scratch(2)
    fast.complete(hidden, frames, packet(2, 0.0), scratch)
    kept = frames[0].clone()
    hidden[1] = torch.nan
    fast.complete(hidden, frames, packet(2, 0.0), scratch)
    assert frames[1].tolist() == [-1] * GROUPS
    assert torch.equal(frames[0], kept)


def test_a_frame_is_the_sum_of_its_codes_rows() -> None:
    parts = depth_parts(tied=True)
    table = parts["audio_embedding.embedding.weight"].view(GROUPS, CODES, BACKBONE)
    frames = torch.tensor([[5, 0, 2047, 17], [END, 3, 1, 2]])
    sums = load(parts, tied=True).frames.embed(frames)
    torch.testing.assert_close(sums[0], sum(table[group, code] for group, code in enumerate(frames[0].tolist())))
    torch.testing.assert_close(sums[1], table[:, END].sum(dim=0))  # the end of sound is the end in every group


@pytest.mark.parametrize("dropped", ["embedding", "to_logits"])
def test_a_tied_table_may_be_in_the_file_under_either_name(dropped: str) -> None:
    parts = depth_parts(tied=True)
    hidden = hidden_rows(2)
    wanted = [SlowDepthformer(parts, GROUPS, DEPTH_LAYERS).greedy(row) for row in hidden]
    names = {f"depth_embeddings.{group}.{dropped}.weight" for group in range(GROUPS)}
    some = {name: tensor for name, tensor in parts.items() if name not in names}
    assert len(some) == len(parts) - GROUPS
    depthformer = load(some, tied=True).depthformer
    frames = torch.empty((2, GROUPS), dtype=torch.int64)
    depthformer.complete(hidden, frames, packet(2, 0.0), depthformer.scratch(2))
    assert frames.tolist() == wanted
    with pytest.raises(TensorError, match=r"tensor depth_(tables|heads)\.0\.weight is missing"):
        load(some, tied=False)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("depth_linear.bias", None, "depth_linear.bias is missing"),
        ("depthformer.layers.1.operator.qkv_proj.weight", torch.zeros(3, 3), "operator.qkv_proj.weight has shape"),
        ("depthformer.layers.1.operator.qkv_proj.weight", None, "layers.1.self_attn.q_proj.weight is missing"),
        ("depthformer.layers.0.ffn_norm.weight", torch.zeros(3), "layers.0.post_attention_layernorm.weight has shape"),
        ("depthformer.layers.7.ffn_norm.weight", torch.zeros(128), "layers.7.* does not belong"),
        ("depthformer.layers.0.surprise.weight", torch.zeros(128), "layers.0.surprise.weight does not belong"),
        ("depth_embeddings.2.to_logits.weight", torch.zeros(3, 128), "depth_embeddings.2.to_logits.weight has shape"),
        ("audio_embedding.embedding.weight", torch.zeros(3, 64), "audio_embedding.embedding.weight has shape"),
        ("conformer.surprise", torch.zeros(3), "conformer.surprise does not belong"),
        ("surprise", torch.zeros(3), "surprise does not belong"),
    ],
)
def test_a_wrong_tensor_is_named(name: str, change: Tensor | None, message: str) -> None:
    parts = depth_parts(tied=True)
    parts.pop(name, None)
    with pytest.raises(TensorError, match=message):
        load(parts if change is None else parts | {name: change}, tied=True)


def test_the_backbones_tensors_are_not_touched() -> None:
    ends = load(depth_parts(tied=True) | {"lfm.embed_tokens.weight": torch.zeros(2, 2)}, tied=True)
    assert ends.parameters > 0
