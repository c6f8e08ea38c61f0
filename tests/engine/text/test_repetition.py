"""Every loop is found soon, nothing else is taken for a loop, and a job that loops ends without its repeats.

Also: a thought that the prompt began is reported as begun.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from simulation import Letters, Simulation

from voxlane.engine.api import FinishReason, SamplingParams, Submit, Text, Tool
from voxlane.engine.jobs.chat import TextJob
from voxlane.engine.runners.decoder import TokenOutcome
from voxlane.engine.runners.sampler import SampledToken
from voxlane.engine.schedule.plan import Row
from voxlane.engine.text.repetition import CHECK_TOKENS, LEAST_LOOP_TOKENS, LONGEST_PERIOD, REPEATS, LoopGuard

LEAST = st.integers(LEAST_LOOP_TOKENS, 96)
TOKENS = st.lists(st.integers(0, 3), max_size=400)


def looped_at(tokens: Sequence[int], least: int, start: int = 0) -> int | None:
    """Return after how many tokens the output counts as a loop, None if it never does."""
    guard, grown = LoopGuard(least), list(tokens[:start])
    for count, token in enumerate(tokens[start:], 1):
        grown.append(token)
        if guard.repeats(grown, start):
            assert guard.repeating
            return count
    return None


def is_loop(tokens: Sequence[int], least: int) -> bool:
    """Return, the slow way, whether the end of `tokens` is a loop."""
    for period in range(1, min(LONGEST_PERIOD, len(tokens) - 1) + 1):
        run = period
        while run < len(tokens) and tokens[-run + period - 1] == tokens[-run - 1]:
            run += 1
        if run >= max(least, REPEATS * period):
            return True
    return False


@given(TOKENS, st.lists(st.integers(0, 5), min_size=1, max_size=LONGEST_PERIOD), LEAST)
def test_a_loop_is_found_soon(before: list[int], stretch: list[int], least: int) -> None:
    needed = max(least, REPEATS * len(stretch)) + CHECK_TOKENS
    loop = list(itertools.islice(itertools.cycle(stretch), needed))
    found = looped_at([*before, *loop], least)
    assert found is not None


@given(TOKENS, LEAST)
def test_what_is_found_is_a_loop(tokens: list[int], least: int) -> None:
    found = looped_at(tokens, least)
    if found is not None:
        assert is_loop(tokens[:found], least)
        assert found % CHECK_TOKENS == 0


@given(TOKENS, LEAST)
def test_only_the_output_counts(tokens: list[int], least: int) -> None:
    assume(len(tokens) > 1)
    start = len(tokens) // 2
    assert looped_at(tokens, least, start) == looped_at(tokens[start:], least)


@given(st.integers(1, 500))
def test_counting_is_no_loop(count: int) -> None:
    numbers = [part for number in range(count) for part in (1000 + number, 7, 8)]  # "1, 2, 3, …"
    assert looped_at(numbers, LEAST_LOOP_TOKENS) is None


def test_three_times_is_no_loop() -> None:
    stretch = list(range(20))
    assert looped_at([*stretch * 3, *range(100, 200)], 32) is None
    assert looped_at(stretch * 4, 32) == 80


def test_a_refrain_is_no_loop() -> None:
    verse = [[number * 30 + token for token in range(20)] for number in range(1, 9)]
    song = [token for lines in verse for token in [*lines, *range(10)]]
    assert looped_at(song, 32) is None


@pytest.mark.parametrize("least", [16, 48])
def test_repeating_goes_before_looping_and_may_end(least: int) -> None:
    guard, tokens = LoopGuard(least), []
    for token in [1, 2] * (least // 4 + CHECK_TOKENS // 2):
        tokens.append(token)
        guard.repeats(tokens, 0)
    assert guard.repeating
    assert not guard.looping or least == 16
    tokens += range(100, 100 + CHECK_TOKENS)
    assert not guard.repeats(tokens, 0)
    assert not guard.repeating


# ---- in a job


def told(output: str, least: int = 16, **settings: object) -> tuple[str, FinishReason | None, int]:
    """Return the text that a job reports for a model's output, how it ends, and after how many tokens."""
    sampling = SamplingParams(max_tokens=len(output), loop_tokens=least, logprobs=0, **settings)  # type: ignore[arg-type]
    tools = (Tool("f"),) if "schema" not in settings else ()
    submit = Submit("r", "chat", text="", sampling=sampling, tools=tools)
    intake = Simulation(blocks=64, host_blocks=0, block_tokens=4, max_step_tokens=64, policy="fcfs").intake
    (request,) = intake.requests(Submit("r", "complete", text="AB", sampling=sampling), now=0.0)
    job, shown = TextJob(submit, [request], Letters(), now=0.0), ""
    for token in Letters().encode(output):
        change = job.advance(Row(request, 0, 0), TokenOutcome([SampledToken(token, -1.0)]), 0.0)
        messages = [message for message in change.messages if isinstance(message, Text)]
        assert all(len(message.logprobs) == len(message.text) for message in messages)
        shown += "".join(message.text for message in messages)
        if change.end is not None:
            return shown, change.end, len(request.tokens) - 2
    return shown, None, len(request.tokens) - 2


def test_a_loop_ends_and_its_repeats_are_not_told() -> None:
    shown, reason, tokens = told("XYZ" + "BCDE" * 20)
    assert (reason, tokens) == ("stop", 24)
    assert shown == "XYZBCDEBCDEBCDE"


def test_what_was_no_loop_is_told_in_full() -> None:
    output = "XYZ" + "BCDE" * 3 + "FGHIJKLMNOPQ"
    assert told(output) == (output, "length", len(output))
    assert told("BCBCBCBCBC") == ("BCBCBCBCBC", "length", 10)  # it ends before it is certain


@pytest.mark.parametrize("settings", [{"schema": "json"}, {"ignore_eos": True}, {"least": 0}])
def test_some_outputs_may_loop(settings: dict[str, object]) -> None:
    output = "BCDE" * 20
    assert told(output, **settings) == (output, "length", 80)  # type: ignore[arg-type]


class Thinking(Letters):
    """A tokenizer with a template that begins the model's thoughts."""

    def token_bytes(self, token: int) -> bytes:
        return {25: b"</think>", 26: b"<think>"}.get(token) or super().token_bytes(token)


@pytest.mark.parametrize(("prompt", "begun"), [("BZ", "<think>\n"), ("ZB", ""), ("BZY", "")])
def test_a_thought_that_the_prompt_begins_is_told_as_begun(prompt: str, begun: str) -> None:
    intake = Simulation(blocks=64, host_blocks=0, block_tokens=4, max_step_tokens=64, policy="fcfs").intake
    for settings, opening in (({}, begun), ({"schema": "json"}, "")):
        sampling = SamplingParams(**settings)  # type: ignore[arg-type]
        (request,) = intake.requests(Submit("r", "complete", text=prompt, sampling=sampling), now=0.0)
        job, shown = TextJob(Submit("r", "chat", sampling=sampling), [request], Thinking(), now=0.0), ""
        for token in Letters().encode("CDE"):
            change = job.advance(Row(request, 0, 0), TokenOutcome([SampledToken(token)]), 0.0)
            shown += "".join(message.text for message in change.messages if isinstance(message, Text))
        assert shown == f"{opening}CDE"
