"""Every parser of bytes from strangers under mutated inputs, another seed every night: documented errors only.

The inputs come from the saved corpora (corpus/, grown by grow.py until their coverage stopped growing). Nothing is
traced here, so that as many inputs as possible are tried.
"""

from __future__ import annotations

import random
import time

import pytest
from examples import seed_of_today
from fuzz_parsers import TARGETS
from fuzzing import Undocumented, mutated, read_corpus

SECONDS = 4.0
"""For each parser: some 100,000 inputs."""


@pytest.mark.parametrize("name", TARGETS)
def test_mutated_inputs(name: str) -> None:
    target, seed = TARGETS[name], seed_of_today()
    choose, pool = random.Random(f"{name} {seed}"), read_corpus(name)
    runs, due = 0, time.monotonic() + SECONDS
    while time.monotonic() < due:
        for _ in range(100):
            data = mutated(choose, choose.choice(pool), pool, target.words)
            try:
                target.try_one(data)
            except Exception as error:
                raise Undocumented(data, seed, error) from error
        runs += 100
    assert runs > 0
    print(f"fuzz parser={name} seed={seed} runs={runs}")
