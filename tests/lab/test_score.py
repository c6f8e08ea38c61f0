"""Recorded calls with known timelines are judged right, over every kind of line; bad files give one clear line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from examples import SOAK
from lab_calls import ASKS, CALLS, GOOD_LINE, LINES, LineQuality, RecordedCall, Utterance, wav, wav_of

from voxlane_lab.errors import LabError
from voxlane_lab.judge import UNKNOWN
from voxlane_lab.labels import Labels
from voxlane_lab.metrics import StepFigures
from voxlane_lab.recording_file import load, save
from voxlane_lab.results import decode, encode, exit_code
from voxlane_lab.score import ANSWER_S, GUESSED, ScoredCall, score, spoken_parts
from voxlane_lab.values import USER_RATE

NEAR_MS = 20.0
BY_NAME = {call.name: call for call in CALLS}
PAIRS = [
    (call.name, line)
    for number, call in enumerate(CALLS)
    for place, line in enumerate(LINES)
    if SOAK or (place and number % (len(LINES) - 1) == place - 1)
]
"""Calls and the lines they are recorded over: in a soak every line, else one of the bad ones."""


def judged(call: RecordedCall, line: LineQuality = GOOD_LINE, *, labelled: bool = True) -> ScoredCall:
    return score(wav_of(call, line), call.labels() if labelled and call.steps else None, name="call.wav")


def figures_of(scored: ScoredCall) -> list[StepFigures]:
    return scored.result.scenarios[0].calls[0].steps


def check(call: RecordedCall, scored: ScoredCall) -> None:
    found = figures_of(scored)
    assert [step.means for step in found] == [step.means for step in call.steps]
    for step, expected in zip(found, call.steps, strict=True):
        assert all(step.values[name] is None for name in UNKNOWN), "a recording does not tell it"
        for name, value in expected.figures.items():
            measured = step.values[name]
            if value is None or isinstance(value, bool):
                assert measured is value, (step.name, name)
            else:
                assert measured == pytest.approx(value, abs=NEAR_MS), (step.name, name)


@pytest.mark.parametrize(("name", "line"), PAIRS)
def test_a_call_with_labels_is_judged_right(name: str, line: str) -> None:
    check(BY_NAME[name], judged(BY_NAME[name], LINES[line]))


@pytest.mark.parametrize("name", sorted(BY_NAME.keys() - {"cuts the person off"}))
def test_a_call_without_labels_is_judged_right(name: str) -> None:
    """All but one: without labels nothing says that a person who was cut off had not finished."""
    call = BY_NAME[name]
    scored = judged(call, labelled=False)
    check(call, scored)
    assert scored.guessed == tuple(range(len(call.steps)))
    assert all(step.name.endswith(GUESSED) for step in figures_of(scored))


def test_labels_are_no_guesses() -> None:
    scored = judged(BY_NAME["a good stop"])
    assert scored.guessed == ()
    assert [step.name for step in figures_of(scored)] == ["1 turn", "2 stop"]


def test_gates_of_the_labels_decide() -> None:
    call = BY_NAME["a slow yield"]
    for limit, code in ((1700, 0), (1500, 1)):
        labels = f"{call.labels()}\n[gates]\nyield_ms.max = {limit}\n"
        scored = score(wav_of(call), labels, name="call.wav")
        assert exit_code(scored.result) == code
        assert scored.scenario.gates == {"yield_ms": {"max": limit}}


def test_the_time_of_an_answer_is_the_labels() -> None:
    call = BY_NAME["a good stop"]
    scored = score(wav_of(call), "answer_s = 0.5\n" + call.labels(), name="call.wav")
    assert figures_of(scored)[1].values["unanswered"] is True
    assert scored.result.scenarios[0].answer_s == scored.scenario.answer_s == 0.5


def test_the_default_time_of_an_answer_is_that_of_labels() -> None:
    assert Labels(step=[]).answer_s == ANSWER_S


def test_the_result_and_the_recording_can_be_kept(tmp_path: Path) -> None:
    scored = judged(BY_NAME["two interruptions"])
    assert encode(decode(encode(scored.result))) == encode(scored.result)
    save(scored.recording, tmp_path)
    assert load(tmp_path).steps == scored.recording.steps


def test_the_same_file_gives_the_same_bytes() -> None:
    call = BY_NAME["a pause for mhm"]
    assert encode(judged(call).result) == encode(judged(call).result)


def test_the_tracks_hold_the_voices_alone() -> None:
    """Noise and echo are no part of what was said or played; the microphone keeps them."""
    call = RecordedCall("", 6.0, (ASKS,), (Utterance(2.3, 4.0),), ())
    recording = judged(call, LineQuality(noise_db=-50.0, crosstalk_db=-25.0), labelled=False).recording
    quiet = slice(round(4.1 * USER_RATE), None)
    assert not recording.person[quiet].any()
    assert not recording.agent[quiet].any()
    assert recording.microphone[quiet].any()
    assert not recording.person[round(2.0 * USER_RATE) :].any()


def test_a_quiet_agent_is_heard() -> None:
    """Audible means louder than -50 dB: the voice is brought to one level first."""
    call = BY_NAME["a good stop"]
    check(call, judged(call, LineQuality(agent_db=-58.0, bits=24)))


@pytest.mark.parametrize(
    ("agent", "person", "parts"),
    [
        ([(0, 10), (14, 20)], [], [(0, 20)]),  # between two sentences
        ([(0, 10), (18, 20)], [], [(0, 10), (18, 20)]),  # too long for that
        ([(0, 50), (54, 60)], [(48, 52)], [(0, 50), (54, 60)]),  # the person is heard
        ([(0, 50), (54, 60)], [(30, 34)], [(0, 60)]),  # long before
        ([(35, 45), (49, 60)], [(30, 34)], [(35, 45), (49, 60)]),  # began too soon after it for an answer
        ([(36, 45), (49, 60)], [(30, 34)], [(36, 60)]),  # an answer
    ],
)
def test_pauses_between_sentences_are_closed(
    agent: list[tuple[int, int]], person: list[tuple[int, int]], parts: list[tuple[int, int]]
) -> None:
    tenth = USER_RATE // 10
    scaled = [[(first * tenth, end * tenth) for first, end in track] for track in (agent, person, parts)]
    assert spoken_parts(scaled[0], scaled[1]) == scaled[2]


def noise(channels: int, seconds: float = 2.0) -> bytes:
    generator = np.random.default_rng(1)
    return wav(generator.normal(0, 0.05, (round(seconds * 16_000), channels)), 16_000)


SAME = np.repeat(np.sin(np.arange(32_000) / 20)[:, None] * 0.3, 2, axis=1)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "call.wav: the audio is empty"),
        (b"ID3" + bytes(100), "call.wav: the audio is not a WAV file"),
        (wav(np.zeros((100, 2)), 16_000)[:30], "call.wav: the WAV file"),
        (noise(1), "call.wav: it has 1 channel; two are needed, the person left and the agent right"),
        (noise(3), "call.wav: it has 3 channels; two are needed, the person left and the agent right"),
        (noise(2, 0.2), "call.wav: it is shorter than 0.5 s"),
        (noise(2), "call.wav: no voice is heard in it"),
        (wav(np.zeros((16_000, 2)), 16_000), "call.wav: no voice is heard in it"),
        (wav(SAME, 16_000), "call.wav: both channels hold the same sound"),
        (wav(np.zeros((1_000, 2)), 1_000), "call.wav: the sample rate must lie between"),
        (wav(np.zeros((88_202, 2)), 44_101), "call.wav: the sample rates have no simple ratio"),
    ],
)
def test_a_file_that_cannot_be_judged_gives_one_line(data: bytes, says: str) -> None:
    with pytest.raises(LabError) as caught:
        score(data, None, name="call.wav")
    assert_one_line(caught.value, says)


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ("[[step", "call.toml: not TOML: "),
        ('[[step]]\nat_s = 99\nuntil_s = 100\nmeans = "stop"', "call.toml: step 1 begins after the recording's end"),
        ('[[step]]\nat_s = 1\nuntil_s = 2\nmeans = "stop"\n[gates]\nspeed = 3', "call.toml: there is no metric "),
    ],
)
def test_labels_that_do_not_fit_give_one_line(labels: str, says: str) -> None:
    with pytest.raises(LabError) as caught:
        score(wav_of(CALLS[0]), labels, name="call.wav", labels_name="call.toml")
    assert_one_line(caught.value, says)


def assert_one_line(error: LabError, says: str) -> None:
    assert str(error).startswith(says)
    assert "\n" not in str(error)
