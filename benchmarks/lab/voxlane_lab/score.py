"""Judge a recorded call that others made: stereo, the person left, the agent right. Pure.

A recording tells what was heard. It does not tell which response a sound belongs to, what waited in a queue, or when a
sound arrived. Figures that need those are None. The rules of attribution.py decide which sound is a new response.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from voxlane_lab.attribution import FASTEST_ANSWER_S
from voxlane_lab.errors import LabError
from voxlane_lab.gates import gate_limits
from voxlane_lab.judge import RECORDED, judged_call, judged_scenario
from voxlane_lab.labels import Labels, Meant, guessed, is_heard, labelled, read_labels
from voxlane_lab.rates import converted
from voxlane_lab.results import RunResult
from voxlane_lab.scenario import Scenario
from voxlane_lab.values import USER_RATE, Interval, Pcm, Recording, Run, StepRecord
from voxlane_lab.voicing import voiced_parts
from voxlane_lab.waveform import Floats, read_wav

GUESSED = " (guessed)"
"""Follows the name of a step whose meaning no label gives."""

ANSWER_S = 10.0
"""An answer that takes longer counts as none, where no labels say otherwise."""

SHORTEST_S, LONGEST_S = 0.5, 3600.0
"""How long a recording may be."""

VOICE_DB = -23.0
"""The agent's voice is brought to this level, so that "audible" means the same in a quiet recording."""

SENTENCE_PAUSE_S = 0.7
"""An agent that pauses for less, unprompted, goes on with the same response."""

REACTS_S = 1.5
"""An agent that falls silent this soon after the person was heard may have reacted to it."""

SAME_SOUND = 0.98
"""Channels that are more alike than this hold the same sound."""


@dataclass(frozen=True, slots=True)
class HeardCall:
    """A recorded call: what was heard, and which meanings of the person's utterances were guessed."""

    recording: Recording
    labels: Labels | None  # None: all meanings are guessed
    guessed: tuple[int, ...]  # numbers of the steps whose meaning was guessed


@dataclass(frozen=True, slots=True)
class ScoredCall:
    """A recorded call and its figures."""

    recording: Recording  # for the report
    scenario: Scenario  # its name, gates and answer_s; a recording has no plan of steps
    result: RunResult
    guessed: tuple[int, ...]  # numbers of the steps whose meaning was guessed; their names say so too


def score(wav: bytes, labels_text: str | None, *, name: str, labels_name: str = "labels") -> ScoredCall:
    """Return the figures of a stereo WAV file; raise LabError with one line.

    Without labels the meanings of the person's utterances are guessed.
    """
    heard = hear(wav, labels_text, name=name, labels_name=labels_name)
    labels = heard.labels
    scenario = Scenario(
        name=name,
        step=[],
        repeat=1,
        seed=0,
        answer_s=labels.answer_s if labels else ANSWER_S,
        gates=labels.gates if labels else {},
    )
    gate_limits(scenario.gates, name=labels_name)  # a gate that names nothing is a mistake in the labels
    call = judged_call(heard.recording, answer_s=scenario.answer_s)
    judged = judged_scenario(name, [call], scenario.gates, answer_s=scenario.answer_s)
    return ScoredCall(heard.recording, scenario, RunResult(scenarios=[judged], dialect=RECORDED), heard.guessed)


def hear(wav: bytes, labels_text: str | None, *, name: str, labels_name: str = "labels") -> HeardCall:
    """Return what is heard in a stereo WAV file; raise LabError with one line."""
    labels = read_labels(labels_text, name=labels_name) if labels_text is not None else None
    left, right = _channels(wav, name)
    person, agent = voiced_parts(left, right), voiced_parts(right, left)
    if not person and not agent:
        raise LabError(f"{name}: no voice is heard in it")
    meant = labelled(labels, person, len(left), name=labels_name) if labels else guessed(person, agent)
    played, parts = _levelled(right, agent), spoken_parts(agent, person)
    recording = Recording(
        scenario=name,
        dialect=RECORDED,
        repeat=0,
        seed=0,
        agent_rate=USER_RATE,
        person=_pcm(_only(left, [part for one in meant for part in one.voiced])),
        microphone=_pcm(left),
        agent=played,
        runs=_runs(parts),
        received={"": np.concatenate([played[first:end] for first, end in parts] or [played[:0]])},
        steps=[_step(number, one, agent) for number, one in enumerate(meant)],
    )
    return HeardCall(recording, labels, tuple(number for number, one in enumerate(meant) if one.guessed))


