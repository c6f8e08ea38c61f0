"""What the doctor's child finds out about an adapter. The report itself: tests/server/commands/test_doctor.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from drive import chat_config
from safetensors.torch import save_file

from voxlane.engine.build.doctor import Finding, _adapter

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
