"""A critical prompt under `deadline`: its step holds nobody else, and everybody goes on after it."""

from __future__ import annotations

import pytest
from simulation import Simulation, expected_text

from voxlane.engine.api import Policy, Priority, SamplingParams, Submit


def greedy(name: str, text: str, tokens: int, priority: Priority = Priority.NORMAL) -> Submit:
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True)
    return Submit(name, "complete", text=text, sampling=sampling, priority=priority)


def tokens_of(simulation: Simulation) -> dict[str, int]:
    return {name: len(text) for name, text in simulation.texts.items()}


@pytest.mark.parametrize(("policy", "alone"), [("deadline", True), ("priority", False)])
def test_who_is_in_the_step_of_a_critical_prompt(policy: Policy, *, alone: bool) -> None:
    simulation = Simulation(blocks=64, host_blocks=0, policy=policy)
    simulation.send(greedy("a", "ABC", 20), greedy("b", "CBA", 20))
    for _ in range(4):
        simulation.step()
    before = tokens_of(simulation)
    simulation.send(greedy("c", "AAAA", 3, Priority.CRITICAL), greedy("d", "BBBB", 3, Priority.CRITICAL))
    simulation.step()
    after = tokens_of(simulation)
    assert after["c"] == after["d"] == 1
    assert (after["a"], after["b"]) == (before["a"] + (not alone), before["b"] + (not alone))
    simulation.step()  # one that decodes shares its steps
    assert tokens_of(simulation)["a"] == after["a"] + 1
    while simulation.core.busy:
        simulation.step()
    for name, prompt, count in (("a", "ABC", 20), ("b", "CBA", 20), ("c", "AAAA", 3), ("d", "BBBB", 3)):
        assert simulation.texts[name] == expected_text(prompt, count)


def test_a_stream_of_critical_prompts_leaves_every_other_step_to_the_others() -> None:
    simulation = Simulation(blocks=256, host_blocks=0, policy="deadline")
    simulation.send(greedy("a", "ABC", 60))
    for _ in range(4):
        simulation.step()
    before = tokens_of(simulation)["a"]
    for number in range(20):
        simulation.send(greedy(f"c{number}", "AAAA", 1, Priority.CRITICAL))
        simulation.step()
    assert tokens_of(simulation)["a"] == before + 10
    assert all(len(simulation.texts[f"c{number}"]) == 1 for number in range(20))
