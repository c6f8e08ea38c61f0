"""The part of an engine that answers speech with speech, from a folder of LFM2-Audio."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import lfm2_audio_checkpoint as checkpoint
import pytest
import torch

from voxlane.engine.api import EngineConfig
from voxlane.engine.build import assemble as assembling
from voxlane.engine.build.assemble import assemble
from voxlane.engine.build.defaults import settle
from voxlane.engine.build.lfm2_audio import conversing_part
from voxlane.engine.build.model_part import ModelPart
from voxlane.engine.errors import EngineConfigError, ModelError

CPU = torch.device("cpu")


def built(config: EngineConfig, device: torch.device = CPU) -> ModelPart:
    return conversing_part(settle(config, "cpu"), device, lambda what, done: None)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    folder = checkpoint.write(tmp_path_factory.mktemp("lfm2-audio") / "model")
    return EngineConfig(
        model="", asr_model="moonshine-tiny-en", tts_model="", speech_model=str(folder), speech_memory_mib=8
    )


def test_it_tells_the_server_what_a_history_needs(config: EngineConfig) -> None:
    part = built(config)
    speech = part.ready["speech"]
    assert (speech.name, speech.frame_samples) == (config.speech_model, 48)
    assert speech.context_tokens == 2048
    assert 12 < speech.rows_s < 13.5
    assert part.ready["speak_rate"] == 24_000
    assert part.engine.slots.free == part.engine.slots.count  # the warm-up gave its rows back
    assert part.resources.pool.free == part.resources.pool.num_blocks


def test_a_setting_shortens_what_a_conversation_may_have(config: EngineConfig) -> None:
    assert built(replace(config, context_tokens=640)).ready["speech"].context_tokens == 640


def test_a_folder_without_a_codec_is_refused(config: EngineConfig, tmp_path: Path) -> None:
    folder = tmp_path / "mute"
    shutil.copytree(config.speech_model, folder)
    shutil.rmtree(folder / "mimi")
    with pytest.raises(ModelError, match=r"mute: there is no codec in it, neither tokenizer-.*\.safetensors nor"):
        built(replace(config, speech_model=str(folder)))


def test_a_model_of_another_kind_is_refused_by_its_key(config: EngineConfig, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    shutil.copy(Path(config.speech_model) / "model.safetensors", tmp_path)
    with pytest.raises(ModelError, match="encoder"):
        built(replace(config, speech_model=str(tmp_path)))


def test_it_needs_a_recogniser(config: EngineConfig) -> None:
    with pytest.raises(EngineConfigError, match=r"engine\.speech_model needs engine\.asr_model"):
        assemble(replace(config, asr_model=""))


def test_a_model_of_another_task_is_refused(config: EngineConfig) -> None:
    with pytest.raises(EngineConfigError, match=r"engine\.speech_model: hibari is a model for tts"):
        assemble(replace(config, speech_model="hibari"))


def test_two_voices_of_one_conversation_have_one_rate(config: EngineConfig) -> None:
    speech = built(config)
    other = replace(speech, ready={"speak_rate": 16_000})
    with pytest.raises(EngineConfigError, match="a conversation has one rate"):
        assembling._ready({"tts": other, "speech": speech}, "cpu")
