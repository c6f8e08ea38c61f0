"""Whole turns by LFM2-Audio's ends around transformers' backbone, against a slow reference."""

from __future__ import annotations

import pytest
import torch
from examples import SOAK
from lfm2_audio_turns import CODES, END, GROUPS, Prompt, SmallLfm2Audio, Step

from voxlane.engine.models.lfm2_audio.config import AUDIO_START, TEXT_END
from voxlane.engine.models.lfm2_audio.interleaving import Turn

STEPS = 24
RUNS = (3, 4)


@pytest.fixture(scope="module")
def model() -> SmallLfm2Audio:
    return SmallLfm2Audio()


def prompt(seed: int) -> Prompt:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(8, 120, (9,), generator=generator).tolist()
    frames = torch.randint(CODES - 1, (3, GROUPS), generator=generator)
    frames[-1] = END
    clip = torch.randn(int(torch.randint(1000, 20_000, (1,), generator=generator)), generator=generator) * 0.1
    return Prompt(tokens[:4], clip, frames, tokens[4:])


def both(model: SmallLfm2Audio, seed: int, runs: tuple[int, int] | None, steps: int = STEPS) -> list[Step]:
    """Return the steps of a turn, after both ways have made the same."""
    turn = Turn.interleaved(*runs) if runs else Turn.sequential()
    with torch.no_grad():
        fast = list(model.turn(prompt(seed), turn, steps))
        assert fast == list(model.slow_turn(prompt(seed), runs, steps))
    return fast


def test_interleaved_turns_are_the_references(model: SmallLfm2Audio) -> None:
    turns = [both(model, seed, RUNS) for seed in range(4 if SOAK else 2)]
    tokens = {step for turn in turns for step in turn if isinstance(step, int)}
    firsts = {step[0] for turn in turns for step in turn if isinstance(step, tuple)}
    assert len(tokens) > 5
    assert END in firsts  # sound ended, and a turn went on


def test_sequential_turns_are_the_references(model: SmallLfm2Audio) -> None:
    turns = [both(model, seed, None) for seed in range(2)]
    assert all(len(turn) > 1 for turn in turns)


@pytest.mark.parametrize(("token", "runs"), [(AUDIO_START, None), (TEXT_END, RUNS)])
def test_tokens_that_change_the_order(
    model: SmallLfm2Audio, monkeypatch: pytest.MonkeyPatch, token: int, runs: tuple[int, int] | None
) -> None:
    """The token's row is that of the second token of the turn, and a little more: it is chosen in its place."""
    chosen = both(model, 0, runs, 2)[1]
    assert isinstance(chosen, int)
    table = model.backbone.embed_tokens.weight.detach().clone()
    table[token] = 1.2 * table[chosen]
    monkeypatch.setattr(model, "_embedding", table)
    steps = both(model, 0, runs, 9)
    at = steps.index(token)
    assert at <= 1
    assert all(isinstance(step, int) for step in steps[: at + 1])
    assert isinstance(steps[at + 1], tuple)
