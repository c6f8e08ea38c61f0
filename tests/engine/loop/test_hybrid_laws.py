"""Law 5 on every family, to the bit: a request's logits do not depend on what the engine did beside or between.

The model, its cache, the scheduler and the loop are the real ones; the weights are random.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
import torch
from checkpoints import CONFIGS, write_checkpoint
from examples import sweep
from simulation import EOS, VOCABULARY, Simulation
from torch import Tensor

from voxlane.engine.api import Pause, Resume, SamplingParams, Submit
from voxlane.engine.memory.pages import KVCache
from voxlane.engine.models.loading import Mode
from voxlane.engine.models.registry import ChatModel, load_model
from voxlane.engine.runners.decoder import Runner
from voxlane.engine.schedule.plan import Row
from voxlane.engine.weights.files import open_weights

COUNT = 21
PROMPTS = ("ABCDEFGHIJKLMNOPQ", "AB", "ABCDEFGHIJKLMNOPQRSTU", "ABABABABABABABABAB", "ZYX", "CDECDECDECDECD")
Logits = dict[tuple[str, int], bytes]  # by request and position

MODELS: dict[str, tuple[str, Mode, torch.dtype]] = {
    "dense": ("lfm2-biased", "float32", torch.float32),  # four taps
    "packed": ("lfm2", "packed", torch.int8),
    "experts": ("lfm2-moe", "packed", torch.bfloat16),
    "llama": ("llama-biased", "float32", torch.float32),
    "gemma": ("gemma3", "packed", torch.bfloat16),  # windows of 11 tokens
}


class RecordingRunner(Runner):
    """A runner that remembers the logits of every position."""

    def __init__(self, model: ChatModel, cache: KVCache) -> None:
        super().__init__(model, cache)
        self.tenants: dict[str, str] = {}
        self.window = cache.state
        self.seen: Logits = {}
        self.moves: Counter[str] = Counter()

    def _move(self, moves: list[Any]) -> None:
        self.moves.update(move.kind for move in moves)
        super()._move(moves)

    def _logits(self, hidden: Tensor, rows: list[Row]) -> Tensor:
        logits, behind = super()._logits(hidden, rows), Counter[str]()
        for row, one in zip(rows, logits, strict=True):
            position = row.start + row.count - 1 + behind[row.request.id]
            behind[row.request.id] += 1  # the next is that of a draft
            self.seen[row.request.id, position] = one.numpy().tobytes()
        return logits


@dataclass
class Hybrid:
    """A model, and simulations that run it."""

    model: ChatModel
    pages: torch.dtype

    def simulation(self, *, blocks: int = 80, host_blocks: int = 0, block_tokens: int = 4, **limits: Any) -> Simulation:
        cache = KVCache(self.model.spec.pages, blocks, block_tokens, self.pages, host_blocks=host_blocks)
        for pages in cache.layers:  # whatever is read and was not written shows
            for name in pages.__slots__:
                part = getattr(pages, name)
                if isinstance(part, Tensor) and part.dtype is not torch.int8:
                    part.fill_(float("nan"))
        settings = {"policy": "fcfs", **limits}
        return Simulation(
            blocks=blocks,
            host_blocks=host_blocks,
            block_tokens=block_tokens,
            make_engine=lambda clock, size: RecordingRunner(self.model, cache),  # type: ignore[arg-type, return-value]
            window=cache.state,
            **settings,
        )


@pytest.fixture(scope="module", params=MODELS)
def hybrid(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Hybrid:
    name, mode, pages = MODELS[request.param]
    config = CONFIGS[name] | {"vocab_size": VOCABULARY, "eos_token_id": EOS}
    path = write_checkpoint(tmp_path_factory.mktemp("hybrid") / name, config)
    return Hybrid(load_model(open_weights(path), mode), pages)


@pytest.fixture(scope="module")
def alone(hybrid: Hybrid) -> Logits:
    """Every prompt by itself, its prompt in one piece, nothing cached."""
    seen: Logits = {}
    for submit in submits():
        simulation = hybrid.simulation(prefix_cache=False)
        simulation.send(submit)
        simulation.run()
        seen |= logits_of(simulation)
    assert len(seen) == COUNT * len(PROMPTS)
    assert len(set(seen.values())) > COUNT, "every prompt has the same logits"
    return seen


def submits(**settings: Any) -> list[Submit]:
    sampling = SamplingParams(max_tokens=COUNT, ignore_eos=True)
    return [
        Submit(f"r{index}", "complete", text=prompt, sampling=sampling, **settings)
        for index, prompt in enumerate(PROMPTS)
    ]


def runner_of(simulation: Simulation) -> RecordingRunner:
    assert isinstance(simulation.engine, RecordingRunner)
    return simulation.engine


def logits_of(simulation: Simulation) -> Logits:
    """Return the logits that tokens were chosen from; those after a request's last token are of dropped drafts."""
    ends = {f"r{index}": len(prompt) - 1 + COUNT for index, prompt in enumerate(PROMPTS)}
    return {key: bits for key, bits in runner_of(simulation).seen.items() if key[1] < ends[key[0]]}


