"""LFM2-Audio through the kernels of a device, in Triton's interpreter: from sound to samples what the host makes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import converse_house
import numpy as np
import pytest
import torch
from converse_house import DRAWN, SOUND_TOLERANCE, House, dialogue, host_runner, sound
from pretended_device import pretended_cuda

from voxlane.engine.api import SamplingParams
from voxlane.engine.jobs.dialogue_job import READING
from voxlane.engine.kernels.attention import ring_triton
from voxlane.engine.kernels.conv import short_conv_triton
from voxlane.engine.kernels.sampling import code_choice_triton
from voxlane.engine.memory.pages import KVCache
from voxlane.engine.models.lfm2_audio.dialogue import Piece, rows_of
from voxlane.engine.models.lfm2_audio.mimi import MimiCodec
from voxlane.engine.models.lfm2_audio.model import Lfm2Audio
from voxlane.engine.models.lfm2_audio.random_model import random_lfm2_audio, random_mimi
from voxlane.engine.runners.cuda.converse import CudaConverse
from voxlane.engine.runners.cuda.selfcheck_converse import CONFIG

pytestmark = [
    pytest.mark.usefixtures("interpreter"),
    # Rows of padding hold what was in memory: NumPy warns about numbers that overflow in them.
    pytest.mark.filterwarnings("ignore:.* encountered in .*:RuntimeWarning"),
]

CPU = torch.device("cpu")
STEPS, RING = 7, "ring_attention"
SMALL: dict[str, Any] = {
    **CONFIG,
    "codebooks": 4,
    "interleaved_n_text": 2,
    "interleaved_n_audio": 2,
    "depthformer": {"layers": 1, "dim": 128, "tie": True},
    "lfm": {
        **CONFIG["lfm"],  # type: ignore[dict-item]
        "vocab_size": 300,
        "hidden_size": 64,
        "intermediate_size": 96,
    },
    "encoder": {
        **CONFIG["encoder"],  # type: ignore[dict-item]
        "d_model": 32,
        "subsampling_conv_channels": 8,
        "n_layers": 1,
    },
}
MIMI: dict[str, Any] = {
    "num_filters": 2, "num_hidden_layers": 1, "sliding_window": 9, "upsampling_ratios": [4, 3, 2], "hidden_size": 32,
    "upsample_groups": 32, "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 48,
}  # fmt: skip


def device_runner(model: Lfm2Audio, codec: MimiCodec, cache: KVCache) -> CudaConverse:
    return CudaConverse(model, codec, cache, CPU, slots=2, max_rows=2, max_tokens=32)


def test_the_kernels_make_what_the_host_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two dialogues, one with a clip, read in chunks; then tokens and frames of both in the same steps."""
    monkeypatch.setattr(converse_house, "BLOCK", 16)
    found, launches = [], []
    for kernels, name in ((short_conv_triton, "short_conv"), (code_choice_triton, "choose_code"), (ring_triton, RING)):
        monkeypatch.setattr(kernels, name, _counted(getattr(kernels, name), name, launches))
    for make, pretended in ((host_runner, contextlib.nullcontext), (device_runner, pretended_cuda)):
        with pretended():  # a codec's convolutions have another form there
            model = random_lfm2_audio(SMALL, "float32", CPU, context_tokens=256)
            codec = random_mimi(MIMI, model.config.groups, torch.float32, CPU)
        house = House(model, codec, make)
        clip: list[Piece] = [*rows_of(model.clip(sound(0.5, 1)))]
        asked = (([1, 6, 150, 7], DRAWN), ([1, *clip, 7, 6], READING))  # a row each of both ways to draw
        requests = [house.ask(prompt, sampling, seed=n) for n, (prompt, sampling) in enumerate(asked)]
        for request in requests:
            request.sampling = SamplingParams()
        for _ in range(STEPS):
            with pretended():
                house.step(requests, most=7)
        found.append([(dialogue(one).answer, np.concatenate(house.samples[one])) for one in requests])
    assert {*launches} == {"short_conv", "choose_code", RING}
    for (wanted, samples), (pieces, made) in zip(*found, strict=True):
        assert pieces == wanted
        assert sum(isinstance(piece, tuple) for piece in pieces) >= 2
        np.testing.assert_allclose(made, samples, atol=SOUND_TOLERANCE)


def _counted(kernel: Callable[..., Any], name: str, launches: list[str]) -> Callable[..., Any]:
    def launch(*arguments: Any) -> Any:
        launches.append(name)
        return kernel(*arguments)

    return launch
