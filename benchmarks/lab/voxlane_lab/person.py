"""One person of one repeat: which voice, which words, which moments; all drawn from the scenario's seed. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from voxlane_lab.scenario import Scenario, ScenarioStep, When
from voxlane_lab.sounds.corpus import SPOKEN, Corpus, sound_wanted
from voxlane_lab.sounds.speech import Wanted
from voxlane_lab.sounds.voices import voice_named
from voxlane_lab.values import Clip

NAME_CHARACTERS = 60  # of a step
CORPUS_DB = -23.0  # the loudness of the corpus's clips, in dB of full scale

TURN = When(agent_silent_s=(0.6, 1.0))
INTERRUPTION = When(agent_audible_s=(1.0, 2.5))
"""When a step begins that does not say it."""


@dataclass(frozen=True, slots=True)
class TriggerMoment:
    """The drawn values of a trigger."""

    when: When
    audible_s: float | None
    silent_s: float | None


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step with everything that is drawn."""

    step: ScenarioStep
    name: str
    moment: TriggerMoment
    wanted: Wanted | None  # what must be spoken for it
    sound: str  # the name of a sound, or ""
    seed: int
    gain: float


def generator(scenario: Scenario, repeat: int, use: int) -> np.random.Generator:
    """Return the chance of one use in one repeat."""
    return np.random.default_rng([scenario.seed, repeat, use])


def plan(scenario: Scenario, repeat: int) -> list[PlannedStep]:
    """Return the steps of a repeat."""
    chance = generator(scenario, repeat, 0)
    voice = voice_named(scenario.user.voice, scenario.seed - 1 + repeat)
    return [_planned(scenario, step, number, voice, chance) for number, step in enumerate(scenario.step)]


def _planned(
    scenario: Scenario, step: ScenarioStep, number: int, voice: str, chance: np.random.Generator
) -> PlannedStep:
    own = voice_named(step.voice, scenario.seed - 1) if step.voice else voice
    level_db = scenario.user.level_db if step.level_db is None else step.level_db
    seed = int(chance.integers(2**31))
    words = _words(step, chance)
    name = step.name or words or step.sound or ""
    if step.sound is not None:
        sound = _sound(step.sound, own)
        wanted = sound_wanted(sound, seed)
    else:
        wanted, sound = Wanted(_parts(step, words), own), ""
    when = step.when or (TURN if step.means == "turn" else INTERRUPTION)
    gain = float(10 ** ((level_db - CORPUS_DB) / 20))
    return PlannedStep(step, _shortened(f"{number + 1} {name}"), _moment(when, chance), wanted, sound, seed, gain)


def _shortened(name: str) -> str:
    return name if len(name) <= NAME_CHARACTERS else f"{name[: NAME_CHARACTERS - 1].rstrip()}…"


def _moment(when: When, chance: np.random.Generator) -> TriggerMoment:
    drawn = [
        None if between is None else float(chance.uniform(*between))
        for between in (when.agent_audible_s, when.agent_silent_s)
    ]
    return TriggerMoment(when, *drawn)


def _words(step: ScenarioStep, chance: np.random.Generator) -> str:
    if step.any_of is not None:
        return step.any_of[int(chance.integers(len(step.any_of)))]
    if isinstance(step.say, list):
        return " ".join(part for part in step.say if isinstance(part, str))
    return step.say or ""


def _parts(step: ScenarioStep, words: str) -> tuple[str | float, ...]:
    return tuple(step.say) if isinstance(step.say, list) else (words,)


def _sound(name: str, voice: str) -> str:
    """Return a sound's name with the person's voice, where it is spoken and names no voice."""
    return f"{name}:{voice}" if name in SPOKEN else name


def clips(planned: Sequence[PlannedStep], corpus: Corpus) -> list[Clip]:
    """Return the sound of each step, at its loudness."""
    return [_scaled(_clip(step, corpus), step.gain) for step in planned]


def _clip(step: PlannedStep, corpus: Corpus) -> Clip:
    if step.sound:
        return corpus.sound(step.sound, step.seed)
    assert step.wanted is not None
    return corpus.speech(step.wanted)


def _scaled(clip: Clip, gain: float) -> Clip:
    if gain == 1.0:
        return clip
    pcm = np.clip(np.rint(clip.pcm * gain), -32768, 32767).astype(np.int16)
    return Clip(clip.name, pcm, clip.voiced, clip.words)


def digest(sounds: Sequence[Clip]) -> str:
    """Return the hash of all that the person says."""
    found = hashlib.sha256()
    for clip in sounds:
        found.update(clip.pcm.astype("<i2").tobytes())
    return found.hexdigest()
