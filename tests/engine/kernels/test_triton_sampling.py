"""Choosing tokens in Triton, interpreted on the CPU: against the reference, penalties against the host's sampler."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from examples import sweep
from torch import Tensor

from voxlane.engine.api import SamplingParams
from voxlane.engine.kernels.sampling import sampling
from voxlane.engine.kernels.sampling import sampling_triton as samples
from voxlane.engine.runners.sampler import _penalised
from voxlane.engine.schedule.request import Request

# The interpreter computes in numpy, which warns where a GPU gives an infinity or a NaN and goes on.
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in .*:RuntimeWarning")

F32, BF16 = torch.float32, torch.bfloat16


def packet_of(rows: list[dict[str, float]]) -> Tensor:
    """Return a packet of rules; what a row does not say is greedy."""
    packet = torch.zeros((len(rows), 12), dtype=torch.int32)
    floats = packet.view(torch.float32)
    for row, rules in enumerate(rows):
        packet[row, sampling.POSITION] = int(rules.get("position", 3))
        packet[row, sampling.SEED_LOW] = int(rules.get("seed", 1))
        packet[row, sampling.SEED_HIGH] = int(rules.get("seed_high", 0))
        floats[row, sampling.TEMPERATURE] = rules.get("temperature", 0.0)
        packet[row, sampling.TOP_K] = int(rules.get("top_k", 0))
        floats[row, sampling.TOP_P] = rules.get("top_p", 1.0)
        floats[row, sampling.MIN_P] = rules.get("min_p", 0.0)
        packet[row, sampling.PENALTIES] = int(rules.get("slot", -1)) + 1
    return packet


def draw(
    logits: Tensor,
    packet: Tensor,
    monkeypatch: pytest.MonkeyPatch,
    penalties: sampling.Penalties | None = None,
    fed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run the kernels with pieces so small that a small vocabulary has several, its last one ragged."""
    monkeypatch.setattr(samples, "CHUNK", 64)
    monkeypatch.setattr(samples, "BLOCK", 64)
    tokens = torch.full((logits.shape[0],), -9, dtype=torch.int32)
    logprobs = torch.zeros(logits.shape[0])
    samples.sample(logits, packet, tokens, logprobs, penalties, fed)
    return tokens, logprobs


RULES = [
    {},
    {"temperature": 1.0},
    {"temperature": 0.6, "seed": -5, "seed_high": 9},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 2.0, "top_k": 5},
    {"temperature": 1.0, "top_k": 400},
    {"temperature": 1.0, "top_p": 0.5},
    {"temperature": 1.5, "top_p": 0.9, "top_k": 20},
    {"temperature": 1.0, "top_p": 0.0},
    {"temperature": 1.0, "min_p": 0.2},
    {"temperature": 1.0, "min_p": 1.0},
    {"temperature": 3.0, "min_p": 0.05, "top_p": 0.8, "top_k": 30},
]


@pytest.mark.parametrize("dtype", sweep([F32, BF16]))
def test_choices_are_the_references(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, random: torch.Generator
) -> None:
    logits = (torch.randn((len(RULES), 150), generator=random) * 3).to(dtype)
    packet = packet_of([rules | {"position": n} for n, rules in enumerate(RULES)])
    tokens, logprobs = draw(logits, packet, monkeypatch)
    expected = sampling.sample_ref(logits, packet)
    assert torch.equal(tokens, expected[0])
    assert torch.allclose(logprobs, expected[1], rtol=0, atol=1e-4)


@pytest.mark.soak
def test_logits_far_from_zero_and_flat(monkeypatch: pytest.MonkeyPatch, random: torch.Generator) -> None:
    rules = [RULES[4], RULES[7], RULES[11]]
    steep = torch.randn((3, 150), generator=random) * 300 - 5000
    flat = torch.randn((3, 150), generator=random) * 1e-3 + 40
    for logits in (steep, flat, -steep):
        packet = packet_of(rules)
        assert torch.equal(draw(logits, packet, monkeypatch)[0], sampling.sample_ref(logits, packet)[0])


@pytest.mark.soak
def test_a_draw_does_not_depend_on_the_batch(monkeypatch: pytest.MonkeyPatch, random: torch.Generator) -> None:
    logits, packet = torch.randn((len(RULES), 100), generator=random), packet_of(RULES)
    together, logprobs = draw(logits, packet, monkeypatch)
    for row in range(len(RULES)):
        alone = draw(logits[row : row + 1], packet[row : row + 1], monkeypatch)
        assert (alone[0][0], alone[1][0]) == (together[row], logprobs[row])