def spoken_parts(agent: Sequence[Interval], person: Sequence[Interval]) -> list[Interval]:
    """Return the agent's voice with its pauses between two sentences closed.

    A pause may be a reaction, and stays open, if the person was heard in it, or in the REACTS_S before it while the
    agent spoke. Sound that begins too soon after the person for an answer is taken for older.
    """
    parts: list[Interval] = []
    for first, end in agent:
        if parts and _is_pause(parts[-1], first, person):
            parts[-1] = (parts[-1][0], end)
        else:
            parts.append((first, end))
    return parts


def _is_pause(before: Interval, at: int, person: Sequence[Interval]) -> bool:
    began = before[0] - round(FASTEST_ANSWER_S * USER_RATE)
    since = max(began, before[1] - round(REACTS_S * USER_RATE))
    return at - before[1] < SENTENCE_PAUSE_S * USER_RATE and not is_heard(person, since, at)


def _channels(wav: bytes, name: str) -> tuple[Floats, Floats]:
    """Return the person's and the agent's channel at USER_RATE."""
    try:
        samples, rate = read_wav(wav, LONGEST_S)
        frames, channels = samples.shape
        if channels != 2:
            found = "1 channel" if channels == 1 else f"{channels} channels"
            raise LabError(f"it has {found}; two are needed, the person left and the agent right")
        if frames < SHORTEST_S * rate:
            raise LabError(f"it is shorter than {SHORTEST_S:g} s")
        left, right = (converted(samples[:, channel], rate, USER_RATE) for channel in range(2))
        if _are_alike(left, right):
            raise LabError("both channels hold the same sound; the person must be left and the agent right")
    except LabError as error:
        raise LabError(f"{name}: {error}") from None
    return left, right


def _are_alike(left: Floats, right: Floats) -> bool:
    """Return whether two channels hold the same sound at nearly the same level; a lower copy is a leak."""
    first, second = left - left.mean(), right - right.mean()
    powers = float((first**2).sum()), float((second**2).sum())
    if min(powers) < max(powers) / 4:
        return False
    return abs(float((first * second).sum())) > SAME_SOUND * float(np.sqrt(powers[0] * powers[1]))


def _only(track: Floats, parts: Sequence[Interval]) -> Floats:
    """Return the track with silence outside the parts."""
    kept = np.zeros_like(track)
    for first, end in parts:
        kept[first:end] = track[first:end] - track.mean()
    return kept


def _levelled(track: Floats, voiced: Sequence[Interval]) -> Pcm:
    """Return the voice alone, at VOICE_DB."""
    voice = _only(track, voiced)
    samples = sum(end - first for first, end in voiced)
    level = float(np.sqrt((voice**2).sum() / samples)) if samples else 1.0
    return _pcm(voice * np.float32(10 ** (VOICE_DB / 20) / level))


def _pcm(track: Floats) -> Pcm:
    return np.clip(np.rint(track * 32_768), -32_768, 32_767).astype(np.int16)


def _runs(voiced: Sequence[Interval]) -> list[Run]:
    """Return the agent's voice as the loudspeaker's runs. A recording does not name their responses."""
    runs, offset = [], 0
    for first, end in voiced:
        runs.append(Run(first, "", offset, end - first))
        offset += end - first
    return runs


def _step(number: int, meant: Meant, agent: Sequence[Interval]) -> StepRecord:
    first = meant.voiced[0][0]
    return StepRecord(
        number=number,
        name=f"{number + 1} {meant.name or meant.means}{GUESSED * meant.guessed}",
        means=meant.means,
        result="done",
        at=first,
        voiced=meant.voiced,
        audible=is_heard(agent, first, first + 1),
        expects_answer=meant.answered,
    )
