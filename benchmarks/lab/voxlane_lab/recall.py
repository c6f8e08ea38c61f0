"""The counting canary: numbers in a text, and whether the agent remembers what was heard of it. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from voxlane_lab.definitions import Value
from voxlane_lab.values import Recording

COUNTING = 3  # a text with so many numbers, each the one before and one more, is a counting text


@dataclass(frozen=True, slots=True)
class RecallHeard:
    """What a recogniser heard of a step that asks for the last number. None: it could not be understood."""

    counted: int | None  # the last number in the played part of the old response
    answered: int | None  # the number in the answer


def memory(recording: Recording, old: str | None, heard: RecallHeard) -> dict[str, Value]:
    """Return the figures of a step that recalls; `old` is the response that counted."""
    found: dict[str, Value] = {}
    if heard.counted is not None and heard.answered is not None:
        found["memory_wrong"] = abs(heard.counted - heard.answered) > 1
    kept = _kept_number(recording, old)
    if heard.counted is not None and kept is not None:
        found["history_extra_words"] = float(max(0, kept - heard.counted))
        found["history_missing_words"] = float(max(0, heard.counted - kept))
    return found


def _kept_number(recording: Recording, old: str | None) -> int | None:
    """Return the last number of the counting response that the server's history keeps; 0: it keeps none."""
    text = recording.texts.get(old or "", "")
    counting = spoken_numbers(text)
    if not recording.history or not _counts(counting):
        return None
    for role, kept in reversed(recording.history):
        numbers = spoken_numbers(kept)
        if role == "assistant" and numbers and numbers == counting[: len(numbers)]:
            return numbers[-1]
    return counting[0] - 1


def _counts(numbers: Sequence[int]) -> bool:
    steps = [other - one for one, other in pairwise(numbers)]
    return len(numbers) >= COUNTING and all(step == 1 for step in steps)


_UNITS = "zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen"
_UNITS += "|seventeen|eighteen|nineteen"
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_NUMBERS = {word: number for number, word in enumerate(_UNITS.split("|"))} | {
    word: 20 + 10 * number for number, word in enumerate(_TENS)
}
_WORD = re.compile(r"[0-9]{1,6}|[a-z]+|[^a-z0-9\s]")


def spoken_numbers(text: str) -> list[int]:
    """Return the numbers of a text, written as words up to 199 or as digits: "one, 2, twenty-one" is 1, 2, 21."""
    found: list[int] = []
    tens = hundred = False  # whether the last word may be followed by units, or by tens and units
    for word in _WORD.findall(text.lower()):
        value = int(word) if word.isdigit() else _NUMBERS.get(word)
        if value is None:
            if word == "hundred" and found and found[-1] == 1:
                found[-1], tens, hundred = 100, False, True
            elif word not in ("-", "and"):
                tens = hundred = False
        elif (tens and 0 < value < 10 and not word.isdigit()) or (hundred and 0 < value < 100 and not word.isdigit()):
            found[-1] += value
            tens, hundred = hundred and word in _TENS, False
        else:
            found.append(value)
            tens, hundred = word in _TENS, False
    return found
