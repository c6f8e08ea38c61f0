"""Checks a small random LFM2-Audio on the device against the same model on the host, in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from voxlane.engine.kernels.attention.pages import Layout
from voxlane.engine.kernels.selfcheck import Comparison
from voxlane.engine.memory.pages import KVCache
from voxlane.engine.models.lfm2_audio.dialogue import Dialogue, rows_of
from voxlane.engine.models.lfm2_audio.model import Lfm2Audio
from voxlane.engine.models.lfm2_audio.random_model import random_lfm2_audio, random_mimi
from voxlane.engine.models.qwen3_tts.choice import packet_rows
from voxlane.engine.models.qwen3_tts.config import SpeechSampling
from voxlane.engine.runners.cuda.conformer_graphs import ConformerGraphs
from voxlane.engine.runners.cuda.trial import Trial

CONFIG: dict[str, object] = {
    "codebooks": 8, "interleaved_n_text": 6, "interleaved_n_audio": 12,
    "preprocessor": {"features": 128},
    "encoder": {
        "feat_in": 128, "feat_out": -1, "n_layers": 2, "d_model": 64, "n_heads": 2, "subsampling_factor": 8,
        "subsampling_conv_channels": 16, "conv_kernel_size": 9, "ff_expansion_factor": 4, "xscaling": False,
    },
    "lfm": {
        "model_type": "lfm2", "architectures": ["Lfm2ForCausalLM"], "vocab_size": 1024, "hidden_size": 256,
        "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 256, "norm_eps": 1e-5, "rope_theta": 1_000_000.0, "conv_L_cache": 3,
        "conv_bias": False, "block_auto_adjust_ff_dim": False, "layer_types": ["conv", "full_attention", "conv"],
        "tie_word_embeddings": True,
    },
    "depthformer": {"layers": 2, "dim": 1024, "tie": True},
}  # fmt: skip
"""The backbone and the encoder are small; the depth transformer's rows, and the codec's window, are the true ones."""

MIMI: dict[str, object] = {"num_filters": 8, "num_hidden_layers": 2}

SECONDS, BLOCK, BLOCKS, FRAMES = 1.3, 16, 4, 3
CLOSE = 1e-3
"""Tolerance of a whole model's numbers in float32, as a part of the largest: sums in another order, layer by layer."""

_EXACT = 1e-6  # of codes: a wrong one is off by more


def _models(trial: Trial) -> list[Lfm2Audio]:
    places = (trial.device, torch.device("cpu"))
    return [random_lfm2_audio(CONFIG, "float32", place, context_tokens=BLOCK * BLOCKS) for place in places]


def _dialogue(trial: Trial) -> Iterator[Comparison]:
    """Encode a clip, read it between tokens and a frame, and make the next frame of the last position."""
    random = torch.Generator().manual_seed(3)
    samples = torch.randn(int(16_000 * SECONDS), generator=random) * 0.1
    found: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    device, host = _models(trial)
    for model, encode in ((device, ConformerGraphs(device.encoder, trial.device).encode), (host, None)):
        clip = model.clip(samples)
        model.encode([clip], encode)
        dialogue = Dialogue([1, 6, *rows_of(clip), 7, tuple(range(8)), 9])
        cache = KVCache(model.spec.pages, BLOCKS, BLOCK, torch.float32, model.device)
        count = dialogue.available
        layout = _layout(count, model.device)
        hidden = model.forward(model.inputs([(dialogue, 0, count)]), layout, cache.layers)[-1:]
        rules = torch.tensor([packet_rows(SpeechSampling(temperature=1.0, top_k=4), 5, 8 * count)[0]])
        packet = rules.to(model.device, torch.int32)
        frames = model.make_frames(hidden.contiguous(), packet, model.scratch(1))
        assert clip.rows is not None, "the clip was encoded"
        found.append((clip.rows, hidden, model.logits(hidden.contiguous()), frames.to(torch.float32)))
    for got, expected, close in zip(*found, (CLOSE, CLOSE, CLOSE, _EXACT), strict=True):
        yield got.cpu(), expected, close


def _codec(trial: Trial) -> Iterator[Comparison]:
    """Decode frames of two streams, several at a time and alone."""
    random, rows = torch.Generator().manual_seed(4), torch.tensor([1, 0])
    device, host = (random_mimi(MIMI, 8, torch.float32, place) for place in (trial.device, torch.device("cpu")))
    states = [codec.state(2, FRAMES) for codec in (device, host)]
    for count in (FRAMES, 1):
        codes = torch.randint(2048, (2, count, 8), generator=random)
        got = device.decode(codes.to(trial.device), states[0], rows.to(trial.device))
        yield got.cpu(), host.decode(codes, states[1], rows), CLOSE


def _layout(count: int, device: torch.device) -> Layout:
    def numbers(*values: int) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    tables = torch.arange(BLOCKS, dtype=torch.int32, device=device)[None]
    return Layout(numbers(*range(count)), numbers(*range(count)), numbers(0, count), numbers(count), tables, count)


CHECKS: Mapping[str, Callable[[Trial], Iterator[Comparison]]] = {
    "dialogue, from sound to codes": _dialogue,
    "dialogue, codec": _codec,
}