@pytest.mark.soak
def test_equal_logits_are_kept_together(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.zeros((8, 100))
    logits[:, [3, 77, 90]] = 5.0
    packet = packet_of([{"temperature": 1.0, "top_k": 2, "position": n} for n in range(8)])
    tokens, _ = draw(logits, packet, monkeypatch)
    assert set(tokens.tolist()) == {3, 77, 90}
    assert torch.equal(tokens, sampling.sample_ref(logits, packet)[0])


@pytest.mark.soak
def test_bad_rows_are_told_and_stay_alone(monkeypatch: pytest.MonkeyPatch, random: torch.Generator) -> None:
    logits = torch.randn((5, 150), generator=random)
    packet = packet_of([{"temperature": 1.0, "top_p": 0.9}] * 5)
    clean = draw(logits, packet, monkeypatch)[0]
    logits[0, 100], logits[2, 3], logits[3] = float("nan"), float("inf"), -float("inf")
    logits[4, 50:] = -float("inf")  # a row may hold impossible tokens
    tokens = draw(logits, packet, monkeypatch)[0]
    assert tokens.tolist()[:4] == [-1, int(clean[1]), -1, -1]
    assert 0 <= int(tokens[4]) < 50
    assert torch.equal(tokens, sampling.sample_ref(logits, packet)[0])


PENALISED: list[dict[str, Any]] = [
    {"repetition": 1.3},
    {"presence": 1.5, "frequency": 0.7},
    {"bias": ((3, 6.0), (149, -40.0), (3, 1.5))},
    {"repetition": 0.8, "presence": -1.0, "frequency": 0.3, "bias": ((7, -9.0),)},
]


def spoken(request: dict[str, Any], tokens: list[int]) -> Request:
    """Return a request with those penalties that has got so far; its prompt was five tokens."""
    names = {"repetition": "repetition_penalty", "presence": "presence_penalty", "frequency": "frequency_penalty"}
    params = {names.get(name, "logit_bias"): value for name, value in request.items()}
    made = Request.__new__(Request)
    made.sampling, made.tokens, made.prompt_tokens = SamplingParams(**params), tokens, 5
    return made


@pytest.mark.soak
def test_penalties_follow_what_was_fed(monkeypatch: pytest.MonkeyPatch, random: torch.Generator) -> None:
    """Over five steps, one of them still in the prompt: the host's arithmetic on whole histories, to the same tokens.

    A row without a slot and one in another's old slot have nothing of it.
    """
    ways = [
        {},
        {"temperature": 1.2},
        {"temperature": 0.9, "top_k": 5},
        {"temperature": 1.0, "top_p": 0.7, "min_p": 0.1},
    ]
    rules = [dict(way, slot=slot) for slot, way in enumerate(ways)] + [{"temperature": 1.0}]
    requests = [spoken(penalty, [3, 7, 149, 7]) for penalty in PENALISED]
    kept, same = (sampling.Penalties.empty(5, 150, torch.device("cpu")) for _ in range(2))
    for penalties in (kept, same):
        penalties.set(0, [11, 12, 13], 1, frequency=5.0, bias=((1, 100.0),))  # a request that has left the slot
        for slot, (penalty, request) in enumerate(zip(PENALISED, requests, strict=True)):
            penalties.set(slot, request.tokens, 5, **penalty)
    fed = [9, 7, 7, 3, 0]
    for position in range(4, 9):
        logits = torch.randn((5, 150), generator=random) * 3
        packet = packet_of([row | {"position": position} for row in rules])
        tokens, logprobs = draw(logits, packet, monkeypatch, kept, torch.tensor(fed))
        expected = sampling.sample_ref(logits, packet, same, torch.tensor(fed))
        assert torch.equal(tokens, expected[0])
        assert torch.allclose(logprobs, expected[1], rtol=0, atol=1e-4)
        assert torch.equal(kept.history, same.history)
        for slot, request in enumerate(requests):
            request.tokens.append(fed[slot])
            if slot == 0:
                assert int(tokens[0]) == int(_penalised(logits[0], request).argmax())
            again = sampling.Penalties.empty(1, 150, torch.device("cpu"))
            again.set(0, request.tokens, 5)
            assert torch.equal(again.history[0], kept.history[slot])
            one = packet[slot : slot + 1].clone()
            one[0, sampling.PENALTIES] = 1
            again.set(0, request.tokens[:-1], 5, **PENALISED[slot])
            scores = sampling.penalised_ref(logits[slot : slot + 1], one, again, torch.tensor(fed[slot : slot + 1]))
            assert torch.allclose(scores[0], _penalised(logits[slot], request), rtol=0, atol=1e-5)
        fed = [7, *tokens.tolist()[1:]]
    assert torch.equal(tokens[4], draw(logits, packet, monkeypatch)[0][4])


def test_draws_follow_the_distribution() -> None:
    """The reference's noise, over 2,000 positions: chi-square far below what a wrong weight would give."""
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0, 0.5])
    noise = torch.stack([sampling.gumbel_ref(12345, n, torch.arange(5)) for n in range(2000)])
    counts = torch.bincount((logits + noise).argmax(dim=1), minlength=5).double()
    expected = torch.softmax(logits.double(), dim=0) * 2000
    assert float(((counts - expected) ** 2 / expected).sum()) < 20.0  # 99.95 % of fair draws


def test_samples_by_the_dispatcher_and_refusals(random: torch.Generator) -> None:
    logits, packet = torch.randn((len(RULES), 64), generator=random), packet_of(RULES)
    tokens, logprobs = torch.zeros(len(RULES), dtype=torch.int32), torch.zeros(len(RULES))
    sampling.sample(logits, packet, tokens, logprobs)
    assert torch.equal(tokens, sampling.sample_ref(logits, packet)[0])
    with pytest.raises(ValueError, match="does not describe"):
        sampling.sample(logits, packet[1:], tokens, logprobs)
    with pytest.raises(ValueError, match="contiguous rows"):
        sampling.sample(torch.randn((64, len(RULES))).t(), packet, tokens, logprobs)
    with pytest.raises(ValueError, match="are not"):
        sampling.sample(logits, packet, tokens[1:], logprobs)
    with pytest.raises(ValueError, match="tokens that were fed"):
        sampling.sample(logits, packet, tokens, logprobs, sampling.Penalties.empty(1, 63, torch.device("cpu")), tokens)
