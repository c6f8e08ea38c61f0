"""Settings that cannot work are one line that names them; the smallest that can, do."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from drive import Driver, chat_config, complete
from examples import sweep
from safetensors.torch import save_file

from voxlane.engine.api import EngineConfig, Priority
from voxlane.engine.build.assemble import assemble
from voxlane.engine.errors import EngineConfigError, ModelError, StoreError
from voxlane.engine.weights import store


def test_a_speech_model_is_not_served_as_a_chat_model():
    with pytest.raises(EngineConfigError, match=r"moonshine-tiny-en is a model for asr"):
        assemble(chat_config(model="moonshine-tiny-en"))


@pytest.mark.weights
def test_a_cache_too_small_for_two_blocks_says_what_it_needs():
    with pytest.raises(EngineConfigError, match=r"engine\.kv_memory_mib: 1 MiB hold 0 blocks"):
        assemble(chat_config(kv_memory_mib=1, block_tokens=1 << 14))


def test_a_model_that_is_not_there_says_so():
    with pytest.raises(ModelError, match="no such file"):
        assemble(chat_config(model="./nowhere/model.gguf"))


@pytest.mark.parametrize(
    ("key", "name", "meant"),
    [
        ("model", "qwen2.5-coder-0.5b", "qwen2.5-coder-0.5b-instruct"),
        ("asr_model", "Whisper-tiny", "whisper-tiny-en"),
        ("tts_model", "kokoro", "kokoro-82m"),
    ],
)
def test_a_wrong_name_fails_before_anything_is_loaded(monkeypatch, key, name, meant):
    def resolve(wanted, **options):
        raise AssertionError(f"{wanted} was looked for")

    monkeypatch.setattr(store, "resolve", resolve)
    models = {"model": "smollm2-135m-instruct", "asr_model": "whisper-tiny-en", "tts_model": "hibari"}
    with pytest.raises(EngineConfigError, match=rf"engine\.{key}: there is no model '{name}'\. Did you mean .*{meant}"):
        assemble(EngineConfig(**models | {key: name}))


def test_a_name_like_no_other_is_told_where_names_are():
    with pytest.raises(EngineConfigError, match=r"there is no model 'xyz'\. `voxlane models list` shows the names"):
        assemble(chat_config(model="xyz"))


@pytest.mark.parametrize(
    ("key", "name"), [("model", "smollm2-135m-instruct"), ("asr_model", "whisper-tiny-en"), ("tts_model", "kokoro-82m")]
)
@pytest.mark.parametrize("mirrors", [False, True])
def test_the_store_is_told_whether_mirrors_may_be_used(monkeypatch, key, name, mirrors):
    asked = []

    def resolve(wanted, **options):
        asked.append((wanted, options["mirrors"]))
        raise StoreError("that is all")

    monkeypatch.setattr(store, "resolve", resolve)
    with pytest.raises(StoreError, match="that is all"):
        assemble(EngineConfig(**({"model": "", "asr_model": "", "tts_model": ""} | {key: name}), mirrors=mirrors))
    assert asked == [(name, mirrors)]


@pytest.mark.weights
@pytest.mark.parametrize("context", sweep([2, 5, 40]))
def test_a_tiny_context_warms_up_and_answers_and_leaves_no_thread(context):
    before = set(threading.enumerate())
    engine = assemble(chat_config(context_tokens=context, kv_memory_mib=16, block_tokens=4))
    driver = Driver(engine.core)
    driver.send(complete("a", "Hello", 100))
    driver.run()
    end = driver.end("a")
    assert end.reason == "length"
    assert end.stats.prompt_tokens + end.stats.output_tokens == context
    assert engine.core.scheduler.resources["chat"].pool.used == 0
    readers = {priority: ThreadPoolExecutor(1, "prompts") for priority in Priority}  # as with a device
    engine.core._factories._factories["chat"]._readers = readers
    for reader in readers.values():
        reader.submit(int).result()
    assert len(set(threading.enumerate()) - before) >= len(readers)
    engine.close()
    assert set(threading.enumerate()) == before


@pytest.mark.weights
def test_an_adapter_changes_what_is_said_and_is_told(tmp_path, caplog):
    generator = torch.Generator().manual_seed(2)
    module = "base_model.model.model.layers.3.self_attn.o_proj"
    factors = {
        f"{module}.lora_{one}.weight": torch.randn(shape, generator=generator)
        for one, shape in (("A", (2, 576)), ("B", (576, 2)))
    }
    save_file(factors, tmp_path / "adapter_model.safetensors")
    told = {"peft_type": "LORA", "r": 2, "lora_alpha": 1, "base_model_name_or_path": 'them/"their" model'}
    (tmp_path / "adapter_config.json").write_text(json.dumps(told))
    said = []
    for adapter in ("", str(tmp_path)):
        with caplog.at_level("INFO"):
            engine = assemble(chat_config(adapter=adapter, context_tokens=40, kv_memory_mib=16, block_tokens=4))
        driver = Driver(engine.core)
        driver.send(complete("a", "The capital of France is", 8))
        driver.run()
        assert (engine.ready.model, engine.ready.adapter) == ("smollm2-135m-instruct", adapter)
        said.append(driver.text("a"))
        engine.close()
    assert said[0] != said[1]
    (line,) = (record.getMessage() for record in caplog.records if "trained_on" in record.getMessage())
    assert line == f'adapter="{tmp_path}" trained_on="them/\\"their\\" model" low_rank=1 whole=0'


@pytest.mark.weights
def test_an_adapter_of_another_model_says_so(tmp_path):
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 1, "lora_alpha": 1}')
    save_file({"base_model.model.lm_head.weight": torch.zeros(7, 5)}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(ModelError, match=r"is for a matrix of \[7, 5\], but lm_head.weight is \[49152, 576\]"):
        assemble(chat_config(adapter=str(tmp_path)))


def test_an_adapter_that_is_not_there_says_so(checkpoint):
    with pytest.raises(ModelError, match="nowhere: there is no such adapter"):
        assemble(chat_config(model=str(checkpoint("llama")), adapter="nowhere"))
