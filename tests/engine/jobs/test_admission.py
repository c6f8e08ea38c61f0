"""What a person may ask for, and what is refused before it costs anything."""

from __future__ import annotations

import math

import pytest
from simulation import Letters, Simulation, expected_text, reason

from voxlane.engine.api import MODEL_DECIDES, ChatMessage, Finished, Priority, Refused, SamplingParams, Submit
from voxlane.engine.errors import Refusal
from voxlane.engine.jobs.admission import MAX_BIASES, MAX_STOPS, check_sampling


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"top_p": 1.1},
        {"min_p": -1.0},
        {"top_k": -1},
        {"repetition_penalty": 0.0},
        {"presence_penalty": math.inf},
        {"frequency_penalty": math.nan},
        {"max_tokens": 0},
        {"logprobs": 21},
        {"seed": 1 << 64},
        {"stop": ("",)},
        {"stop": ("x" * 257,)},
        {"stop": ("x",) * (MAX_STOPS + 1)},
        {"logit_bias": ((-1, 1.0),)},
        {"logit_bias": ((30, 1.0),)},
        {"logit_bias": ((0, math.nan),)},
        {"logit_bias": ((0, 1.0),) * (MAX_BIASES + 1)},
        {"unset": ("seed",)},
        {"loop_tokens": 15},
        {"loop_tokens": -1},
        {"loop_tokens": 1 << 20},
    ],
)
def test_parameters_out_of_range_are_refused(settings):
    with pytest.raises(Refusal) as refusal:
        check_sampling(SamplingParams(**settings), 30)
    assert refusal.value.code == "bad_request"


def test_parameters_at_their_bounds_are_taken():
    check_sampling(
        SamplingParams(
            temperature=100.0, top_p=0.0, min_p=1.0, top_k=30, seed=(1 << 64) - 1, logprobs=20,
            stop=("x" * 256,) * MAX_STOPS, logit_bias=((29, -1e4),), max_tokens=1,
            unset=MODEL_DECIDES, loop_tokens=16,
        ),
        30,
    )  # fmt: skip


@pytest.fixture
def simulation() -> Simulation:
    return Simulation(blocks=8, host_blocks=0, block_tokens=4, max_step_tokens=64, policy="fcfs")


def submit(name: str, text: str, tokens: int = 4, **settings) -> Submit:
    return Submit(name, "complete", text=text, sampling=SamplingParams(max_tokens=tokens, ignore_eos=True), **settings)


def test_a_prompt_must_leave_room_for_one_token(simulation):
    simulation.send(submit("fits", "A" * 31), submit("full", "A" * 32), submit("huge", "A" * 2000))
    assert [reason(simulation.ends[name]) for name in ("full", "huge")] == ["refused", "refused"]
    assert simulation.ends["full"].code == "too_long"
    assert "32" in simulation.ends["full"].detail
    simulation.run()
    assert simulation.texts["fits"] == expected_text("A" * 31, 1)
    assert simulation.ends["fits"].reason == "length"


def test_an_empty_prompt_and_a_deadline_that_is_no_number_are_refused(simulation):
    simulation.send(submit("empty", ""), submit("never", "A", deadline_s=math.nan))
    assert {end.code for end in simulation.ends.values()} == {"bad_request"}


def test_a_token_the_model_does_not_know_is_refused(simulation):
    simulation.send(submit("z", "AB" + chr(64 + 31)))
    assert simulation.ends["z"].code == "bad_request"


def test_an_id_in_use_is_refused_and_the_first_goes_on(simulation):
    simulation.send(submit("a", "ABC"))
    (refused,) = simulation.core.handle([submit("a", "CBA")])
    assert isinstance(refused, Refused)
    assert refused.code == "duplicate_id"
    simulation.run()
    assert simulation.texts["a"] == expected_text("ABC", 4)


def test_a_full_queue_refuses_but_the_lane_stays_open(simulation):
    simulation.core._factories._max_waiting = 2
    simulation.send(submit("a", "A"), submit("b", "B"), submit("c", "C"))
    assert simulation.ends["c"].code == "overloaded"
    simulation.send(submit("d", "D", priority=Priority.CRITICAL))
    assert "d" not in simulation.ends
    simulation.run()
    assert set(simulation.texts) == {"a", "b", "d"}


def test_a_conversation_is_what_the_template_says(simulation):
    messages = (ChatMessage("user", "AB"), ChatMessage("assistant", "CD"))
    sampling = SamplingParams(max_tokens=3, ignore_eos=True)
    simulation.send(Submit("c", "chat", messages=messages, sampling=sampling))
    simulation.run()
    assert simulation.texts["c"] == expected_text("ABCD", 3)


def test_a_text_to_score_is_cut_into_windows_and_a_lone_last_token_left_out(simulation):
    requests = simulation.intake.requests(Submit("s", "score", text="A" * 65), now=0.0)
    assert [len(request.tokens) for request in requests] == [32, 32]
    assert len({request.id for request in requests}) == 2
    simulation.send(Submit("one", "score", text="A"))
    assert simulation.ends["one"].code == "bad_request"


def test_a_stop_string_ends_the_request_before_it_shows(simulation):
    whole = expected_text("AB", 12)
    stop = whole[5:7]
    sampling = SamplingParams(max_tokens=12, stop=(stop,), ignore_eos=True)
    simulation.send(Submit("s", "complete", text="AB", sampling=sampling))
    simulation.run()
    assert simulation.texts.get("s", "") == whole[: whole.index(stop)]
    end = simulation.ends["s"]
    assert isinstance(end, Finished)
    assert end.reason == "stop"
    assert Letters().encode(stop)
