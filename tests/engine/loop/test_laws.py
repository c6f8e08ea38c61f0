"""Law 5 on real weights: a request's output is the same alone, among others, and after pause, swap or recompute."""

from __future__ import annotations

import dataclasses

import pytest
from drive import PROMPTS, Driver, assemble_float32, chat_config, complete, run_all
from full_pool import empty_prefix_cache, shrink
from msgspec import structs

from voxlane.engine.api import Pause, Resume, SamplingParams, Submit
from voxlane.engine.build.assemble import Assembly, assemble

pytestmark = pytest.mark.weights

COUNT = 12
CONFIG = chat_config(kv_memory_mib=48, swap_memory_mib=48, policy="fcfs")


@pytest.fixture(scope="module", params=["packed", pytest.param("float32", marks=pytest.mark.soak)])
def engine(request: pytest.FixtureRequest) -> Assembly:
    return assemble(CONFIG) if request.param == "packed" else assemble_float32(CONFIG)


@pytest.fixture(scope="module")
def alone(engine: Assembly) -> list[str]:
    return [run_all(engine.core, [complete("solo", prompt, COUNT)])[0] for prompt in PROMPTS]


@pytest.fixture(autouse=True)
def restore(engine: Assembly):
    """Give every test the same limits and an empty prefix cache, and see that it leaves nothing behind."""
    scheduler = engine.core.scheduler
    before = scheduler.limits
    resources = scheduler.resources["chat"]
    resources.swap_block_s = 1e-9
    empty_prefix_cache(resources.pool)
    yield
    scheduler.limits = before
    scheduler.check()
    assert not scheduler.requests
    assert resources.pool.used == 0


def limit(engine: Assembly, **changes: object) -> None:
    scheduler = engine.core.scheduler
    scheduler.limits = dataclasses.replace(scheduler.limits, **changes)


def submits(count: int = COUNT, **settings: object) -> list[Submit]:
    return [complete(f"r{index}", prompt, count, **settings) for index, prompt in enumerate(PROMPTS)]


def test_in_a_batch_of_eight(engine, alone):
    assert run_all(engine.core, submits()) == alone


@pytest.mark.parametrize("policy", ["priority", "deadline"])
def test_under_every_policy(engine, alone, policy):
    limit(engine, policy=policy, step_budget_s=0.02)
    assert run_all(engine.core, submits()) == alone


def test_with_prefill_in_chunks(engine, alone):
    limit(engine, max_step_tokens=16)
    assert run_all(engine.core, submits()) == alone


def test_with_a_warm_prefix_cache(engine, alone):
    prefix = " ".join(PROMPTS) + " "
    cold = run_all(engine.core, [complete("cold", prefix + PROMPTS[0], COUNT)])
    driver = Driver(engine.core)
    driver.send(complete("warm", prefix + PROMPTS[0], COUNT))
    driver.run()
    assert driver.end("warm").stats.cached_tokens >= 64
    assert [driver.text("warm")] == cold


def test_after_a_pause(engine, alone):
    driver = Driver(engine.core)
    driver.send(*submits())
    driver.step(6)
    driver.send(*(Pause((f"r{index}",)) for index in range(0, 8, 2)))
    shown = {index: driver.text(f"r{index}") for index in range(0, 8, 2)}
    driver.step(8)
    assert shown == {index: driver.text(f"r{index}") for index in shown}
    driver.send(*(Resume(f"r{index}") for index in range(8)))
    driver.run()
    assert [driver.text(f"r{index}") for index in range(8)] == alone


def test_after_its_blocks_went_to_the_host(engine, alone):
    texts, swapped = run_short_of_blocks(engine)
    assert texts == alone
    assert swapped > 0


def test_after_its_blocks_were_computed_again(engine, alone):
    engine.core.scheduler.resources["chat"].swap_block_s = 1e9
    texts, swapped = run_short_of_blocks(engine)
    assert texts == alone
    assert swapped == 0


def run_short_of_blocks(engine: Assembly) -> tuple[list[str], int]:
    """Run the requests where some must yield their blocks; return their texts, and the most blocks swapped out."""
    scheduler = engine.core.scheduler
    taken = shrink(scheduler.resources["chat"].pool, leave=10)  # eight requests want about 17
    try:
        driver = Driver(engine.core)
        driver.send(*submits())
        moved = 0
        while driver.core.busy:
            driver.step()
            moved = max(moved, scheduler.resources["chat"].host.used)
        assert sum(driver.end(f"r{index}").stats.preemptions for index in range(8)) > 0
        return [driver.text(f"r{index}") for index in range(8)], moved
    finally:
        for block in taken:
            scheduler.resources["chat"].pool.release(block)


def test_with_prompt_lookup(engine, alone):
    limit(engine, lookup_tokens=4)
    driver = Driver(engine.core)
    driver.send(*submits())
    driver.run()
    assert [driver.text(f"r{index}") for index in range(8)] == alone
    assert sum(driver.end(f"r{index}").stats.lookup_accepted for index in range(8)) > 0


def test_a_seeded_draw_does_not_depend_on_the_batch(engine):
    sampling = SamplingParams(temperature=0.9, top_p=0.95, seed=7, max_tokens=COUNT, ignore_eos=True)

    def request(name: str, prompt: str) -> Submit:
        return Submit(name, "complete", text=prompt, sampling=sampling)

    alone = [run_all(engine.core, [request("solo", prompt)])[0] for prompt in PROMPTS[:4]]
    together = run_all(engine.core, [request(f"r{index}", prompt) for index, prompt in enumerate(PROMPTS[:4])])
    assert together == alone
    other = structs.replace(sampling, seed=8)
    assert run_all(engine.core, [Submit("x", "complete", text=PROMPTS[0], sampling=other)]) != alone[:1]
