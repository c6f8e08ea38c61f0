"""Labels of recorded calls: what is read, what is guessed without them, and one clear line for each mistake."""

from __future__ import annotations

import pytest

from voxlane_lab.errors import LabError
from voxlane_lab.labels import Labels, guessed, labelled, read_labels
from voxlane_lab.values import USER_RATE, Interval, Meaning

STOP = '[[step]]\nat_s = 3.2\nuntil_s = 4.1\nmeans = "stop"\n'


def read(text: str) -> Labels:
    return read_labels(text, name="labels.toml")


def refusal(text: str) -> str:
    with pytest.raises(LabError) as caught:
        read(text)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def part(first_s: float, end_s: float) -> Interval:
    return round(first_s * USER_RATE), round(end_s * USER_RATE)


def test_a_whole_file_is_read() -> None:
    labels = read(f'answer_s = 4\n{STOP}name = "no, wait"\nanswered = false\n[gates]\nyield_ms.max = 500\n')
    assert labels.answer_s == 4
    assert labels.gates == {"yield_ms": {"max": 500}}
    (step,) = labels.step
    assert (step.at_s, step.until_s, step.means, step.name, step.answered) == (3.2, 4.1, "stop", "no, wait", False)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[step", "labels.toml: not TOML: "),
        ("", "labels.toml: step must be a list of 1 to 1000 objects"),
        ("step = []", "labels.toml: step must be "),
        (STOP.replace("stop", "pause"), "labels.toml: step[0].means must be "),
        (STOP.replace("3.2", '"soon"'), "labels.toml: step[0].at_s must be "),
        (STOP.replace("3.2", "-1"), "labels.toml: step[0].at_s must be "),
        (f"{STOP}loud = true", "labels.toml: step[0].loud is not known"),
        (STOP.replace("4.1", "3.2"), "labels.toml: step 1 ends before it begins"),
        (STOP + STOP, "labels.toml: step 2 begins before step 1 ends"),
    ],
)
def test_mistakes_are_named(text: str, says: str) -> None:
    assert refusal(text).startswith(says)


def test_the_voice_under_a_label_says_where_it_begins_and_ends() -> None:
    voiced = [part(0.5, 1.0), part(3.15, 3.6), part(3.8, 4.25), part(6.0, 7.0)]
    (step,) = labelled(read(STOP), voiced, 10 * USER_RATE, name="labels.toml")
    assert step.voiced == (part(3.15, 3.6), part(3.8, 4.25))
    assert not step.guessed


def test_a_voice_that_goes_far_beyond_a_label_is_cut() -> None:
    (step,) = labelled(read(STOP), [part(1.0, 9.0)], 10 * USER_RATE, name="labels.toml")
    assert step.voiced == (part(3.0, 4.3),)


def test_a_label_without_a_voice_keeps_its_times() -> None:
    (step,) = labelled(read(STOP), [], 4 * USER_RATE, name="labels.toml")
    assert step.voiced == (part(3.2, 4.0),)


def test_a_label_behind_the_recording_is_refused() -> None:
    with pytest.raises(LabError, match=r"labels\.toml: step 1 begins after the recording's end"):
        labelled(read(STOP), [], 3 * USER_RATE, name="labels.toml")


@pytest.mark.parametrize(
    ("person", "agent", "meanings"),
    [
        ([(1.0, 2.0)], [], ["turn"]),
        ([(1.0, 2.0)], [(0.0, 1.3)], ["stop"]),
        ([(1.0, 1.59)], [(0.0, 5.0)], ["nothing"]),
        ([(1.0, 1.61)], [(0.0, 5.0)], ["stop"]),
        ([(1.0, 1.4), (1.9, 2.3)], [(0.0, 5.0)], ["stop"]),  # one utterance of two words
        ([(1.0, 2.0), (3.4, 4.0)], [], ["turn"]),  # a pause in which the agent waits
        ([(1.0, 2.0), (3.4, 4.0)], [(2.5, 3.2)], ["turn", "turn"]),
        ([(1.0, 2.0), (3.6, 4.0)], [], ["turn", "turn"]),
        ([(1.0, 1.3), (2.3, 3.3)], [(0.0, 1.2)], ["nothing", "turn"]),  # "mhm" stops the agent, "go on" follows
        ([], [(0.0, 5.0)], []),
    ],
)
def test_meanings_are_guessed(
    person: list[tuple[float, float]], agent: list[tuple[float, float]], meanings: list[Meaning]
) -> None:
    found = guessed([part(*one) for one in person], [part(*one) for one in agent])
    assert [one.means for one in found] == meanings
    assert all(one.guessed for one in found)
    assert [interval for one in found for interval in one.voiced] == [part(*one) for one in person]
