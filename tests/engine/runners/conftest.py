"""A small random LFM2-Audio for the tests of conversing runners; a file with other models has fixtures of its own."""

from __future__ import annotations

from pathlib import Path

import lfm2_audio_checkpoint as checkpoint
import pytest

from voxlane.engine.models.lfm2_audio.mimi import MimiCodec
from voxlane.engine.models.lfm2_audio.model import Lfm2Audio
from voxlane.engine.weights.safetensors import SafetensorsDirectory


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint.write(tmp_path_factory.mktemp("lfm2-audio"))


@pytest.fixture(scope="session")
def model(folder: Path) -> Lfm2Audio:
    return Lfm2Audio.load(SafetensorsDirectory(folder), "float32")


@pytest.fixture(scope="session")
def codec(folder: Path, model: Lfm2Audio) -> MimiCodec:
    return MimiCodec.load(SafetensorsDirectory(folder / "mimi"), model.config.groups)
