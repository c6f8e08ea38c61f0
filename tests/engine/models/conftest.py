"""What the model tests share: packages that live in environments of their own, and a thread to compute with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
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


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Let torch compute with one thread, as a peer does that is compared bit by bit."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
