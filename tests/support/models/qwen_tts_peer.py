"""The package qwen-tts as a reference, in its own environment: it needs an older transformers than ours."""

from __future__ import annotations

from package_peer import PackagePeer

PINS = ("qwen-tts==0.1.1", "transformers==4.57.3", "tokenizers==0.22.2", "huggingface-hub==0.36.0")
"""What the modelling code needs, without dependencies; qwen_tts_peer_imports replaces the rest."""


class QwenTtsPeer(PackagePeer):
    """The installed peer."""

    def __init__(self) -> None:
        super().__init__("qwen-tts", PINS)
