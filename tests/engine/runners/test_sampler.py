"""Choices against a plain restatement of each rule, and against the distribution they are drawn from."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from voxlane.engine.api import SamplingParams
from voxlane.engine.memory.blocks import BlockPool, BlockTable
from voxlane.engine.runners.sampler import CANDIDATES, choose, uniform
from voxlane.engine.schedule.request import ChatPayload, Request


def request(tokens=(0,), prompt=1, seed=0, **sampling) -> Request:
    table = BlockTable(BlockPool(1, 4))
    return Request("r", "complete", list(tokens), prompt, table, SamplingParams(**sampling), seed=seed)


def pick(logits, **settings) -> int:
    (choice,) = choose(torch.tensor([logits]), [request(**settings)])
    return choice.token


def seen(logits, draws=400, **settings) -> set[int]:
    rows = torch.tensor([logits] * draws)
    return {choice.token for choice in choose(rows, [request(seed=seed, **settings) for seed in range(draws)])}


def test_greedy_takes_the_largest_and_the_first_of_equals():
    assert pick([0.0, 3.0, 1.0]) == 1
    assert pick([2.0, 2.0]) == 0


def test_draws_follow_the_distribution():
    logits = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))
    draws = 4000
    choices = choose(logits.repeat(draws, 1), [request(temperature=1.0, seed=seed) for seed in range(draws)])
    counts = Counter(choice.token for choice in choices)
    for token, probability in enumerate([0.5, 0.3, 0.15, 0.05]):
        deviation = math.sqrt(probability * (1 - probability) / draws)
        assert counts[token] / draws == pytest.approx(probability, abs=5 * deviation)


def test_temperature_sharpens_and_flattens():
    assert seen([0.0, 1.0, 2.0], temperature=0.01) == {2}
    assert seen([0.0, 1.0, 2.0], temperature=50.0) == {0, 1, 2}
    assert seen([0.0, 1.0, 2.0], temperature=1e-30) == {2}


def test_top_k_keeps_the_k_likeliest():
    assert seen([1.0, 1.1, 1.2, 1.3], temperature=5.0, top_k=2) == {2, 3}
    assert seen([1.0, 1.1], temperature=5.0, top_k=50) == {0, 1}


def test_top_p_keeps_the_smallest_set_that_reaches_p():
    logits = [math.log(p) for p in (0.4, 0.3, 0.2, 0.1)]
    assert seen(logits, temperature=1.0, top_p=0.69) == {0, 1}
    assert seen(logits, temperature=1.0, top_p=0.71) == {0, 1, 2}
    assert seen(logits, temperature=1.0, top_p=0.0) == {0}


def test_min_p_keeps_what_is_likely_enough_beside_the_likeliest():
    logits = [math.log(p) for p in (0.5, 0.3, 0.15, 0.05)]
    assert seen(logits, temperature=1.0, min_p=0.5) == {0, 1}


def test_top_p_looks_past_the_candidates_when_they_hold_too_little():
    for vocabulary in (2 * CANDIDATES[0], 2 * CANDIDATES[1]):
        tokens = seen([0.0] * vocabulary, draws=100, temperature=1.0, top_p=0.99)
        assert max(tokens) > vocabulary // 2


def test_repetition_penalty_counts_prompt_and_output():
    assert pick([2.0, 1.5, 0.0], tokens=[0], repetition_penalty=1.5) == 1
    assert pick([-1.0, -1.4, -9.0], tokens=[0], repetition_penalty=1.5) == 1


def test_presence_and_frequency_penalties_count_output_only():
    assert pick([2.0, 1.5], tokens=[0], presence_penalty=1.0) == 0
    assert pick([2.0, 1.5], tokens=[0, 0], prompt=1, presence_penalty=1.0) == 1
    assert pick([2.0, 0.0], tokens=[1, 0, 0], prompt=1, frequency_penalty=0.9) == 0
    assert pick([2.0, 0.0], tokens=[1, 0, 0, 0], prompt=1, frequency_penalty=0.9) == 1


def test_positions_that_are_no_tokens_are_not_counted():
    """The numbers of frames and of rows of clips are beyond any vocabulary: a count up to them would take 32 GB."""
    frame = (1 << 31) | 12345
    assert pick([2.0, 1.5, 0.0], tokens=[0, frame], repetition_penalty=1.5) == 1
    assert pick([2.0, 1.5], tokens=[1, frame, 0, frame], prompt=1, presence_penalty=1.0) == 1


def test_logit_bias_forces_and_forbids():
    assert pick([5.0, 0.0], logit_bias=((1, 100.0),)) == 1
    assert pick([5.0, 0.0], logit_bias=((0, -100.0),)) == 1


def test_logprobs_are_the_models_own_whatever_the_temperature():
    logits = torch.tensor([[0.0, 1.0, 2.0]])
    (choice,) = choose(logits, [request(logprobs=2, temperature=0.0, logit_bias=((0, 9.0),))])
    expected = torch.log_softmax(logits[0], dim=0)
    assert choice.token == 0
    assert choice.logprob == pytest.approx(float(expected[0]))
    assert [token for token, _ in choice.top] == [2, 1]
    assert choice.top[0][1] == pytest.approx(float(expected[2]))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_that_is_not_finite_fails_alone(bad):
    logits = torch.tensor([[0.0, 1.0], [0.0, bad], [1.0, 0.0]])
    result = choose(logits, [request(), request(), request(temperature=0.5)])
    assert result[1] is None
    assert result[0].token == 1
    assert choose(torch.tensor([[-math.inf, -math.inf]]), [request()]) == [None]


def test_a_ban_on_some_tokens_is_finite_enough():
    assert pick([-math.inf, 1.0, 0.0], temperature=1.0) in {1, 2}
    assert seen([-math.inf, 1.0], temperature=9.0) == {1}


@given(st.integers(0, 2**64 - 1), st.integers(0, 1 << 20))
def test_luck_is_a_number_below_one(seed, position):
    assert 0 <= uniform(seed, position) < 1


def test_luck_is_even_and_neighbours_are_independent():
    values = [uniform(seed, position) for seed in range(40) for position in range(100)]
    assert sum(values) / len(values) == pytest.approx(0.5, abs=0.02)
    steps = [b - a for a, b in itertools.pairwise(values)]
    assert sum(step * step for step in steps) / len(steps) == pytest.approx(1 / 6, abs=0.02)


@given(
    st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=40),
    st.floats(0.05, 5),
    st.integers(0, 6),
    st.floats(0.05, 1),
    st.floats(0, 0.9),
    st.integers(0, 2**63),
)
def test_a_draw_is_always_a_token_the_rules_allow(logits, temperature, top_k, top_p, min_p, seed):
    token = pick(logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    order = sorted(logits, reverse=True)
    assert 0 <= token < len(logits)
    if top_k:
        assert logits[token] >= order[min(top_k, len(order)) - 1]
    assert (logits[token] - order[0]) / temperature >= (math.log(min_p) if min_p else -math.inf) - 1e-6


class Only:
    """A constraint that allows some tokens."""

    def __init__(self, *tokens: int) -> None:
        self._tokens = tokens

    def allowed(self, tokens):
        mask = np.zeros(5, dtype=np.bool_)
        mask[list(self._tokens)] = True
        return mask if self._tokens else None


def bound(constraint: Only, **settings) -> Request:
    made = request(**settings)
    made.payload = ChatPayload(constraint=constraint)
    return made


@pytest.mark.parametrize(
    "settings",
    [
        {}, {"temperature": 5.0}, {"temperature": 5.0, "top_k": 4}, {"temperature": 5.0, "top_p": 0.99},
        {"temperature": 5.0, "min_p": 0.001},
        {"logit_bias": ((0, 50.0),), "repetition_penalty": 1.5, "presence_penalty": 1.0},
    ],
)  # fmt: skip
def test_a_constraint_holds_under_every_rule_and_for_its_own_row(settings):
    logits = torch.tensor([[9.0, 0.0, 1.0, 2.0, 3.0]])
    for seed in range(50):
        rows = [bound(Only(1, 2), seed=seed, **settings), request(seed=seed, **settings)]
        constrained, free = choose(logits.repeat(2, 1), rows)
        assert constrained.token in (1, 2)
        assert free == choose(logits, [request(seed=seed, **settings)])[0]


def test_log_probabilities_under_a_constraint_are_among_what_it_allows():
    (choice,) = choose(torch.tensor([[9.0, 0.0, 0.0, 0.0, 0.0]]), [bound(Only(1, 2), logprobs=4)])
    assert choice.logprob == pytest.approx(math.log(0.5))
    assert {token for token, _ in choice.top} == {1, 2}


@pytest.mark.parametrize(
    "settings",
    [{}, {"temperature": 5.0}, {"temperature": 5.0, "top_k": 4}, {"logit_bias": ((0, 50.0),), "logprobs": 4}],
)
def test_a_barred_token_cannot_be_the_first_and_may_be_any_other(settings):
    logits = torch.tensor([[9.0, 8.0, 1.0, 2.0, 3.0]])
    for seed in range(50):
        first, second = request(seed=seed, **settings), request(tokens=(0, 3), seed=seed, **settings)
        first.payload = second.payload = ChatPayload(barred_starts=frozenset({0, 1}))
        barred, later = choose(logits.repeat(2, 1), [first, second])
        assert barred.token in (2, 3, 4)
        assert {token for token, _ in barred.top} <= {2, 3, 4}
        assert later == choose(logits, [request(tokens=(0, 3), seed=seed, **settings)])[0]


def test_a_dead_end_leaves_nothing_to_choose():
    logits = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 2.0, -torch.inf, 4.0, 5.0], [1.0] * 5])
    dead, unlikely, free = choose(logits, [bound(Only()), bound(Only(2)), request()])
    assert dead is None
    assert unlikely is None
    assert free is not None


def test_a_probe_is_told_the_probability_of_all_its_ends():
    made = request()
    made.payload = ChatPayload(ends=frozenset({1, 3}))
    (choice,) = choose(torch.log(torch.tensor([[0.4, 0.3, 0.1, 0.2]])), [made])
    assert choice.logprob == pytest.approx(math.log(0.5))
    assert choice.token == 0
