"""The CUDA runner's logic on the CPU: rows keep their place, packets say what they should, tokens are the Runner's."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from examples import sweep
from torch import Tensor

from voxlane.engine.api import Finished, FromEngine, Pause, Resume, SamplingParams, Submit, ToEngine
from voxlane.engine.jobs.chat import TextJob
from voxlane.engine.kernels.attention.pages import Layout, StatePages
from voxlane.engine.kernels.sampling.sampling import BLOCK, MIN_P, POSITION, SEED_LOW, TEMPERATURE, TOKEN, TOP_K, TOP_P
from voxlane.engine.kernels.yield_flag import EVERY_LAYERS
from voxlane.engine.loop.core import Core
from voxlane.engine.memory.blocks import BlockPool, BlockTable
from voxlane.engine.memory.pages import KVCache
from voxlane.engine.models import decoder
from voxlane.engine.models.decoder import Decoder
from voxlane.engine.runners.cuda.decoder import CudaRunner, is_decode
from voxlane.engine.runners.cuda.device import Stopwatch
from voxlane.engine.runners.cuda.joint_graphs import JointShape
from voxlane.engine.runners.cuda.prompt_graphs import PromptGraphs
from voxlane.engine.runners.cuda.rows import DecodeRows, buckets_up_to, is_penalised, needs_host, write_rules
from voxlane.engine.runners.decoder import Outcome, Runner
from voxlane.engine.schedule.cost import CostModel
from voxlane.engine.schedule.plan import TEXT, Limits, ModelBatch, ModelResources, Move, Row
from voxlane.engine.schedule.request import ChatPayload, Request
from voxlane.engine.schedule.scheduler import Scheduler
from voxlane.engine.weights.safetensors import SafetensorsDirectory

CPU = torch.device("cpu")
BLOCK_TOKENS = 4


def request(
    name: str, tokens: list[int], pool: BlockPool, barred: frozenset[int] = frozenset(), **sampling: object
) -> Request:
    """Return a request for a prompt, whose first new token is none of `barred`."""
    made, payload = SamplingParams(**sampling), ChatPayload(barred_starts=barred)  # type: ignore[arg-type]
    return Request(name, "complete", tokens, len(tokens), BlockTable(pool), sampling=made, seed=41, payload=payload)


class Letters:
    """A tokenizer whose every token is the same letter."""

    vocab_size = 1 << 30
    eos_ids: frozenset[int] = frozenset()
    special_ids: frozenset[int] = frozenset()

    def token_bytes(self, token: int) -> bytes:
        return b"x"


def decode_row(of: Request) -> Row:
    """Return the next decode of a request, its place taken."""
    start = of.table.length
    of.table.append(1)
    return Row(of, start, 1)


# ---- rows


def test_buckets_end_with_the_capacity() -> None:
    assert buckets_up_to(1) == (1,)
    assert buckets_up_to(20) == (1, 2, 4, 8, 16, 20)
    assert buckets_up_to(256)[-3:] == (128, 192, 256)
    rows = DecodeRows(20, BLOCK_TOKENS)
    assert [rows.bucket(count) for count in (1, 2, 3, 9, 17, 20)] == [1, 2, 4, 16, 20, 20]


def test_a_request_keeps_its_row_and_is_sent_once() -> None:
    pool = BlockPool(64, BLOCK_TOKENS)
    rows = DecodeRows(8, BLOCK_TOKENS)
    some = [request(str(n), list(range(10 + n)), pool) for n in range(3)]
    for one in some:
        one.table.append(len(one.tokens) - 1)
    first, joined = rows.place([decode_row(one) for one in some])
    assert sorted(first) == [0, 1, 2]
    assert sorted(index for index, _ in joined) == [0, 1, 2]
    for one in some:
        one.tokens.append(99)
    again, joined = rows.place([decode_row(one) for one in reversed(some)])
    assert again == list(reversed(first))
    assert joined == []
    rows.send()
    for one, index in zip(some, first, strict=True):
        position = len(one.tokens) - 1
        numbers = rows.packet[index]
        assert numbers[[TOKEN, POSITION, BLOCK]].tolist() == [99, position, one.table.blocks[position // BLOCK_TOKENS]]


def test_leavers_make_room_and_the_rest_move_down() -> None:
    pool = BlockPool(64, BLOCK_TOKENS)
    rows = DecodeRows(8, BLOCK_TOKENS)
    some = [request(str(n), [1, 2, 3], pool) for n in range(5)]
    places, _ = rows.place([decode_row(one) for one in some])
    assert set(places) == {0, 1, 2, 3, 4}
    owner = dict(zip(places, some, strict=True))
    stay = [owner[4], owner[1]]  # two rows fit the bucket of 2: row 4 must move
    places, joined = rows.place([decode_row(one) for one in stay])
    assert places == [0, 1]
    assert joined == [(0, owner[4])]
    rows.send()
    assert rows.packet[2:, POSITION].tolist() == [-1] * 6
    assert rows.packet[:2, POSITION].tolist() == [1, 1]


def test_a_request_that_was_elsewhere_is_sent_again() -> None:
    pool = BlockPool(64, BLOCK_TOKENS)
    rows = DecodeRows(4, BLOCK_TOKENS)
    one = request("a", list(range(9)), pool)
    rows.place([decode_row(one)])
    one.table.append(5)  # a chunk or drafts, outside the graph
    assert rows.place([decode_row(one)])[1] == [(0, one)]
    rows.clear()
    rows.send()
    assert rows.packet[0, POSITION] == -1
    assert rows.place([decode_row(one)])[1] == [(0, one)]


def test_a_step_laid_down_and_not_sent_is_laid_down_again() -> None:
    """The step's tokens were not known. A request that keeps its row need not be sent whole; one that moves must be."""
    pool = BlockPool(64, BLOCK_TOKENS)
    rows = DecodeRows(8, BLOCK_TOKENS)
    some = [request(str(n), [1, 2, 3], pool) for n in range(3)]
    places, _ = rows.place([decode_row(one) for one in some])
    rows.send()
    stay = [one for one, place in zip(some, places, strict=True) if place != 0]  # two fit the bucket of 2: one moves
    for one in stay:
        one.tokens = one.tokens[: one.table.length]
    ahead = [decode_row(one) for one in stay]
    found, joined = rows.place(ahead)
    assert rows.packet[:, TOKEN].tolist()[:3] == [1, 1, 1]  # nothing is shown before it is sent
    rows.take_back(ahead, found, joined)
    rows.place(ahead)
    rows.send()
    moved = next(one for _, one in joined)
    chosen = [places[some.index(one)] for one in stay]
    assert rows.packet[found, TOKEN].tolist() == [~place for place in chosen]  # in the step that was sent
    rows.take_back(ahead, found, joined)
    for one in stay:
        one.tokens.append(9)
    assert rows.place(ahead)[1] == [(found[stay.index(moved)], moved)]
    rows.elsewhere = {some[0]: 21}
    some[0].tokens = [4]
    some[0].table.free()
    some[0].table.append(1)
    places, _ = rows.place([*ahead, decode_row(some[0])])
    rows.send()
    assert rows.packet[places, TOKEN].tolist() == [9, 9, ~21]


