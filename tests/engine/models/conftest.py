"""What the model tests share: packages that live in environments of their own."""

from __future__ import annotations

import pytest
from qwen_tts_peer import QwenTtsPeer


@pytest.fixture(scope="session")
def qwen_tts_peer() -> QwenTtsPeer:
    """Return the package qwen-tts, installed on first use; `run` runs a script of tests/support inside it."""
    return QwenTtsPeer()