def run(simulation: Simulation, during: Callable[[Simulation, int], object] = lambda simulation, step: None) -> Logits:
    simulation.send(*submits())
    step = 0
    while len(simulation.ends) < len(PROMPTS):
        during(simulation, step)
        if not simulation.core.busy:  # all that are left are paused
            simulation.send(*(Resume(f"r{index}") for index in range(len(PROMPTS))))
        simulation.step()
        step += 1
        assert step < 2000
    assert simulation.pool.used == 0
    return logits_of(simulation)


def test_in_a_batch(hybrid: Hybrid, alone: Logits) -> None:
    assert run(hybrid.simulation()) == alone


@pytest.mark.parametrize("tokens", sweep([3, 1, 7, 18]))
def test_with_prefill_in_chunks(hybrid: Hybrid, alone: Logits, tokens: int) -> None:
    assert run(hybrid.simulation(max_step_tokens=tokens)) == alone


@pytest.mark.parametrize("block_tokens", sweep([3, 1, 2, 16]))
def test_with_blocks_of_another_size(hybrid: Hybrid, alone: Logits, block_tokens: int) -> None:
    assert run(hybrid.simulation(blocks=300, block_tokens=block_tokens)) == alone


def test_after_a_pause(hybrid: Hybrid, alone: Logits) -> None:
    def during(simulation: Simulation, step: int) -> None:
        if step in (2, 6):
            simulation.send(Pause(("r0", "r3")))
        if step in (4, 11):
            simulation.send(Resume("r0"), Resume("r3"))

    assert run(hybrid.simulation(), during) == alone


@pytest.mark.parametrize("host_blocks", [0, 60])
def test_after_its_blocks_went_to_others(hybrid: Hybrid, alone: Logits, host_blocks: int) -> None:
    simulation = hybrid.simulation(blocks=24, host_blocks=host_blocks)  # six requests want 54
    simulation.scheduler.resources["chat"].swap_block_s = 1e-9
    assert run(simulation) == alone
    moves = runner_of(simulation).moves
    assert (moves["swap_out"] > 0) == (moves["swap_in"] > 0) == (host_blocks > 0)


def test_with_a_cached_prefix(hybrid: Hybrid, alone: Logits) -> None:
    simulation = hybrid.simulation()
    simulation.send(submits()[2])
    simulation.run()
    first = submits()[0]
    simulation.send(first)  # all but its last token is in four blocks of the other
    simulation.run()
    assert simulation.ends[first.request_id].stats.cached_tokens == 16
    found = logits_of(simulation)
    assert found == {key: alone[key] for key in found}


@pytest.mark.parametrize("block_tokens", sweep([8, 16]))
def test_with_drafts_that_are_dropped_in_the_middle_of_a_window(
    hybrid: Hybrid, alone: Logits, block_tokens: int
) -> None:
    """Rejected drafts have overwritten what the convolution needs: the table goes back further than to them."""
    simulation, random = hybrid.simulation(block_tokens=block_tokens, max_step_tokens=200), Random(block_tokens)
    again: set[int] = set()  # how many tokens had to be computed again

    def during(simulation: Simulation, step: int) -> None:
        for request in simulation.scheduler.requests.values():
            if request.output_tokens:
                again.add(request.pending - 1)
                request.drafts = random.choices(range(2, VOCABULARY), k=random.randint(0, 5))

    assert run(simulation, during) == alone
    assert again >= ({0, 1, 2, 3} if runner_of(simulation).window else {0})


@pytest.mark.parametrize("seed", sweep(range(6), here=2))
def test_under_random_commands(hybrid: Hybrid, alone: Logits, seed: int) -> None:
    random = Random(seed)
    simulation = hybrid.simulation(
        blocks=random.randint(14, 40),
        host_blocks=random.choice([0, 8, 60]),
        max_step_tokens=random.choice([3, 8, 30]),
        max_batch=random.choice([2, 6]),
        lookup_tokens=random.choice([0, 3]),
        policy=random.choice(["fcfs", "priority", "deadline"]),
    )
    simulation.scheduler.resources["chat"].swap_block_s = random.choice([1e-9, 1.0])

    def during(simulation: Simulation, step: int) -> None:
        names = [f"r{random.randrange(len(PROMPTS))}" for _ in range(2)]
        if random.random() < 0.2:
            simulation.send(Pause(tuple(names)))
        if random.random() < 0.4:
            simulation.send(*(Resume(f"r{index}") for index in range(len(PROMPTS))))

    assert run(simulation, during) == alone