def test_rows_under_random_comings_and_goings() -> None:
    source = random.Random(5)
    pool = BlockPool(4096, BLOCK_TOKENS)
    rows = DecodeRows(24, BLOCK_TOKENS)
    live: list[Request] = []
    known: dict[int, tuple[Request, list[int]]] = {}  # what a device would have in its tables
    for number in range(300):
        live = [one for one in live if source.random() < 0.9]
        while len(live) < 24 and source.random() < 0.6:
            live.append(request(str(number), [source.randrange(50) for _ in range(200)], pool))
        some = [one for one in live if source.random() < 0.95]
        source.shuffle(some)
        if not some:
            continue
        batch = [decode_row(one) for one in some]
        places, joined = rows.place(batch)
        rows.send()
        assert len(set(places)) == len(places)
        assert max(places) < rows.bucket(len(batch))
        for index, one in joined:
            known[index] = (one, list(one.table.blocks))
        for row, index in zip(batch, places, strict=True):
            owner, blocks = known[index]
            assert owner is row.request
            column, block = row.start // BLOCK_TOKENS, int(rows.packet[index, BLOCK])
            blocks[column:] = [block]
            assert blocks == row.request.table.blocks[: column + 1]
        idle = set(range(24)) - set(places)
        assert all(int(rows.packet[index, POSITION]) == -1 for index in idle)


def test_rules_are_written_by_their_bits() -> None:
    one = request("a", [1], BlockPool(4, 4), temperature=0.7, top_k=20, top_p=0.9, min_p=0.05)
    one.seed = -3
    numbers = np.zeros(12, dtype=np.int32)
    write_rules(numbers, one)
    assert numbers[SEED_LOW : SEED_LOW + 2].view(np.uint64)[0] == (1 << 64) - 3
    assert numbers[[TEMPERATURE, TOP_P, MIN_P]].view(np.float32).tolist() == pytest.approx([0.7, 0.9, 0.05])
    assert numbers[TOP_K] == 20
    write_rules(numbers, request("b", [1], BlockPool(4, 4), temperature=5e-38))
    assert numbers[TEMPERATURE] == 0, "every logit over it would be infinite"


def test_what_the_device_cannot_choose() -> None:
    pool = BlockPool(4, 4)
    assert not needs_host(request("a", [1], pool, temperature=1.0, top_k=3, top_p=0.5, min_p=0.1, logprobs=0))
    penalised = [{"logit_bias": ((1, 2.0),)}, {"repetition_penalty": 1.1}, {"presence_penalty": 0.1}]
    assert all(is_penalised(request("a", [1], pool, **sampling)) for sampling in penalised)
    assert not any(needs_host(request("a", [1], pool, **sampling)) for sampling in penalised)
    assert needs_host(request("a", [1], pool, logprobs=1))
    probe = request("a", [1], pool)
    probe.payload = ChatPayload(ends=frozenset({2}))
    assert needs_host(probe)
    barred = request("a", [1], pool, barred=frozenset({2}))
    assert needs_host(barred)
    barred.tokens.append(3)
    assert not needs_host(barred)


