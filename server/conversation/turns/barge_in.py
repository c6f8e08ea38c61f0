"""Decides whether a voice that cuts into a reply takes the floor.

A decision on words and seconds, without state. ear.py detects the voice, the engine transcribes it, and interruption.py
carries the verdict out.
"""

from __future__ import annotations

from enum import Enum

from voxlane.server.conversation.turns.phrases import leaves_floor, phrasebook, spell
from voxlane.server.conversation.turns.policies import BargePolicy


class Verdict(Enum):
    """What happens to a reply that a voice cuts into."""

    COMMIT = "commit"  # it ends: the person has the floor
    RELEASE = "release"  # it goes on where it stopped
    WAIT = "wait"  # not decided yet


def stops(text: str, policy: BargePolicy) -> bool:
    """Return whether a stop phrase is among the words."""
    book = phrasebook(policy.language)
    phrases = book.stop if policy.stop_phrases is None else policy.stop_phrases
    said = f" {' '.join(spell(text))} "
    return any(f" {' '.join(spell(phrase))} " in said for phrase in phrases if spell(phrase))


def judge(
    text: str,
    confirmed: bool,
    speech_s: float,
    silence_s: float,
    dropped: bool,
    policy: BargePolicy,
    strong_s: float | None = None,
) -> Verdict:
    """Return what happens to a reply that a voice cuts into, from all that is known of the voice.

    `text` is the voice's transcript, `confirmed` and `dropped` the ear's verdict, `speech_s` how long it has spoken,
    `silence_s` how long it has been silent since, `strong_s` how much of its speech was strong sound; None: all.

    A recogniser writes words even for a hum: for ten synthetic voices that said "mhm", "hmm" and "uh-huh", Moonshine
    wrote "Emily.", "Him.", "A house." and the like 24 times of 30. So brief speech takes the floor only with certain
    words: "no", "what", a number. Brief is measured in strong sound, which ends with the voice; the detector hears 0.1
    to 0.2 s more. Of 100 murmurs 4 had 0.5 s of it.
    """
    if stops(text, policy) or (confirmed and policy.at_once):
        return Verdict.COMMIT
    if dropped:
        return Verdict.RELEASE
    words, harmless = spell(text), leaves_floor(text, policy.language)
    brief = (speech_s if strong_s is None else strong_s) < policy.brief_s
    if confirmed and not harmless and (not brief or _claims(words, policy.language)):
        return Verdict.COMMIT
    if confirmed and not words and speech_s >= policy.lasting_s:
        return Verdict.COMMIT
    if words and harmless:
        patience = policy.backchannel_release_s
    else:
        patience = policy.wordless_release_s if confirmed and not words else policy.release_s
    return Verdict.RELEASE if silence_s >= patience else Verdict.WAIT


def _claims(words: tuple[str, ...], language: str) -> bool:
    claims = phrasebook(language).claims
    return not claims or any(word in claims or word.isdigit() for word in words)
