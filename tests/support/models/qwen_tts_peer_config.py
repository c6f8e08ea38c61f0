"""Run inside the peer: write a configuration with every field that the package's classes give it.

Argument: a folder with given.json, the arguments of the classes; dump.json is written beside it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import qwen_tts_peer_imports  # noqa: F401  first: stands in for what the package drags in
from qwen_tts.core.models.configuration_qwen3_tts import Qwen3TTSConfig
from transformers import GenerationConfig


def main(folder: Path) -> None:
    config = Qwen3TTSConfig(**json.loads((folder / "given.json").read_text()))
    dump = {"config": config.to_dict(), "generation": GenerationConfig().to_dict()}
    (folder / "dump.json").write_text(json.dumps(dump))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