# ---- the runner


@dataclass
class Pair:
    """The same model and requests under both runners."""

    plain: Runner
    cuda: CudaRunner
    pools: tuple[BlockPool, BlockPool]


@pytest.fixture(scope="module", params=sweep(["lfm2", "qwen3"]))
def model(checkpoint: Callable[..., Path], request: pytest.FixtureRequest) -> Decoder:
    return Decoder.load(SafetensorsDirectory(checkpoint(request.param)), "float32")


def pair(model: Decoder, max_batch: int = 6) -> Pair:
    caches = [KVCache(model.spec.pages, 80, BLOCK_TOKENS, torch.float32, host_blocks=4) for _ in range(2)]
    cuda = CudaRunner(model, caches[1], CPU, max_batch=max_batch, context_tokens=model.context_tokens)
    pools = [BlockPool(80, BLOCK_TOKENS, state=cache.state) for cache in caches]
    return Pair(Runner(model, caches[0]), cuda, (pools[0], pools[1]))


def run_step(runner: Runner, requests: list[Request], chunk: int) -> list[Outcome]:
    rows = []
    for one in requests:
        count = min(len(one.tokens) - one.table.length, chunk)
        rows.append(Row(one, one.table.length, count))
        one.table.append(count)
    outcomes = runner.run(ModelBatch(rows=rows))
    for row, outcome in zip(rows, outcomes, strict=True):
        row.request.tokens += [choice.token for choice in outcome.choices]
    return outcomes


PROMPTS = [[5, 9, 33, 7], list(range(30, 51)), [100], [3, 1, 4, 1, 5, 9, 2, 6]]


def same_tokens(both: Pair, steps: int) -> None:
    """Run the prompts in chunks of five under both runners, and compare what they write."""
    outputs = []
    for runner, pool in zip((both.plain, both.cuda), both.pools, strict=True):
        requests = [request(str(n), list(prompt), pool) for n, prompt in enumerate(PROMPTS)]
        for _ in range(steps):
            run_step(runner, requests, 5)
        outputs.append([one.tokens for one in requests])
    assert outputs[0] == outputs[1]


@pytest.mark.usefixtures("graph")
def test_greedy_tokens_are_the_runners(model: Decoder) -> None:
    """Prompts in chunks that finish at different steps, so that prefills and decodes are mixed in most of them."""
    both = pair(model)
    same_tokens(both, 14)
    assert set(both.cuda.phases) == {"move", "launch", "device", "wait", "sample"}


