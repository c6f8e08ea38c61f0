"""Settings that cannot work are one line that names them; the smallest that can, do."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from drive import Driver, chat_config, complete

from voxlane.engine.api import EngineConfig, Priority
from voxlane.engine.assemble import assemble
from voxlane.engine.parts import EngineConfigError
from voxlane.engine.weights import store
from voxlane.engine.weights.errors import ModelError, StoreError


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
@pytest.mark.parametrize("context", [2, 5, 40])
def test_a_tiny_context_warms_up_and_answers(context):
    engine = assemble(chat_config(context_tokens=context, kv_memory_mib=16, block_tokens=4))
    driver = Driver(engine.core)
    driver.send(complete("a", "Hello", 100))
    driver.run()
    end = driver.end("a")
    assert end.reason == "length"
    assert end.stats.prompt_tokens + end.stats.output_tokens == context
    assert engine.core.scheduler.stations["chat"].pool.used == 0


@pytest.mark.weights
def test_a_closed_engine_leaves_no_thread():
    before = set(threading.enumerate())
    engine = assemble(chat_config(context_tokens=40, kv_memory_mib=16, block_tokens=4))
    readers = {priority: ThreadPoolExecutor(1, "prompts") for priority in Priority}  # as with a device
    engine.core._desks._desks["chat"]._readers = readers
    for reader in readers.values():
        reader.submit(int).result()
    assert len(set(threading.enumerate()) - before) >= len(readers)
    engine.close()
    assert set(threading.enumerate()) == before
