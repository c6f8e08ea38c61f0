"""Who owns the sound: names where there are names, and rules where there are none."""

from __future__ import annotations

import numpy as np
import pytest
from examples import sweep
from lab_recordings import RecordedCall, sound

from voxlane_lab.attribution import OwnedRun, audible, loud, owned
from voxlane_lab.values import Recording

EVERY = pytest.mark.parametrize(
    ("rate", "named"), sweep([(8_000, False), (24_000, True), (8_000, True), (24_000, False)], 2)
)


def shown(recording: Recording) -> list[tuple[str, float, float]]:
    """Owner, begin and end in seconds."""
    rate = recording.agent_rate
    return [(run.owner, round(run.at / rate, 3), round(run.end / rate, 3)) for run in owned(recording)]


def asked(rate: int = 8_000, *, named: bool = False) -> RecordedCall:
    """A turn, and a response of 2 s from 3 s on, of which 1 s more was received."""
    call = RecordedCall(rate, named=named)
    call.step("turn", (1.0, 2.0))
    call.play("A", 3.0, 2.0, of_s=0, more_s=1.0)
    return call


@pytest.mark.parametrize("rate", [8_000, 22_050, 24_000])
def test_a_frame_is_heard_above_50_db_below_full_scale(rate: int) -> None:
    tone = np.zeros(rate, np.int16)
    tone[rate // 2 :] = 104  # a constant has its own value as RMS; the limit is 103.6
    heard = loud(tone, rate)
    assert heard.sum() == rate - rate // 2
    tone[rate // 2 :] = 103
    assert not loud(tone, rate).any()


def test_the_last_frame_may_be_short() -> None:
    assert loud(sound(8_037, 1), 8_000).all()
    assert len(loud(np.zeros(0, np.int16), 8_000)) == 0


def test_audible_has_the_length_of_the_track() -> None:
    recording = asked().recording()
    assert len(audible(recording)) == len(recording.agent)
    assert audible(recording).sum() == 2 * 8_000


def test_a_name_decides() -> None:
    call = asked(named=True)
    call.play("B", 5.0, 1.0, of_s=0)
    call.play("A", 6.0, 1.0, of_s=2.0)
    assert shown(call.recording()) == [("A", 3.0, 5.0), ("B", 5.0, 6.0), ("A", 6.0, 7.0)]


def test_runs_that_follow_each_other_are_one() -> None:
    call = RecordedCall(named=True)
    for tick in range(10):
        call.play("A", 3.0 + tick * 0.02, 0.02, of_s=tick * 0.02)
    assert owned(call.recording()) == [OwnedRun(72_000, 76_800, "A", 0)]


def test_sound_too_soon_after_an_interruption_is_old() -> None:
    call = asked()
    call.occur("clear", 5.0)
    call.step("stop", (4.5, 6.0), old="A")
    call.play("X", 6.1, 0.5, of_s=0)
    assert [owner for owner, _, _ in shown(call.recording())] == ["response 1", "response 1"]
    assert [run.stale for run in owned(call.recording())] == [False, True]


def test_sound_that_comes_150_ms_after_an_interruption_is_new() -> None:
    call = asked()
    call.occur("clear", 5.0)
    call.step("stop", (4.5, 6.0), old="A")
    call.play("X", 6.16, 0.5, of_s=0)
    assert [owner for owner, _, _ in shown(call.recording())] == ["response 1", "response 2"]


@pytest.mark.parametrize(("break_s", "responses"), [(0.28, 1), (0.3, 2)])
def test_a_break_after_a_turn_begins_a_new_response(break_s: float, responses: int) -> None:
    call = RecordedCall(8_000, named=False)
    call.step("turn", (1.0, 2.0))
    call.play("A", 3.0, 2.0, of_s=0)
    call.play("B", 5.0 + break_s, 1.0, of_s=0)
    assert len({owner for owner, _, _ in shown(call.recording())}) == responses


@pytest.mark.parametrize(("silence_s", "responses"), [(0.6, 1), (0.8, 2)])
def test_silence_that_is_sent_must_be_longer(silence_s: float, responses: int) -> None:
    call = RecordedCall(8_000, named=False)
    call.step("turn", (1.0, 2.0))
    call.play("S", 0.0, 3.0, of_s=0, silence=True)
    call.play("A", 3.0, 2.0, of_s=0)
    call.play("S", 5.0, silence_s, of_s=0, silence=True)
    call.play("B", 5.0 + silence_s, 1.0, of_s=0)
    call.play("S", 6.0 + silence_s, 5.0, of_s=0, silence=True)
    found = shown(call.recording())
    assert len({owner for owner, _, _ in found}) == responses
    assert (found[0][1], found[-1][2]) == (3.0, 6.0 + silence_s), "long silence at both ends belongs to no response"


def test_a_break_after_a_backchannel_continues() -> None:
    call = RecordedCall(8_000, named=False)
    call.step("turn", (1.0, 2.0))
    call.play("A", 3.0, 2.0, of_s=0)
    call.step("nothing", (4.5, 4.8), old="A")
    call.play("A", 6.5, 2.0, of_s=2.0)
    runs = owned(call.recording())
    assert [(run.owner, run.offset, run.continues, run.stale) for run in runs] == [
        ("response 1", 0, False, False),
        ("response 1", 16_000, True, False),
    ]


def test_a_break_after_a_backchannel_that_is_too_long_begins_a_new_response() -> None:
    call = RecordedCall(8_000, named=False)
    call.step("turn", (1.0, 2.0))
    call.play("A", 3.0, 2.0, of_s=0)
    call.step("nothing", (4.5, 4.8), old="A")
    call.play("B", 7.6, 2.0, of_s=0)
    assert [owner for owner, _, _ in shown(call.recording())] == ["response 1", "response 2"]


@EVERY
@pytest.mark.parametrize("ahead_s", [0.2, 3.0, 12.0])
@pytest.mark.parametrize("at_s", sweep([1.7, 2.0, 2.05]))
def test_sound_that_is_sent_again_has_its_place_in_the_response(
    rate: int, named: bool, ahead_s: float, at_s: float
) -> None:
    call = RecordedCall(rate, named=named)
    call.step("turn", (1.0, 2.0))
    call.play("A", 3.0, 2.0, of_s=0, more_s=ahead_s)
    call.occur("clear", 5.0)
    call.step("nothing", (4.5, 4.8), old="A")
    call.play("A", 6.0, 1.0, of_s=at_s, more_s=ahead_s)
    call.occur("clear", 7.0)
    call.play("A", 8.0, 2.0, of_s=at_s + 1.0)
    runs = owned(call.recording())
    assert len({run.owner for run in runs}) == 1
    assert [run.offset for run in runs] == [0, round(at_s * rate), round((at_s + 1) * rate)]


@pytest.mark.parametrize("gain", [1.0, 0.5])
def test_sound_that_begins_with_silence_is_found_by_what_follows(gain: float) -> None:
    call = asked(24_000)
    call.made["A"][48_000:50_400] = 0
    call.made["A"] = (call.made["A"] * gain).astype(np.int16)
    call.received.clear()
    call.runs.clear()
    call.arrivals.clear()
    call.play("A", 3.0, 2.0, of_s=0, more_s=1.0)
    call.occur("clear", 5.0)
    call.step("nothing", (4.5, 4.8), old="A")
    call.play("A", 6.0, 2.0, of_s=2.0)
    assert [run.offset for run in owned(call.recording())] == [0, 48_000]


def test_a_response_that_begins_like_the_one_before_is_a_new_one() -> None:
    call = asked()
    call.occur("clear", 5.0)
    call.step("stop", (4.5, 6.0), old="A")
    call.play("A", 7.0, 2.0, of_s=0)
    assert [owner for owner, _, _ in shown(call.recording())] == ["response 1", "response 2"]


def test_old_sound_behind_the_answer_is_stale() -> None:
    call = asked(named=True)
    call.step("stop", (4.5, 6.0), old="A")
    call.play("B", 7.0, 1.0, of_s=0)
    call.play("A", 9.0, 0.5, of_s=3.0)
    assert [(run.owner, run.stale) for run in owned(call.recording())] == [("A", False), ("B", False), ("A", True)]


def test_a_greeting_with_pauses_is_one_response() -> None:
    call = RecordedCall(8_000, named=False)
    call.play("A", 0.5, 1.0, of_s=0)
    call.play("A", 2.5, 1.0, of_s=1.0)
    call.step("turn", (5.0, 6.0))
    call.play("B", 7.0, 1.0, of_s=0)
    assert [owner for owner, _, _ in shown(call.recording())] == ["response 1", "response 1", "response 2"]


def test_a_call_without_sound_has_no_owners() -> None:
    assert owned(RecordedCall().recording()) == []
    assert owned(RecordedCall(length_s=0).recording()) == []
