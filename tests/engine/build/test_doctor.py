"""What the doctor's child finds out about adapters and voices. The report: tests/server/commands/test_doctor.py."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import lfm2_audio_checkpoint
import pytest
import torch
from drive import chat_config
from safetensors.torch import save_file

from voxlane.engine.build.defaults import settle
from voxlane.engine.build.doctor import Finding, _adapter, _memory, _models
from voxlane.engine.models.registry import QWEN3_TTS, chat_spec
from voxlane.engine.weights import store
from voxlane.engine.weights.files import open_weights
from voxlane.engine.weights.hub import COMPLETE

MakeCheckpoint = Callable[[str], Path]


def look(model: Path | str, adapter: Path | str) -> list[Finding]:
    return [finding for finding, _ in _adapter(chat_config(model=str(model), adapter=str(adapter)))]


def test_an_adapter_is_held_against_its_model(checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(
        '{"peft_type": "LORA", "r": 1, "lora_alpha": 1, "base_model_name_or_path": "them/model"}'
    )
    save_file({"base_model.model.lm_head.weight": torch.zeros(211, 64)}, tmp_path / "adapter_model.safetensors")
    config = chat_config(model=str(checkpoint("qwen2")), adapter=str(tmp_path))
    ((finding, shape),) = _adapter(config)
    assert finding.state == "good"
    assert finding.detail == f"{tmp_path}: changes 0 matrices, replaces 1 tensors, trained on them/model"
    assert shape is not None
    assert not shape.tied  # the head takes memory of its own now
    save_file({"base_model.model.head.weight": torch.zeros(211, 64)}, tmp_path / "adapter_model.safetensors")
    (finding,) = look(checkpoint("qwen2"), tmp_path)
    assert finding.state == "bad"
    assert "fits nothing in the model" in finding.detail


def test_what_is_not_here(checkpoint: MakeCheckpoint) -> None:
    assert look("./nowhere.gguf", "./nowhere") == []  # the model comes first
    assert look(checkpoint("qwen2"), "") == []
    assert [finding.state for finding in look(checkpoint("qwen2"), "./nowhere")] == ["bad"]
    assert [finding.state for finding in look(checkpoint("qwen2"), "hf:them/adapter")] == ["note"]


def test_the_cache_of_a_voice_from_a_hub_counts(
    checkpoint: MakeCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(store.CACHE_VARIABLE, str(tmp_path))
    repository = tmp_path / "hub" / "models--own--voice"
    folder = repository / "snapshots" / "1"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(f'{{"architectures": ["{QWEN3_TTS}"]}}')
    (folder / COMPLETE).touch()
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("1")
    spec = chat_spec(open_weights(checkpoint("qwen2")).config)
    for voice, mib in ((str(folder), 512), ("hf:own/voice", 512), ("hf:own/nothing", 0), ("hibari", 0)):
        config = settle(chat_config(tts_model=voice), "cpu")
        taken = next(iter(_memory(config, torch.device("cpu"), spec)))
        assert f"speech cache {mib} MiB" in taken.detail, voice


def test_a_speech_to_speech_model_is_looked_at(tmp_path: Path) -> None:
    def finding(path: Path) -> Finding:
        config = chat_config(model="", asr_model="", tts_model="", speech_model=str(path))
        return next(found for found, _ in _models(config) if found.name == "converse")

    folder = lfm2_audio_checkpoint.write(tmp_path / "noise")
    assert finding(folder).state == "good"
    shutil.rmtree(folder / "mimi")
    assert "there is no codec in it" in finding(folder).detail
    assert finding(tmp_path / "nothing").state == "bad"
    assert not [found for found, _ in _models(chat_config(speech_model="")) if found.name == "converse"]
