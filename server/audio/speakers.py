"""The models of an engine that speak, and what a text may ask of each. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from voxlane.engine.api import Ready
from voxlane.server.audio.voices import served_name


@dataclass(frozen=True, slots=True)
class Speaker:
    """One model that speaks."""

    name: str  # for clients; "": there is none
    voices: tuple[str, ...] = ()  # the default one first
    languages: tuple[str, ...] = ()  # that can be asked for
    instructed: bool = False  # it follows instructions
    one_pace: bool = False  # it has one speed
    respells_only: bool = False  # it takes no phonemes
    answers_speech: bool = False  # it is the speech-to-speech model


def speakers_of(ready: Ready) -> tuple[Speaker, ...]:
    """Return the models that speak, the default one first."""
    found = []
    if ready.tts_model:
        facts = (ready.voices, ready.speak_languages, ready.instructed, ready.one_pace, ready.respells_only)
        found.append(Speaker(served_name(ready.tts_model), *facts))
    if ready.speech.name:
        name = served_name(ready.speech.name)
        found.append(Speaker(name, instructed=True, one_pace=True, respells_only=True, answers_speech=True))
    return tuple(found)


def speaker_named(asked: object, speakers: tuple[Speaker, ...]) -> Speaker:
    """Return the model that has a name, else the default one."""
    named = (speaker for speaker in speakers if speaker.name == asked)
    return next(named, speakers[0] if speakers else Speaker(""))
