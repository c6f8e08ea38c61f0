"""Every fault in every dialect has its own effect at the ear, exact to a tick, and no other."""

from __future__ import annotations

import numpy as np
import pytest
from examples import sweep
from planted_call import PLACES, VOICE, PlantedCall, Span, hold_planted, voice_track

from voxlane_lab.agents.planted import FAULTS, TRAITS, planted
from voxlane_lab.dialects.choice import DIALECTS
from voxlane_lab.errors import LabError
from voxlane_lab.scenario import Echo

TICK = 0.021  # a tick of 20 ms, and rounding
ASK = (0.5, 1.7)
MURMUR = (4.0, 4.4)
STOP = (7.0, 9.5)
ANSWER_S = len(VOICE.answers[0].pcm) / 24_000
BEFORE_TURN_S = 0.78  # a sound that lasts longer is a turn
STOPPED_S = STOP[0] + BEFORE_TURN_S + 0.02

pytestmark = pytest.mark.parametrize("dialect", sweep(sorted(PLACES)))


def asked(fault: str, dialect: str, *more: Span, seconds: float) -> PlantedCall:
    return hold_planted(fault, dialect, voice_track(ASK, *more, seconds=seconds))


def near(got: list[Span], wanted: list[Span]) -> None:
    """Check when the agent was audible, to a tick."""
    assert len(got) == len(wanted), got
    assert np.allclose(got, wanted, atol=TICK), got


def test_good_agent(dialect: str) -> None:
    call = asked("none", dialect, MURMUR, STOP, seconds=14)
    near(call.spans, [(2.7, STOPPED_S), (10.5, 10.5 + ANSWER_S)])


def test_good_agent_says_nothing_unasked_and_ignores_murmurs(dialect: str) -> None:
    assert hold_planted("none", dialect, voice_track((1.0, 1.5), seconds=4)).spans == []


def test_good_agent_lets_people_pause(dialect: str) -> None:
    call = hold_planted("none", dialect, voice_track((0.5, 1.5), (2.4, 3.0), seconds=5))
    near(call.spans, [(4.0, 5.0)])


def test_greeting(dialect: str) -> None:
    (span,) = hold_planted("none", dialect, voice_track(seconds=4), greets=True).spans
    near([span], [(0.2, 0.2 + len(VOICE.greeting.pcm) / 24_000)])


def test_story_is_played_to_its_end(dialect: str) -> None:
    call = asked("none", dialect, seconds=23.5)
    near(call.spans, [(2.7, 2.7 + len(VOICE.stories[0].pcm) / 24_000)])


def test_hears_through_noise(dialect: str) -> None:
    call = hold_planted("none", dialect, voice_track(ASK, STOP, seconds=12, noise_db=-45))
    (story, answer) = call.spans
    assert story[0] == pytest.approx(2.7, abs=0.1)
    assert story[1] == pytest.approx(STOPPED_S, abs=0.1)
    assert answer[0] == pytest.approx(10.5, abs=0.1)


@pytest.mark.parametrize("echo", [Echo(level_db=-12), Echo(level_db=-20, delay_ms=200, room=True)])
def test_does_not_hear_itself(dialect: str, echo: Echo) -> None:
    (story, answer) = hold_planted("none", dialect, voice_track(ASK, STOP, seconds=12), echo=echo).spans
    assert story == pytest.approx((2.7, STOPPED_S), abs=0.1)
    assert answer[0] == pytest.approx(10.5, abs=0.1)


def test_talks_over(dialect: str) -> None:
    call = asked("talks_over", dialect, MURMUR, STOP, seconds=12)
    near(call.spans, [(2.7, 9.5 + 0.6), (10.5, 12.0)])


def test_stops_for_mhm(dialect: str) -> None:
    call = asked("stops_for_mhm", dialect, MURMUR, seconds=8)
    near(call.spans, [(2.7, 4.04)])


def test_stops_for_mhm_answers_turns(dialect: str) -> None:
    call = asked("stops_for_mhm", dialect, STOP, seconds=12)
    near(call.spans, [(2.7, 7.04), (10.5, 12.0)])


def test_pauses_850(dialect: str) -> None:
    call = asked("pauses_850", dialect, MURMUR, seconds=8)
    first, second = call.spans
    assert second[0] - first[1] == pytest.approx(0.85, abs=0.011)
    assert first[1] < 4.15
    assert second[1] == pytest.approx(8.0, abs=0.01)
    runs = _joined(call)
    assert len(runs) == 2
    assert runs[0][1] == runs[1][0]  # the next sample


def test_pauses_850_stops_for_turns(dialect: str) -> None:
    call = asked("pauses_850", dialect, STOP, seconds=12)
    near(call.spans, [(2.7, 7.1), (10.5, 12.0)])


