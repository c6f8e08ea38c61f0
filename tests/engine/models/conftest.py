"""What the model tests share: packages that live in environments of their own, and a thread to compute with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from lazily import transformers
from package_peer import PackagePeer
from qwen_tts_peer import QwenTtsPeer


@pytest.fixture(scope="session")
def qwen_tts_peer() -> QwenTtsPeer:
    """Return the package qwen-tts, installed on first use; `run` runs a script of tests/support inside it."""
    return QwenTtsPeer()


@pytest.fixture(scope="session")
def moshi_peer() -> PackagePeer:
    """Return Kyutai's package moshi, installed on first use."""
    return PackagePeer("moshi", ("moshi==0.2.13", "einops==0.8.1"))


@pytest.fixture(scope="session")
def random_whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a small random Whisper that transformers wrote."""
    torch.manual_seed(5)
    config = transformers.WhisperConfig(
        vocab_size=51_865, d_model=32, encoder_layers=2, decoder_layers=3, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=96, max_target_positions=64, init_std=0.3,
    )  # fmt: skip
    model = transformers.WhisperForConditionalGeneration(config)
    model.generation_config.alignment_heads = [[1, 0], [2, 1]]
    model.generation_config.suppress_tokens = [-1, 7]
    path = tmp_path_factory.mktemp("whisper")
    model.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Let torch compute with one thread, as a peer does that is compared bit by bit."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
