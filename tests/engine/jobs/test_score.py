"""Scoring a text: the engine's sum against the model asked directly, and what int8 pages cost in quality."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from drive import Driver, chat_config, complete
from paged import Pager

from voxlane.engine.api import Finished, Priority, Submit
from voxlane.engine.build.assemble import assemble
from voxlane.engine.models.registry import load_model
from voxlane.engine.text.tokenizer import Tokenizer
from voxlane.engine.weights.files import open_weights

pytestmark = pytest.mark.weights

PROSE = (Path(__file__).parents[2] / "data" / "prose.txt").read_text()


def score(text: str, **settings) -> Finished:
    driver = Driver(assemble(chat_config(kv_memory_mib=64, **settings)).core)
    driver.send(Submit("s", "score", text=text))
    driver.run()
    end = driver.end("s")
    assert isinstance(end, Finished)
    return end


def test_the_sum_is_what_the_model_says_when_asked_directly(smollm2_path):
    text = PROSE[:300]
    end = score(text, weights="float32", max_step_tokens=30)
    weights = open_weights(smollm2_path)
    model, ids = load_model(weights, "float32"), torch.tensor(Tokenizer.from_weights(weights).encode(text))
    logits = Pager(model).logits(0, ids.tolist())
    expected = float(torch.log_softmax(logits[:-1], dim=1).gather(1, ids[1:, None]).sum())
    assert end.stats.scored_tokens == len(ids) - 1
    assert end.stats.logprob_sum == pytest.approx(expected, rel=1e-4)


def test_chunks_do_not_change_a_window():
    whole = score(PROSE[:900], max_step_tokens=512, context_tokens=64)
    chunked = score(PROSE[:900], max_step_tokens=24, context_tokens=64)
    assert whole.stats.scored_tokens == chunked.stats.scored_tokens
    assert chunked.stats.logprob_sum == pytest.approx(whole.stats.logprob_sum, rel=1e-6)


def test_int8_pages_take_about_half_the_bytes_and_cost_less_than_one_per_cent():
    sizes, values = {}, {}
    for pages in ("bfloat16", "int8"):
        assembly = assemble(chat_config(pages=pages, kv_memory_mib=64))
        driver = Driver(assembly.core)
        driver.send(Submit("s", "score", text=PROSE))
        driver.run()
        stats = driver.end("s").stats
        sizes[pages] = assembly.ready.page_bytes_per_token
        values[pages] = math.exp(-stats.logprob_sum / stats.scored_tokens)
    # One bfloat16 scale per 64 int8 values: 66 bytes where bfloat16 takes 128.
    assert sizes["int8"] / sizes["bfloat16"] == pytest.approx(66 / 128)
    assert values["int8"] == pytest.approx(values["bfloat16"], rel=0.01)


def test_a_text_scored_again_or_recomputed_has_the_same_sum():
    assembly = assemble(chat_config(kv_memory_mib=8, swap_memory_mib=0))
    scheduler, driver = assembly.core.scheduler, Driver(assembly.core)
    for name in ("first", "second"):
        driver.send(Submit(name, "score", text=PROSE[:900]))
        driver.run()
    driver.send(Submit("third", "score", text=PROSE[:900]))
    scheduler.limits = dataclasses.replace(scheduler.limits, max_step_tokens=64)
    driver.step(2)
    held = scheduler.resources["chat"].pool.available
    driver.send(complete("urgent", PROSE[:1200], 60, priority=Priority.CRITICAL))
    driver.step(8)
    assert held < scheduler.resources["chat"].pool.num_blocks
    driver.run()
    ends = [driver.end(name).stats for name in ("first", "second", "third")]
    assert ends[2].preemptions > 0
    assert len({stats.scored_tokens for stats in ends}) == 1
    assert ends[1].logprob_sum == pytest.approx(ends[0].logprob_sum, rel=1e-6)
    assert ends[2].logprob_sum == pytest.approx(ends[0].logprob_sum, rel=1e-6)