@pytest.mark.parametrize("turn", [(7.0, 9.5), (7.0, 7.9), (7.013, 9.5)])
def test_slow_yield(dialect: str, turn: Span) -> None:
    call = asked("slow_yield", dialect, MURMUR, turn, seconds=12)
    story, answer = call.spans
    assert story[1] - turn[0] == pytest.approx(1.6, abs=TICK)
    assert answer[0] == pytest.approx(max(turn[1] + 1.0, story[1] + 0.32), abs=TICK)


def test_stale(dialect: str) -> None:
    call = asked("stale", dialect, MURMUR, STOP, seconds=13.5)
    first, second, third, answer = call.spans
    assert first[1] == pytest.approx(STOPPED_S + 0.02, abs=TICK)
    assert second[0] - first[1] == pytest.approx(0.3, abs=TICK)
    assert second[1] - second[0] == pytest.approx(0.5, abs=0.001)
    assert second[1] < STOP[1]
    assert 0 < third[0] - STOP[1] < 0.15
    assert third[1] - third[0] == pytest.approx(0.5, abs=0.001)
    assert answer[0] == pytest.approx(10.5, abs=TICK)  # as the good agent's
    pieces = _joined(call)
    assert [piece[0] for piece in pieces[1:3]] == [piece[1] for piece in pieces[:2]]  # they go on with the old sound
    if call.dialect.names_responses:
        assert [piece[2] for piece in pieces] == [pieces[0][2]] * 3 + [pieces[3][2]]
        assert pieces[0][2] != pieces[3][2]


def test_answers_twice(dialect: str) -> None:
    call = asked("answers_twice", dialect, STOP, seconds=18)
    story, first, second = call.spans
    assert second[0] - first[1] == pytest.approx(1.0, abs=0.011)
    near([story, first], [(2.7, STOPPED_S), (10.5, 10.5 + ANSWER_S)])
    assert second[1] < 17


def test_never_answers(dialect: str) -> None:
    call = asked("never_answers", dialect, MURMUR, STOP, seconds=14)
    near(call.spans, [(2.7, STOPPED_S)])


def test_cuts_off(dialect: str) -> None:
    call = hold_planted("cuts_off", dialect, voice_track((0.5, 1.5), (2.1, 3.6), seconds=7))
    near(call.spans, [(1.77, 2.1 + BEFORE_TURN_S + 0.01), (3.87, 3.87 + ANSWER_S)])


@pytest.mark.parametrize(("fault", "said"), [("none", 5), ("keeps_words", 20), ("forgets_words", 1)])
def test_memory(dialect: str, fault: str, said: int) -> None:
    call = hold_planted(fault, dialect, voice_track((0.5, 1.5), (5.5, 7.1), seconds=12), counts=True)
    count, answer = call.spans
    heard = VOICE.count.words_before(round((count[1] - count[0]) * 24_000))
    assert heard == 5
    assert answer[1] - answer[0] == pytest.approx(len(VOICE.recalls[said - 1].pcm) / 24_000, abs=TICK)
    if call.dialect.texts:
        assert VOICE.recalls[said - 1].words in call.dialect.texts.values()
    assert _ends_as(call, answer, said)


def test_names(dialect: str) -> None:
    assert set(PLACES) == set(DIALECTS)
    assert set(FAULTS) == set(TRAITS)
    with pytest.raises(LabError, match="there is no such fault"):
        planted("bad manners", dialect, VOICE)
    with pytest.raises(LabError, match="there is no such dialect"):
        planted("none", "morse", VOICE)


def _joined(call: PlantedCall) -> list[tuple[int, int, str]]:
    """Return what was played without a break: the first sample, the one behind the last, and the response."""
    found: list[tuple[int, int, str]] = []
    at = -1
    for run in call.runs:
        if found and at == run.at and found[-1][2] == run.response:
            found[-1] = (found[-1][0], run.offset + run.samples, run.response)
        else:
            found.append((run.offset, run.offset + run.samples, run.response))
        at = run.end
    return found


def _ends_as(call: PlantedCall, span: Span, number: int) -> bool:
    """Return whether the sound of a span is that of the answer with this number, and of no other."""
    rate = call.dialect.speaker.rate
    sound = call.agent[round(span[0] * rate) : round(span[1] * rate)].astype(np.float64)
    likeness = []
    for clip in VOICE.recalls:
        own = np.interp(np.arange(len(sound)) / rate, np.arange(len(clip.pcm)) / 24_000, clip.pcm, right=0)
        likeness.append(float(np.dot(sound, own) / (np.linalg.norm(sound) * np.linalg.norm(own))))
    return int(np.argmax(likeness)) == number - 1 and max(likeness) > 0.9
