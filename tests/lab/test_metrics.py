"""The figures of calls with a known timeline: every metric, with and without names of responses, at two rates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from examples import examples, sweep
from hypothesis import given, settings
from lab_recordings import RecordedCall, shifted

from voxlane_lab.metrics import METRICS, RecallHeard, figures, recall_clips, spoken_numbers
from voxlane_lab.values import USER_RATE, Recording

EVERY = pytest.mark.parametrize(
    ("rate", "named"), sweep([(8_000, False), (24_000, True), (8_000, True), (24_000, False)], 2)
)
STOP = (5.0, 6.5)


def values(recording: Recording, number: int = 1, **more: Any) -> dict[str, Any]:
    return figures(recording, answer_s=5.0, **more)[number].values


def story(rate: int, named: bool) -> RecordedCall:
    """A person asks; the answer "A" begins 1 s later, at 3 s."""
    call = RecordedCall(rate, named=named)
    call.step("turn", (1.0, 2.0))
    return call


def interrupted(rate: int, named: bool, *, yield_s: float = 0.4, response_s: float | None = 0.6) -> RecordedCall:
    """The person interrupts "A" at 5 s and is answered by "B"."""
    call = story(rate, named)
    call.play("A", 3.0, 2.0 + yield_s, of_s=0, arrives_s=2.9, more_s=1.5)
    call.occur("clear", 5.0 + yield_s)
    call.step("stop", STOP, old="A")
    if response_s is not None:
        call.play("B", STOP[1] + response_s, 2.0, of_s=0, arrives_s=STOP[1] + response_s - 0.1)
    return call


def murmured(rate: int, named: bool) -> RecordedCall:
    """The person says mhm at 5 s, in "A", which began at 3 s."""
    call = story(rate, named)
    call.step("nothing", (5.0, 5.3), old="A", expects_answer=False)
    return call


# ---- the person interrupts


@EVERY
def test_an_interruption_that_is_obeyed(rate: int, named: bool) -> None:
    found = values(interrupted(rate, named).recording())
    assert found == dict.fromkeys(METRICS) | {
        "yield_ms": 400.0,
        "mute_ms": 400.0,
        "missed": False,
        "talk_over_ms": 400.0,
        "floor_ms": 400.0,
        "stale_ms": 0.0,
        "stale_wire_ms": 0.0 if named else None,
        "response_ms": 600.0,
        "first_byte_ms": 500.0,
        "answered_twice": False,
        "unanswered": False,
        "late_ms": 0.0,
    }


@EVERY
def test_the_turn_before_it_has_its_own_answer(rate: int, named: bool) -> None:
    found = values(interrupted(rate, named).recording(), 0)
    assert (found["response_ms"], found["first_byte_ms"], found["unanswered"]) == (1000.0, 900.0, False)
    assert found["yield_ms"] is None


@EVERY
def test_a_slow_yield_is_no_missed_interruption(rate: int, named: bool) -> None:
    call = story(rate, named)
    call.play("A", 3.0, 3.6, of_s=0, more_s=1.0)
    call.occur("clear", 6.6)
    call.step("stop", (5.0, 7.5), old="A")
    call.play("B", 8.3, 1.0, of_s=0)
    found = values(call.recording())
    assert (found["yield_ms"], found["talk_over_ms"], found["missed"]) == (1600.0, 1600.0, False)


@EVERY
def test_an_agent_that_talks_through_a_long_step_has_not_yielded(rate: int, named: bool) -> None:
    call = story(rate, named)
    call.play("A", 3.0, 4.6, of_s=0, more_s=1.0)
    call.occur("clear", 7.6)
    call.step("stop", (5.0, 7.5), old="A")
    call.play("B", 8.3, 1.0, of_s=0)
    found = values(call.recording())
    assert (found["yield_ms"], found["talk_over_ms"], found["missed"]) == (None, 2500.0, False)
    assert (found["response_ms"], found["unanswered"]) == (800.0, False)


@EVERY
def test_sound_without_voice_is_no_talk_over(rate: int, named: bool) -> None:
    call = story(rate, named)
    call.play("A", 3.0, 3.2, of_s=0, more_s=1.0)
    call.occur("clear", 6.2)
    call.step("stop", (5.0, 5.4), (6.0, 6.5), old="A")
    assert values(call.recording())["talk_over_ms"] == 600.0
    assert values(call.recording())["floor_ms"] == 400.0, "the person's pause ends the double talk"


@EVERY
def test_an_old_response_that_goes_on_for_three_seconds_was_not_stopped(rate: int, named: bool) -> None:
    call = story(rate, named)
    call.play("A", 3.0, 6.7, of_s=0, more_s=1.0)
    call.occur("clear", 9.7)
    call.step("stop", STOP, old="A")
    found = values(call.recording())
    assert (found["missed"], found["yield_ms"], found["talk_over_ms"]) == (True, None, 1500.0)


@EVERY
@pytest.mark.parametrize(("plays_s", "missed"), [(1.5, True), (0.5, None)])
def test_an_old_response_that_ends_by_itself_has_not_yielded(
    rate: int, named: bool, plays_s: float, missed: bool | None
) -> None:
    call = story(rate, named)
    call.play("A", 3.0, 2.0 + plays_s, of_s=0)
    call.play("A", 5.0 + plays_s, 0.2, of_s=10, silence=True)
    call.step("stop", STOP, old="A")
    found = values(call.recording())
    assert (found["missed"], found["yield_ms"], found["mute_ms"]) == (missed, None, None)


def test_a_response_that_was_complete_before_the_interruption_ends_by_itself_although_its_end_is_abrupt() -> None:
    call = story(24_000, True)
    call.play("A", 3.0, 3.5, of_s=0)
    call.step("stop", STOP, old="A")
    assert values(call.recording())["missed"] is False
    call.occur("finished", 4.0, "A")
    assert values(call.recording())["missed"] is True
    assert values(call.recording())["yield_ms"] is None


@EVERY
def test_stale_sound_is_no_part_of_the_yield_and_no_answer(rate: int, named: bool) -> None:
    call = interrupted(rate, named, response_s=1.6)
    call.play("A", 5.9, 0.5, of_s=2.4)
    call.play("A", 6.9, 0.5, of_s=2.9)  # without names, sound this late is known to be old if it was received before
    found = values(call.recording())
    assert (found["yield_ms"], found["stale_ms"]) == (400.0, 1000.0)
    assert (found["response_ms"], found["answered_twice"], found["unanswered"]) == (1600.0, False, False)
    assert found["talk_over_ms"] == 900.0


def test_stale_sound_that_the_dialect_drops_is_counted_on_the_wire() -> None:
    call = interrupted(24_000, True)
    call.receive("A", call.content("A", 4.0, 4.3), 5.5, late=True)
    found = values(call.recording())
    assert (found["stale_ms"], found["stale_wire_ms"], found["answered_twice"]) == (0.0, 300.0, False)


@EVERY
def test_lowering_is_measured_from_the_first_voiced_sample(rate: int, named: bool) -> None:
    call = interrupted(rate, named)
    call.occur("lowered", 4.0)
    call.occur("lowered", 5.12)
    assert values(call.recording())["duck_ms"] == 120.0


@EVERY
def test_a_response_that_pauses_between_two_words_at_u_on_is_old(rate: int, named: bool) -> None:
    call = interrupted(rate, named)
    call.agent[round(4.9 * rate) : round(5.1 * rate)] = 0
    call.steps[1] = replace(call.steps[1], audible=False)
    assert values(call.recording())["yield_ms"] == 400.0


@EVERY
def test_a_stop_that_meets_no_response_measures_the_answer_alone(rate: int, named: bool) -> None:
    call = story(rate, named)
    call.play("A", 3.0, 1.0, of_s=0)
    call.step("stop", STOP)
    call.play("B", 7.0, 1.0, of_s=0)
    found = values(call.recording())
    assert (found["yield_ms"], found["missed"], found["response_ms"]) == (None, None, 500.0)


# ---- a sound that means nothing


@EVERY
def test_a_response_that_goes_on_has_no_pause(rate: int, named: bool) -> None:
    call = murmured(rate, named)
    call.play("A", 3.0, 8.0, of_s=0)
    assert values(call.recording()) == dict.fromkeys(METRICS) | {
        "false_stop": False,
        "pause_ms": 0.0,
        "skipped_ms": 0.0,
        "repeated_ms": 0.0,
        "late_ms": 0.0,
    }


@EVERY
def test_a_pause_is_no_stop(rate: int, named: bool) -> None:
    call = murmured(rate, named)
    call.play("A", 3.0, 2.2, of_s=0)
    call.play("A", 6.05, 5.0, of_s=2.2)
    found = values(call.recording())
    assert (found["false_stop"], found["pause_ms"], found["mute_ms"]) == (False, 850.0, 200.0)
    assert (found["skipped_ms"], found["repeated_ms"]) == (0.0, 0.0)
    assert values(call.recording(), 0)["answered_twice"] is False


@EVERY
@pytest.mark.parametrize(("from_s", "skipped", "repeated"), [(2.2, 0, 0), (2.5, 300, 0), (1.9, 0, 300)])
def test_sound_that_is_sent_again_after_a_clear_tells_what_was_skipped_or_repeated(
    rate: int, named: bool, from_s: float, skipped: float, repeated: float
) -> None:
    call = murmured(rate, named)
    call.play("A", 3.0, 2.2, of_s=0, more_s=1.0)
    call.occur("clear", 5.2)
    call.play("A", 5.8, 6.0, of_s=from_s)
    found = values(call.recording())
    assert (found["false_stop"], found["pause_ms"]) == (False, 600.0)
    assert (found["skipped_ms"], found["repeated_ms"]) == (skipped, repeated)


def test_sound_that_is_dropped_and_not_sent_again_was_skipped() -> None:
    call = murmured(24_000, True)
    call.play("A", 3.0, 2.2, of_s=0, more_s=0.7)
    call.play("A", 5.5, 6.0, of_s=2.9)
    found = values(call.recording())
    assert (found["false_stop"], found["skipped_ms"], found["pause_ms"]) == (False, 700.0, 300.0)


@EVERY
@pytest.mark.parametrize("more_s", [0.0, 1.0])
def test_a_response_that_does_not_go_on_was_stopped(rate: int, named: bool, more_s: float) -> None:
    call = murmured(rate, named)
    call.play("A", 3.0, 2.4, of_s=0, more_s=more_s)
    found = values(call.recording())
    assert (found["false_stop"], found["pause_ms"], found["mute_ms"]) == (True, None, 400.0)


@EVERY
def test_another_response_after_a_clear_does_not_hide_a_false_stop(rate: int, named: bool) -> None:
    call = murmured(rate, named)
    call.play("A", 3.0, 2.4, of_s=0, more_s=1.0)
    call.occur("clear", 5.4)
    call.play("B", 6.2, 1.0, of_s=0)
    assert values(call.recording())["false_stop"] is True


@EVERY
def test_a_response_that_fades_out_may_have_ended_by_itself(rate: int, named: bool) -> None:
    call = murmured(rate, named)
    call.play("A", 3.0, 2.6, of_s=0)
    call.agent[round(5.3 * rate) : round(5.6 * rate)] = 0
    assert values(call.recording())["false_stop"] is None


@EVERY
def test_a_response_that_resumes_later_than_an_answer_may_take_was_stopped(rate: int, named: bool) -> None:
    call = murmured(rate, named)
    call.play("A", 3.0, 2.2, of_s=0)
    call.play("A", 11.2, 5.0, of_s=2.2)
    assert values(call.recording())["false_stop"] is True


@EVERY
def test_a_response_that_the_next_step_interrupts_was_not_stopped_before(rate: int, named: bool) -> None:
    call = murmured(rate, named)
    call.play("A", 3.0, 3.8, of_s=0, more_s=1.0)
    call.occur("clear", 6.8)
    call.step("stop", (6.5, 7.5), old="A")
    recording = call.recording()
    assert values(recording)["false_stop"] is False
    assert values(recording, 2)["yield_ms"] == 300.0


@EVERY
@pytest.mark.parametrize("answers", [True, False])
def test_an_answer_to_a_cough_is_unasked(rate: int, named: bool, answers: bool) -> None:
    call = story(rate, named)
    call.play("A", 3.0, 1.0, of_s=0)
    call.step("nothing", (6.0, 6.2), expects_answer=False)
    if answers:
        call.play("B", 7.0, 1.0, of_s=0)
    recording = call.recording()
    assert values(recording)["unasked"] is answers
    assert values(recording, 0)["answered_twice"] is False


def test_the_answer_to_the_turn_before_a_cough_is_not_unasked() -> None:
    call = story(24_000, True)
    call.step("nothing", (2.5, 2.7), expects_answer=False)
    call.play("A", 3.0, 1.0, of_s=0)
    recording = call.recording()
    assert values(recording)["unasked"] is None
    assert values(recording, 0)["response_ms"] == 1000.0


# ---- answers


@EVERY
def test_no_answer(rate: int, named: bool) -> None:
    found = values(interrupted(rate, named, response_s=None).recording())
    assert (found["unanswered"], found["response_ms"], found["first_byte_ms"]) == (True, None, None)


@EVERY
def test_an_answer_that_takes_too_long_is_none(rate: int, named: bool) -> None:
    found = values(interrupted(rate, named, response_s=5.5).recording())
    assert (found["unanswered"], found["response_ms"]) == (True, None)


@EVERY
def test_no_answer_is_expected(rate: int, named: bool) -> None:
    call = interrupted(rate, named, response_s=None)
    call.steps[1] = replace(call.steps[1], expects_answer=False)
    assert values(call.recording())["unanswered"] is None


@EVERY
def test_a_person_who_goes_on_too_soon_leaves_no_time_for_an_answer(rate: int, named: bool) -> None:
    call = interrupted(rate, named, response_s=None)
    call.step("turn", (8.0, 9.0))
    call.play("B", 9.4, 1.0, of_s=0)
    recording = call.recording()
    assert values(recording)["unanswered"] is None
    assert values(recording, 2)["response_ms"] == 400.0


@EVERY
@pytest.mark.parametrize(("for_s", "twice"), [(0.2, False), (0.5, True)])
def test_a_second_answer(rate: int, named: bool, for_s: float, twice: bool) -> None:
    call = interrupted(rate, named)
    call.play("C", 10.0, for_s, of_s=0)
    found = values(call.recording())
    assert (found["answered_twice"], found["response_ms"]) == (twice, 600.0)


@EVERY
def test_an_answer_in_the_persons_pause_cuts_the_person_off(rate: int, named: bool) -> None:
    call = RecordedCall(rate, named=named)
    call.step("turn", (1.0, 2.0), (3.0, 4.0))
    call.play("A", 2.6, 0.6, of_s=0, more_s=1.0)
    call.play("B", 4.7, 2.0, of_s=0)
    found = values(call.recording(), 0)
    assert (found["cut_off"], found["split_turns"], found["response_ms"]) == (True, 2, 700.0)
    assert (found["answered_twice"], found["unanswered"]) == (False, False)


@EVERY
def test_a_pause_that_is_waited_for(rate: int, named: bool) -> None:
    call = RecordedCall(rate, named=named)
    call.step("turn", (1.0, 2.0), (3.0, 4.0))
    call.play("A", 4.7, 2.0, of_s=0)
    found = values(call.recording(), 0)
    assert (found["cut_off"], found["split_turns"], found["response_ms"]) == (False, 1, 700.0)


def test_sound_that_arrives_before_u_off_cuts_off_although_it_is_heard_later() -> None:
    call = RecordedCall()
    call.step("turn", (1.0, 2.0), (3.0, 4.0))
    call.play("A", 4.1, 2.0, of_s=0, arrives_s=3.9)
    assert values(call.recording(), 0)["cut_off"] is True


def test_a_step_without_a_pause_cannot_be_cut_off() -> None:
    call = RecordedCall()
    call.step("turn", (1.0, 2.0), (2.2, 4.0))
    call.play("A", 3.0, 2.0, of_s=0)
    assert values(call.recording(), 0)["cut_off"] is None


@pytest.mark.parametrize("result", ["late", "nothing_to_interrupt", "not_in_dialect", "not_reached"])
def test_a_step_that_was_not_done_has_no_figures(result: str) -> None:
    call = interrupted(24_000, True)
    call.steps[1] = replace(call.steps[1], result=result, late_ms=31.0)  # type: ignore[arg-type]
    assert values(call.recording()) == dict.fromkeys(METRICS) | {"late_ms": 31.0}


def test_a_call_that_failed_has_no_figures() -> None:
    assert values(interrupted(24_000, True).recording(failure="refused")) == dict.fromkeys(METRICS) | {"late_ms": 0.0}


def test_an_empty_call_has_no_figures() -> None:
    assert figures(RecordedCall(length_s=0).recording(), answer_s=5.0) == []


# ---- memory


def counting(**more: Any) -> Recording:
    call = interrupted(24_000, True)
    call.steps[1] = replace(call.steps[1], recalls=True)
    return call.recording(texts={"A": "One, two, three, four, five, six, seven."}, **more)


@pytest.mark.parametrize(
    ("counted", "answered", "wrong"),
    [(4, 4, False), (4, 5, False), (4, 3, False), (4, 6, True), (4, 2, True), (None, 4, None), (4, None, None)],
)
def test_memory(counted: int | None, answered: int | None, wrong: bool | None) -> None:
    assert values(counting(), heard={1: RecallHeard(counted, answered)})["memory_wrong"] is wrong


def test_memory_is_not_judged_without_a_recogniser() -> None:
    assert values(counting())["memory_wrong"] is None


@pytest.mark.parametrize(
    ("kept", "extra", "missing"),
    [("One, two, three, four", 0, 0), ("One, two, three, four, five, six", 2, 0), ("One, two", 0, 2), ("", 0, 4)],
)
def test_the_history_is_compared_with_what_was_played(kept: str, extra: int, missing: int) -> None:
    history = [("user", "Count."), ("assistant", kept), ("user", "Stop."), ("assistant", "Four.")]
    found = values(counting(history=history), heard={1: RecallHeard(4, 4)})
    assert (found["history_extra_words"], found["history_missing_words"]) == (extra, missing)


def test_without_a_history_there_is_nothing_to_compare() -> None:
    assert values(counting(), heard={1: RecallHeard(4, 4)})["history_extra_words"] is None


@EVERY
def test_the_sound_for_the_recogniser(rate: int, named: bool) -> None:
    call = interrupted(rate, named)
    counted, answer = recall_clips(call.recording(), call.steps[1])
    assert np.array_equal(counted, call.content("A", 0, 2.4))
    assert np.array_equal(answer, call.content("B", 0, 2.0))


def test_a_question_after_the_interruption_recalls_what_was_interrupted() -> None:
    call = interrupted(24_000, True)
    call.step("turn", (10.0, 11.0), recalls=True)
    call.play("C", 12.0, 1.0, of_s=0)
    counted, answer = recall_clips(call.recording(), call.steps[2])
    assert np.array_equal(counted, call.content("A", 0, 2.4))
    assert np.array_equal(answer, call.content("C", 0, 1.0))


def test_without_an_interruption_nothing_was_counted() -> None:
    call = story(24_000, True)
    counted, answer = recall_clips(call.recording(), call.steps[0])
    assert (len(counted), len(answer)) == (0, 0)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("one, two, 3, twenty-one", [1, 2, 3, 21]),
        ("Twenty. One.", [20, 1]),
        ("twenty one, thirty two", [21, 32]),
        ("I was at seventeen when you stopped me.", [17]),
        ("one hundred and five", [105]),
        ("one hundred twenty-one, zero", [121, 0]),
        ("someone wonders", []),
        ("20 1", [20, 1]),
        ("", []),
    ],
)
def test_numbers_in_a_text(text: str, numbers: list[int]) -> None:
    assert spoken_numbers(text) == numbers


# ---- laws


@EVERY
@given(st.integers(0, 40))
@settings(deadline=None, max_examples=examples(30))
def test_a_call_that_begins_later_has_the_same_figures(rate: int, named: bool, ticks: int) -> None:
    for recording in (interrupted(rate, named).recording(), _paused(rate, named)):
        assert figures(shifted(recording, ticks), answer_s=5.0) == figures(recording, answer_s=5.0)


def _paused(rate: int, named: bool) -> Recording:
    call = murmured(rate, named)
    call.play("A", 3.0, 2.2, of_s=0)
    call.play("A", 6.05, 5.0, of_s=2.2)
    return call.recording()


@EVERY
@given(yield_s=st.integers(3, 30), response_s=st.integers(16, 60))
@settings(deadline=None, max_examples=examples(30))
def test_a_later_agent_is_slower_by_as_much(rate: int, named: bool, yield_s: int, response_s: int) -> None:
    fast = values(interrupted(rate, named, yield_s=yield_s / 50, response_s=response_s / 50).recording())
    slow = values(interrupted(rate, named, yield_s=yield_s / 50 + 0.1, response_s=response_s / 50 + 0.1).recording())
    for metric in ("yield_ms", "mute_ms", "talk_over_ms", "floor_ms", "response_ms", "first_byte_ms"):
        assert slow[metric] == pytest.approx(fast[metric] + 100)
    assert fast["yield_ms"] == pytest.approx(yield_s * 20)


def test_every_metric_is_defined_in_sentences() -> None:
    for name, metric in METRICS.items():
        assert metric.sentence.endswith("."), name
        assert metric.what_it_does_not_say.endswith("."), name
        assert metric.better == "lower"
        assert (metric.unit == "") == (metric.kind == "flag"), name
        assert name.endswith("_ms") == (metric.unit == "ms"), name


def test_the_persons_rate_is_not_the_agents() -> None:
    call = interrupted(8_000, True)
    assert call.steps[1].first == 5 * USER_RATE
    assert values(call.recording())["yield_ms"] == 400.0