@pytest.fixture(params=[True, False], ids=["graph", "no graph"])
def graph(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run prompts in a graph, or launch by launch."""
    if not request.param:
        monkeypatch.setattr(PromptGraphs, "shape", lambda self, *sizes: None)


@dataclass
class Counted:
    """How often a runner's model was run, and how often in a joint step."""

    forwards: int = 0
    joint: int = 0


def counted(runner: CudaRunner, monkeypatch: pytest.MonkeyPatch) -> Counted:
    count = Counted()
    forward, launch = type(runner.model).forward, runner._joint_graphs.launch

    def forwarded(self: Decoder, *arguments: Any) -> torch.Tensor:
        count.forwards += 1
        return forward(self, *arguments)

    def launched(shape: JointShape) -> None:
        count.joint += 1
        launch(shape)

    monkeypatch.setattr(type(runner.model), "forward", forwarded)
    monkeypatch.setattr(runner._joint_graphs, "launch", launched)
    return count


def test_decodes_and_prompts_run_the_model_once(model: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    both = pair(model, max_batch=20)
    count = counted(both.cuda, monkeypatch)
    requests = [request(str(n), list(prompt), both.pools[1]) for n, prompt in enumerate(PROMPTS)]
    run_step(both.cuda, requests[:2], 99)
    assert (count.forwards, count.joint) == (1, 0), "prompts alone"
    run_step(both.cuda, requests, 99)
    assert (count.forwards, count.joint) == (2, 1), "two decodes, two prompts"
    run_step(both.cuda, requests, 99)
    assert (count.forwards, count.joint) == (3, 1), "decodes alone"


@pytest.mark.parametrize("family", sweep(["gemma3", "qwen2-window", "llama-biased", "lfm2-moe"], here=2))
def test_every_family_has_the_same_tokens_in_joint_steps(
    family: str, checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Biases, windows, short convolutions and experts, of decodes and of prompts in chunks beside them."""
    both = pair(Decoder.load(SafetensorsDirectory(checkpoint(family)), "float32"))
    count = counted(both.cuda, monkeypatch)
    same_tokens(both, 10)
    assert count.joint == 4, "each chunk of the longest prompt but its first, beside which nothing decodes"


def test_which_steps_are_joint(model: Decoder) -> None:
    graphs = pair(model, max_batch=80).cuda._joint_graphs
    assert graphs.shape(1, 1, 1, 1) == (16, (64, 64))
    assert graphs.shape(24, 65, 3, 80) == (32, (128, 64))
    assert graphs.shape(80, 512, 64, 100) == (80, (512, 64))
    assert graphs.shape(1, 513, 1, 513) is None, "a long prompt keeps the device busy by itself"
    assert graphs.shape(1, 70, 65, 70) is None, "more choices than a prompt's step has room for"
    assert graphs.shape(1, 16, 1, model.context_tokens + 1) is None
    assert pair(model).cuda._joint_graphs.shape(7, 1, 1, 1) is None, "more rows than there are"


def test_each_kind_of_row_beside_decodes_gets_the_same_choices_as_apart(
    model: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three requests decode; then a probe, a barred start, a penalised and a long prompt come to them."""
    both, apart = pair(model, max_batch=16), pair(model, max_batch=16)
    count = counted(both.cuda, monkeypatch)
    monkeypatch.setattr(apart.cuda._joint_graphs, "shape", lambda *sizes: None)
    ways = ((both.plain, both.pools[0]), (apart.cuda, apart.pools[1]), (both.cuda, both.pools[1]))
    told = [each_kind_of_row(runner, pool) for runner, pool in ways]
    for plain, one, other in zip(*told, strict=True):
        assert [choice.token for choice in one] == [choice.token for choice in other]
        assert [choice.logprob for choice in one] == pytest.approx([choice.logprob for choice in other], abs=1e-4)
        if plain is not None:  # the host draws by another rule than the device
            assert [choice.token for choice in plain] == [choice.token for choice in other]
    assert count.joint == 2, "the prompts come in one step, and the rest of the long one in the next"


def each_kind_of_row(runner: Runner, pool: BlockPool) -> list[Any]:
    """Return the choices of some steps; None where the host's runner draws a token."""
    first = [
        request("plain", list(PROMPTS[0]), pool, logprobs=0),
        request("alternatives", list(PROMPTS[3]), pool, logprobs=3, temperature=0.7),
        request("drawn", list(PROMPTS[1]), pool, temperature=0.9, logprobs=0),
    ]
    run_step(runner, first, 99)
    later = [
        request("barred", [7, 3, 2, 1], pool, barred=frozenset(range(40))),
        request("penalised", [4, 4, 4, 8], pool, repetition_penalty=1.4, logit_bias=((9, 3.0),), logprobs=0),
        request("long", [n % 90 for n in range(40)], pool, logprobs=0),
    ]
    probe = request("probe", [5, 9, 33], pool)
    probe.payload = ChatPayload(ends=frozenset({2, 7}))
    told: list[Any] = []
    for step in range(6):
        rows = [*first, *later, probe] if step == 0 else [*first, *later]
        outcomes = run_step(runner, rows, 30)
        drawn_here = runner.__class__ is Runner
        told += [None if drawn_here and n == 2 else outcome.choices for n, outcome in enumerate(outcomes)]
    return told


def test_after_a_joint_step_that_fails_the_same_rows_run_again(model: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    both = pair(model)
    tokens = []
    for runner, pool in zip((both.plain, both.cuda), both.pools, strict=True):
        one, other = (request(str(n), list(prompt), pool) for n, prompt in enumerate(PROMPTS[:2]))
        run_step(runner, [one], 99)
        rows = [Row(one, one.table.length, 1), Row(other, 0, len(other.tokens))]
        for row in rows:
            row.request.table.append(row.count)
        if runner is both.cuda:
            with monkeypatch.context() as patched:
                patched.setattr(both.cuda._joint_graphs, "launch", out_of_memory)
                with pytest.raises(RuntimeError, match="pretended"):
                    both.cuda.launch(ModelBatch(rows=rows))
        tokens.append([outcome.choices[0].token for outcome in runner.run(ModelBatch(rows=rows))])
    assert tokens[0] == tokens[1]


def out_of_memory(*_: object) -> None:
    raise RuntimeError("pretended: out of memory")


def test_a_crowd_of_prompts(model: Decoder) -> None:
    both = pair(model, max_batch=80)
    outputs = []
    for runner, pool in zip((both.plain, both.cuda), both.pools, strict=True):
        requests = [request(str(n), [n, 2 * n, 7], pool) for n in range(70)]
        run_step(runner, requests, 9)
        outputs.append([one.tokens for one in requests])
    assert outputs[0] == outputs[1]


def test_which_prompts_a_graph_takes(model: Decoder) -> None:
    graphs = pair(model, max_batch=80).cuda._prompt_graphs
    assert graphs.shape(1, 1, 1) == (16, 16)
    assert graphs.shape(17, 17, 17) == (32, 32)
    assert graphs.shape(20, 40, 20) == (64, 64)  # drafts: more choices than a smaller one has room for
    assert graphs.shape(900, 64, 20) == (1024, 64)
    assert graphs.shape(100, 65, 20) == (512, 80)
    assert graphs.shape(4097, 1, 20) is None
    assert graphs.shape(16, 1, model.context_tokens + 1) is None


@pytest.mark.usefixtures("graph")
def test_special_requests_get_what_the_host_sampler_gives(model: Decoder) -> None:
    """Without penalties the model repeats itself; a pause in between has their history told anew."""
    both = pair(model)
    kinds: list[dict[str, object]] = [
        {"logprobs": 3, "temperature": 0.8, "repetition_penalty": 1.3},
        {"repetition_penalty": 1.3, "logprobs": 0},
        {"logit_bias": ((7, 50.0),), "frequency_penalty": 1.5, "presence_penalty": 0.5},
        {"logprobs": 0},
    ]
    told = []
    for runner, pool in zip((both.plain, both.cuda), both.pools, strict=True):
        requests = [request(str(n), list(PROMPTS[n]), pool, **kind) for n, kind in enumerate(kinds)]
        told.append([])
        for step in range(14):
            some = [one for n, one in enumerate(requests) if step not in (5, 6) or n not in (1, 2)]
            told[-1].append([outcome.choices for outcome in run_step(runner, some, 99)])
    for mine, theirs in zip(*told, strict=True):
        for one, other in zip(mine, theirs, strict=True):
            assert [choice.token for choice in one] == [choice.token for choice in other]
            assert [choice.logprob for choice in one] == pytest.approx([choice.logprob for choice in other], abs=1e-4)
            assert [len(choice.top) for choice in one] == [len(choice.top) for choice in other]


@pytest.mark.usefixtures("graph")
def test_a_probe_gets_what_the_host_sampler_gives(model: Decoder) -> None:
    """Beside a prompt that is no probe; two probes ask for the same ends, one for others."""
    both = pair(model)
    told = []
    for runner, pool in zip((both.plain, both.cuda), both.pools, strict=True):
        requests = [request(str(n), list(prompt), pool) for n, prompt in enumerate(PROMPTS)]
        for one, ends in zip(requests, ({2, 9}, {2, 9}, {40}), strict=False):
            one.task, one.payload = "probe", ChatPayload(ends=frozenset(ends))
        told.append([outcome.choices for outcome in run_step(runner, requests, 99)])
    for mine, theirs in zip(*told, strict=True):
        assert [choice.token for choice in mine] == [choice.token for choice in theirs]
    expected = [choice.logprob for (choice,) in told[0][:3]]
    assert len(set(expected)) == 3
    assert [choice.logprob for (choice,) in told[1][:3]] == pytest.approx(expected, abs=1e-4)


@pytest.mark.usefixtures("graph")
def test_a_first_token_is_none_of_those_that_are_barred(model: Decoder) -> None:
    both = pair(model)
    free = [request(str(n), list(prompt), both.pools[0]) for n, prompt in enumerate(PROMPTS)]
    run_step(both.plain, free, 99)
    outputs = []
    for runner, pool in zip((both.plain, both.cuda), both.pools, strict=True):
        some = [
            request(f"b{n}", list(prompt), pool, barred=frozenset({one.tokens[-1]}))
            for n, (prompt, one) in enumerate(zip(PROMPTS, free, strict=True))  # one prompt is a decode from its start
        ]
        for _ in range(6):
            run_step(runner, some, 99)
        outputs.append([one.tokens for one in some])
    assert outputs[0] == outputs[1]
    for tokens, prompt, one in zip(outputs[0], PROMPTS, free, strict=True):
        assert tokens[len(prompt)] != one.tokens[-1]
    assert not any(both.cuda._rows.on_host)


def test_draws_are_the_same_alone_and_among_others_and_after_a_prefill(model: Decoder) -> None:
    def outputs(prompts: list[list[int]], restart: bool) -> list[int]:
        both = pair(model)
        requests = [
            request(str(n), list(prompt), both.pools[1], temperature=1.0, top_k=40, top_p=0.95)
            for n, prompt in enumerate(prompts)
        ]
        for step in range(10):
            run_step(both.cuda, requests, 99)
            if restart and step == 4:
                requests[0].table.free()  # dropped, and computed again in one prefill
        return requests[0].tokens[len(prompts[0]) :]

    alone = outputs(PROMPTS[:1], restart=False)
    assert outputs(PROMPTS, restart=False) == alone
    # The step after the restart is a prefill that samples; it must draw what the decode would have drawn.
    assert outputs(PROMPTS[:1], restart=True) == alone
    assert len(set(alone)) > 1


def test_scores_and_drafts_run_beside_decodes(model: Decoder) -> None:
    both = pair(model)
    found = []
    for runner, pool in zip((both.plain, both.cuda), both.pools, strict=True):
        decode, scored, drafted = (request(str(n), list(PROMPTS[1]), pool) for n in range(3))
        scored.task = "score"
        run_step(runner, [decode], 99)
        truth = decode.tokens[-1]
        drafted.table.append(len(drafted.tokens) + 2)
        scored.table.append(len(scored.tokens))
        rows = [
            Row(scored, 0, len(scored.tokens)),
            decode_row(decode),
            Row(drafted, 0, len(drafted.tokens), drafts=[truth, 0]),
        ]
        found.append(runner.run(ModelBatch(rows=rows)))
    (mine, *my_choices), (theirs, *their_choices) = found
    assert mine.logprob_sum == pytest.approx(theirs.logprob_sum, abs=1e-3)
    assert mine.scored_tokens == theirs.scored_tokens
    for one, other in zip(my_choices, their_choices, strict=True):
        assert [choice.token for choice in one.choices] == [choice.token for choice in other.choices]
    assert len(found[1][2].choices) == 2  # one guess was right


def test_drafts_share_a_step_with_decodes(model: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    both = pair(model)
    count = counted(both.cuda, monkeypatch)
    found = []
    for runner, pool in zip((both.plain, both.cuda), both.pools, strict=True):
        decode, drafted = (request(str(n), list(PROMPTS[1]), pool) for n in range(2))
        run_step(runner, [decode], 99)
        truth = decode.tokens[-1]
        drafted.table.append(len(drafted.tokens) + 2)
        rows = [decode_row(decode), Row(drafted, 0, len(drafted.tokens), drafts=[truth, 0])]
        found.append([[choice.token for choice in one.choices] for one in runner.run(ModelBatch(rows=rows))])
    assert found[0] == found[1]
    assert len(found[1][1]) == 2, "one guess was right"
    assert count.joint == 1


def test_a_row_that_is_not_finite_fails_alone(model: Decoder) -> None:
    both = pair(model)
    requests = [request(str(n), list(PROMPTS[n]), both.pools[1]) for n in (0, 1)]
    run_step(both.cuda, requests, 99)
    block = requests[0].table.blocks[0]
    for page in both.cuda.cache.pages:
        page.v[block] = float("nan")
    outcomes = run_step(both.cuda, requests, 99)
    assert [outcome.failed for outcome in outcomes] == [True, False]


def test_moves_happen_first_and_a_fault_forgets_the_rows(model: Decoder) -> None:
    both = pair(model)
    one = request("a", list(PROMPTS[1]), both.pools[1])
    run_step(both.cuda, [one], 99)
    expected = request("b", list(PROMPTS[1]), both.pools[0])
    for _ in range(3):
        run_step(both.plain, [expected], 99)
    moves = [Move("swap_out", block, place) for place, block in enumerate(one.table.blocks[:4])]
    back = [Move("swap_in", place, block) for place, block in enumerate(one.table.blocks[:4])]
    row = decode_row(one)
    for page in both.cuda.cache.pages:
        assert page.k.shape[0] == 80
    with pytest.raises(AssertionError):
        both.cuda.run(ModelBatch(rows=[row] * 9))  # more than the tables hold
    outcome = both.cuda.run(ModelBatch(rows=[row], moves=[*moves, *back]))[0]
    one.tokens.append(outcome.choices[0].token)
    run_step(both.cuda, [one], 99)
    assert one.tokens == expected.tokens


def test_a_rehearsal_leaves_nothing_behind(model: Decoder) -> None:
    both = pair(model, max_batch=20)
    for page in both.cuda.cache.pages:
        page.k.fill_(7.0)
        page.v.fill_(7.0)
    states = [page for page in both.cuda.cache.layers if isinstance(page, StatePages)]
    for state in states:
        state.vectors.fill_(7.0)
    told: list[float] = []
    both.cuda.rehearse(300, told.append)
    # 1 x 17, 1 x 257, 16 x 17 and 17 x 17 tokens fit, and 1 x 300; each with short tables and with long ones.
    assert told == [pytest.approx(n / 10) for n in range(1, 11)]
    assert all(bool((part == 7.0).all()) for page in both.cuda.cache.pages for part in (page.k, page.v))
    assert all(bool((state.vectors == 7.0).all()) for state in states)


@pytest.mark.parametrize(("step_tokens", "full"), [(100, {(1, 100)}), (600, {(1, 600), (128, 4), (512, 1)})])
def test_full_steps_are_rehearsed_as_they_are_when_the_host_knows_them(
    model: Decoder, step_tokens: int, full: set[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = pair(model, max_batch=520).cuda
    known, forward = set(), runner._forward

    def noted(tokens: Tensor, layout: Layout) -> Tensor:
        if layout.max_query:
            known.add((layout.context_lengths.shape[0], layout.max_query))
            assert tokens.shape[0] == layout.context_lengths.shape[0] * layout.max_query
        return forward(tokens, layout)

    monkeypatch.setattr(runner, "_forward", noted)
    runner.rehearse(step_tokens)
    assert known == full


def a_core(
    model: Decoder, kinds: list[dict[str, object]], *, overlaps: bool
) -> tuple[Core, CudaRunner, BlockPool, list[Request]]:
    """Return a core over the runner that was asked for PROMPTS, and the requests."""
    both = pair(model, max_batch=6)
    pool = both.pools[1]
    made = [
        request(str(n), list(PROMPTS[n % len(PROMPTS)]), pool, ignore_eos=True, **kind) for n, kind in enumerate(kinds)
    ]

    class Desk:
        def open(self, submit: Submit, now: float) -> TextJob:
            return TextJob(submit, [made[int(submit.request_id)]], Letters(), now)  # type: ignore[arg-type]

    both.cuda.overlaps = overlaps
    resources = ModelResources(pool, BlockPool(0, BLOCK_TOKENS), CostModel(), abilities=TEXT)
    limits = Limits(policy="fcfs", max_batch=6, max_step_tokens=12)
    core = Core(Scheduler({"chat": resources}, limits), {"chat": both.cuda}, {"chat": Desk()}, clock=time.monotonic)
    core.handle([Submit(one.id, "complete", sampling=one.sampling) for one in made])
    return core, both.cuda, pool, made


def through_core(
    model: Decoder, *, overlap: str, kinds: list[dict[str, object]], pause_before: int = 0
) -> tuple[list[list[int]], int]:
    """Return what a core over the runner writes for PROMPTS, and how many of its steps were planned ahead.

    The first is paused for three steps: when the ninth lands, or before a step while the one before is under way.
    """
    core, runner, pool, made = a_core(model, kinds, overlaps=overlap != "apart")
    prepare, ahead = runner.prepare, 0

    def counted(load: ModelBatch) -> None:
        nonlocal ahead
        ahead += 1
        prepare(load)

    runner.prepare = counted  # type: ignore[method-assign]
    steps = 0
    while core.busy:
        steps += 1
        if pause_before:
            core.handle(
                [Pause(("0",))] if steps == pause_before else [Resume("0")] if steps == pause_before + 3 else []
            )
        late = not pause_before
        surprise = [Pause(("0",))] if late and steps == 9 else [Resume("0")] if late and steps == 12 else []
        core.step(lambda surprise=surprise: surprise if overlap == "ahead" else ())  # type: ignore[misc]
        if overlap == "apart":
            core.handle(surprise)
    core.idle()
    assert pool.used == 0
    return [one.tokens for one in made], ahead


def test_nothing_is_planned_from_a_step_whose_launch_failed(model: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    core, runner, pool, _ = a_core(model, [{"max_tokens": 5}, {"max_tokens": 5}], overlaps=True)
    launch, launches = runner._prompts.launch, itertools.count()

    def failing(rows: list[Row]) -> object:
        if next(launches) == 0:
            raise RuntimeError("pretended: out of memory")
        return launch(rows)

    monkeypatch.setattr(runner._prompts, "launch", failing)
    ends = [message for message in iterate(core) if isinstance(message, Finished)]
    assert {end.reason for end in ends} == {"failed"}
    assert pool.used == 0


def iterate(core: Core) -> Iterator[FromEngine]:
    while core.busy:
        yield from core.step()


@pytest.mark.parametrize("seed", sweep(range(12), here=2))
def test_steps_planned_ahead_and_mended_give_the_same_tokens(model: Decoder, seed: int) -> None:
    """Some are stopped and go on at any time, others end: rows move between what was laid down and what is launched."""
    chance = random.Random(seed)
    ways: list[dict[str, object]] = [{}, {"temperature": 1.0, "top_k": 40}, {"frequency_penalty": 1.0}]
    kinds = [{"max_tokens": chance.randint(3, 30), **chance.choice(ways)} for _ in range(9)]
    core, _, _, apart = a_core(model, kinds, overlaps=False)
    while core.busy:
        core.step()
    core, runner, pool, made = a_core(model, kinds, overlaps=True)
    slow, asked = chance.choice([0, 3]), Counter[int]()  # how often a step is not done yet

    def done(ticket: object) -> bool:
        asked[id(ticket)] += 1
        return asked[id(ticket)] > slow

    runner.done = done  # type: ignore[method-assign,assignment]
    paused: set[str] = set()

    def receive() -> list[ToEngine]:
        if chance.random() < 0.7:
            return []
        name = str(chance.randrange(len(kinds)))
        again = name in paused
        (paused.discard if again else paused.add)(name)
        return [Resume(name) if again else Pause((name,))]

    for _ in range(4000):
        if not core.busy and not paused:
            break
        core.step(receive)
        if not core.busy:
            core.handle([Resume(name) for name in paused])
            paused.clear()
    assert not core.busy
    assert [one.tokens for one in made] == [one.tokens for one in apart]
    assert pool.used == 0


EVERY = frozenset(range(60))
AHEAD: dict[str, tuple[list[dict[str, object]], int, range]] = {  # requests, a pause before a step, steps planned ahead
    "ends at different lengths, so that rows move": (
        [
            {"max_tokens": 14}, {"max_tokens": 20, "temperature": 1.0, "top_k": 40}, {"max_tokens": 9},
            {"max_tokens": 25, "frequency_penalty": 1.0},
        ],
        0, range(20, 99),
    ),
    "the host chooses for the first": ([{"max_tokens": 4, "logprobs": 2}, {"max_tokens": 9}], 0, range(1, 7)),
    "the first token is barred": (
        [
            {"max_tokens": 12, "barred": EVERY}, {"max_tokens": 16, "barred": EVERY, "temperature": 1.0},
            {"max_tokens": 12, "barred": EVERY, "temperature": 1.0},
        ],
        0, range(10, 99),
    ),
    **{
        f"a pause before step {step} keeps the token that the host chooses": (
            [{"max_tokens": 9, "logprobs": 2}, {"max_tokens": 14}], step, range(1, 99)
        )
        for step in (4, 5, 6)
    },
}  # fmt: skip


@pytest.mark.parametrize("case", AHEAD)
def test_steps_planned_ahead_give_the_same_tokens(model: Decoder, case: str) -> None:
    """Prompts of several chunks, draws, and a pause in between."""
    kinds, pause, planned = AHEAD[case]
    apart, none = through_core(model, overlap="apart", kinds=kinds)
    together, ahead = through_core(model, overlap="ahead", kinds=kinds, pause_before=pause)
    assert together == apart
    assert none == 0
    assert ahead in planned
    for tokens, prompt, kind in zip(apart, PROMPTS, kinds, strict=False):
        assert len(tokens) - len(prompt) == kind["max_tokens"]
        assert tokens[len(prompt)] not in kind.get("barred", ())  # type: ignore[operator]


def test_a_prompt_read_beside_a_step_goes_on_in_the_next_as_if_it_had_been_there(model: Decoder) -> None:
    both = pair(model)
    alone, beside = (request("a", list(PROMPTS[0]), pool, logprobs=0) for pool in both.pools)
    other = request("b", list(PROMPTS[1]), both.pools[1])
    concurrent_prefill = both.cuda.concurrent_prefill
    assert concurrent_prefill.takes(beside)
    assert not concurrent_prefill.takes(request("c", [1], both.pools[1], logprobs=2))  # the host has to choose
    assert not concurrent_prefill.takes(request("d", [1], both.pools[1], repetition_penalty=1.5))
    for one in (other, beside):
        one.table.append(len(one.tokens))
    under_way = both.cuda.launch(ModelBatch([Row(other, 0, len(other.tokens))]))
    ticket = concurrent_prefill.launch(ModelBatch([Row(beside, 0, len(beside.tokens))]))
    (outcome,) = concurrent_prefill.collect(ticket)
    both.cuda.collect(under_way)
    (expected,) = run_step(both.plain, [alone], 100)
    assert outcome.choices[0].logprob == pytest.approx(expected.choices[0].logprob, abs=1e-4)
    beside.tokens.append(outcome.choices[0].token)
    for _ in range(3):
        run_step(both.cuda, [beside], 1)
        run_step(both.plain, [alone], 1)
    assert beside.tokens == alone.tokens


def test_two_prompts_are_read_beside_a_step_and_each_has_its_own_choice(model: Decoder) -> None:
    both = pair(model)
    alone, beside = ([request(str(n), list(PROMPTS[n]), pool) for n in range(2)] for pool in both.pools)
    tickets = []
    for one in beside:
        one.table.append(len(one.tokens))
        tickets.append(both.cuda.concurrent_prefill.launch(ModelBatch([Row(one, 0, len(one.tokens))])))
    got = [both.cuda.concurrent_prefill.collect(ticket)[0].choices[0].token for ticket in reversed(tickets)]
    expected = [run_step(both.plain, [one], 100)[0].choices[0].token for one in reversed(alone)]
    assert got == expected


@pytest.mark.parametrize("fault", ["launch", "done", "wait"])
def test_a_fault_beside_a_step_leaves_the_lane_to_others(
    model: Decoder, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = pair(model)
    concurrent_prefill = both.cuda.concurrent_prefill
    one = request("a", list(PROMPTS[0]), both.pools[1])
    one.table.append(len(one.tokens))
    load = ModelBatch([Row(one, 0, len(one.tokens))])

    def fail(*args: object) -> None:
        raise RuntimeError("pretended fault")

    def served() -> object:
        return getattr(concurrent_prefill, fault)(load if fault == "launch" else concurrent_prefill.launch(load))

    for _ in range(3 * concurrent_prefill.most_launches):
        with monkeypatch.context() as patch:
            patch.setattr(Stopwatch, "stop" if fault == "launch" else fault, fail)
            with pytest.raises(RuntimeError, match="pretended"):
                served()
    (outcome,) = concurrent_prefill.run(load)
    assert not outcome.failed


@pytest.mark.parametrize("rows", [8, 16])
def test_steps_of_many_rows_give_way_and_prompts_beside_them_do_not(
    model: Decoder, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    firsts: list[bool] = []
    monkeypatch.setattr(model, "_stack", None)  # which runs all layers in one call
    monkeypatch.setattr(decoder, "yield_to_critical", lambda way, *, first: firsts.append(first))
    both = pair(model, max_batch=32)
    requests = [request(str(number), [1 + number], both.pools[1]) for number in range(rows)]
    run_step(both.cuda, requests, 1)
    assert firsts == [True, *[False] * (-(-len(model.spec.layers) // EVERY_LAYERS) - 1)] * (rows == 16)
    firsts.clear()
    other = request("b", list(PROMPTS[1]), both.pools[1])
    other.table.append(len(other.tokens))
    both.cuda.concurrent_prefill.run(ModelBatch([Row(other, 0, len(other.tokens))]))
    assert not firsts


def test_what_is_a_decode() -> None:
    pool = BlockPool(8, 4)
    one = request("a", [1, 2], pool)
    assert is_decode(Row(one, 1, 1))
    assert not is_decode(Row(one, 0, 2))
    assert not is_decode(Row(one, 1, 1, drafts=[4]))
    one.task = "score"
    assert not is_decode(Row(one, 1, 1))
