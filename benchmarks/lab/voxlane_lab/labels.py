"""The labels of a recorded call: what each utterance of the person means. Read from TOML, or guessed. Pure.

    answer_s = 10.0
    [[step]]
    at_s = 3.2
    until_s = 4.1
    means = "stop"
    [gates]
    yield_ms.max = 500

Without labels the meaning is guessed from the sound: speech while the agent is silent is a turn; speech that begins
under the agent's voice is a stop, or nothing where it is short.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, Struct

from voxlane_lab.checking import WrongShape, checked
from voxlane_lab.errors import LabError
from voxlane_lab.scenario import Gates, Seconds
from voxlane_lab.values import USER_RATE, Interval, Meaning

BACKCHANNEL_S = 0.6
"""Shorter speech under the agent's voice is guessed to be a backchannel."""

SAME_UTTERANCE_S = 0.6
"""Speech after a shorter pause belongs to the same utterance."""

SAME_TURN_S = 1.5
"""And after a pause this short if the agent neither spoke before it nor in it."""

LABEL_SLACK_S = 0.2
"""A voice may begin so much before a label, or end so much after it."""


class Label(Struct, forbid_unknown_fields=True, frozen=True):
    """One utterance of the person."""

    at_s: Seconds
    until_s: Seconds
    means: Meaning
    name: str = ""
    answered: Annotated[bool, Meta(description="whether an answer must come; for turn and stop")] = True


class Labels(Struct, forbid_unknown_fields=True, frozen=True):
    """The whole file."""

    step: Annotated[list[Label], Meta(min_length=1, max_length=1000)]
    answer_s: Annotated[Seconds, Meta(description="an answer that takes longer counts as none")] = 10.0
    gates: Gates = {}


@dataclass(frozen=True, slots=True)
class Meant:
    """An utterance of the person, where it is voiced, and what it means."""

    means: Meaning
    voiced: tuple[Interval, ...]  # in samples at USER_RATE
    name: str = ""
    answered: bool = True
    guessed: bool = False


def read_labels(text: str, *, name: str) -> Labels:
    """Return the labels of a file; raise LabError with one line that names the place."""
    try:
        labels = checked(Labels, tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise LabError(f"{name}: not TOML: {error}") from None
    except WrongShape as error:
        raise LabError(f"{name}: {error}") from None
    before = 0.0
    for number, label in enumerate(labels.step, 1):
        if label.until_s <= label.at_s:
            raise LabError(f"{name}: step {number} ends before it begins")
        if label.at_s < before:
            raise LabError(f"{name}: step {number} begins before step {number - 1} ends")
        before = label.until_s
    return labels


def labelled(labels: Labels, voiced: Sequence[Interval], samples: int, *, name: str) -> list[Meant]:
    """Return the labelled utterances; the sound says where exactly they begin and end.

    A label under which no voice is found keeps its own times: it may mean a cough or a knock.
    """
    found = []
    for number, label in enumerate(labels.step, 1):
        if label.at_s * USER_RATE >= samples:
            raise LabError(f"{name}: step {number} begins after the recording's end")
        parts = _within(label, voiced) or ((_place(label.at_s), min(samples, _place(label.until_s))),)
        found.append(Meant(label.means, parts, label.name, label.answered))
    return found


def guessed(person: Sequence[Interval], agent: Sequence[Interval]) -> list[Meant]:
    """Return the utterances of the person with the meanings that are most probable."""
    groups: list[list[Interval]] = []
    for part in person:
        if groups and _goes_on(groups[-1], part, agent):
            groups[-1].append(part)
        else:
            groups.append([part])
    return [Meant(_guess(group, agent), tuple(group), guessed=True) for group in groups]


def _place(seconds: float) -> int:
    return round(seconds * USER_RATE)


def _within(label: Label, voiced: Sequence[Interval]) -> tuple[Interval, ...]:
    """Return the voice under a label, cut where it reaches too far beyond it."""
    first, end = _place(label.at_s), _place(label.until_s)
    lowest, highest = first - _place(LABEL_SLACK_S), end + _place(LABEL_SLACK_S)
    return tuple((max(one, lowest), min(other, highest)) for one, other in voiced if one < end and other > first)


def _goes_on(group: Sequence[Interval], part: Interval, agent: Sequence[Interval]) -> bool:
    """Return whether a part belongs to the utterance before it."""
    pause = part[0] - group[-1][1]
    if pause < _place(SAME_UTTERANCE_S):
        return True
    quiet = not is_heard(agent, group[0][0], group[0][0] + 1) and not is_heard(agent, group[-1][1], part[0])
    return quiet and pause < _place(SAME_TURN_S)


def _guess(group: Sequence[Interval], agent: Sequence[Interval]) -> Meaning:
    first, end = group[0][0], group[-1][1]
    if not is_heard(agent, first, first + 1):
        return "turn"
    return "nothing" if end - first < _place(BACKCHANNEL_S) else "stop"


def is_heard(voiced: Sequence[Interval], first: int, end: int) -> bool:
    """Return whether a voice is heard between two places."""
    return any(one < end and other > first for one, other in voiced)
