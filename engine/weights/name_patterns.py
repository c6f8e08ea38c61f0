"""Patterns for module names: the regular expressions in PEFT's rank_pattern and alpha_pattern.

A pattern comes out of a downloaded file, and for some patterns Python's `re` takes exponential time. Here each piece of
a pattern maps a set of positions in the name to the next set, so no path through a name is tried twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

MAX_CHARACTERS = 256
"""A module's whole name has about 50."""

MAX_DEPTH = 4
"""Groups in groups: each level of repeats multiplies the time."""

_TOKEN = re.compile(
    r"(?P<run>[\w-]+(?![*+?{]))"  # characters that stand for themselves, and are not repeated
    r"|(?:(?P<open>\((?:\?:)?)"
    r"|(?P<close>\))"
    r"|(?P<bar>\|)"
    r"|(?P<anchor>[\^$])"
    r"|(?P<one>\[\^?(?:\w-\w|[\w.]|\\[.dw-])+\]|\\[.dw_-]|[\w.-]))"
    r"(?P<repeat>[*+?]\??)?"  # a lazy repeat matches the same names
)

Places = frozenset[int]
Step = Callable[[str, Places], Places]
"""A piece of a pattern: maps the positions where it may begin to those where it may end."""


class NamePattern:
    """A pattern that matches a module's whole name, or its end after a dot."""

    def __init__(self, text: str) -> None:
        """Read a pattern, or raise ValueError that says what is wrong with it."""
        if len(text) > MAX_CHARACTERS:
            raise ValueError(f"is longer than {MAX_CHARACTERS} characters")
        self._step, end = _alternatives(text, 0, 0)
        if end < len(text):
            raise ValueError("has a parenthesis too many")

    def matches(self, name: str) -> bool:
        """Return whether the pattern matches all of `name`, or all that follows one of its dots."""
        starts = frozenset({0, *(place + 1 for place, letter in enumerate(name) if letter == ".")})
        return len(name) in self._step(name, starts)


def _alternatives(text: str, at: int, depth: int) -> tuple[Step, int]:
    """Return the pieces from `at` up to a closing parenthesis or the end, and the position of that end."""
    if depth > MAX_DEPTH:
        raise ValueError(f"has groups more than {MAX_DEPTH} deep")
    branches: list[list[Step]] = [[]]
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None or (token["repeat"] and not (token["one"] or token["close"])):
            raise ValueError(f"has {text[at : at + 8]!r} in it, which is not supported")
        if token["close"]:
            break
        at = token.end()
        if token["bar"]:
            branches.append([])
            continue
        step, repeat = _piece(token), token["repeat"]
        if token["open"]:
            step, at = _alternatives(text, at, depth + 1)
            closing = _TOKEN.match(text, at)
            if closing is None:
                raise ValueError("has a parenthesis that is not closed")
            at, repeat = closing.end(), closing["repeat"]
        branches[-1].append(_repeated(step, repeat) if repeat else step)
    return partial(_any_of, [partial(_in_turn, branch) for branch in branches]), at


def _piece(token: re.Match[str]) -> Step:
    if token["run"]:
        return partial(_run, token["run"])
    if token["anchor"]:
        return _at_start if token["anchor"] == "^" else _at_end
    try:
        return partial(_one, re.compile(token["one"] or ""))
    except re.error as error:
        raise ValueError(f"has {token[0]!r} in it: {error}") from error


def _repeated(step: Step, repeat: str) -> Step:
    if repeat[0] == "?":
        return lambda name, places: places | step(name, places)
    least = 1 if repeat[0] == "+" else 0
    return partial(_many, step, least)


def _any_of(branches: list[Step], name: str, places: Places) -> Places:
    return frozenset().union(*(branch(name, places) for branch in branches))


def _in_turn(steps: list[Step], name: str, places: Places) -> Places:
    for step in steps:
        if not places:
            break
        places = step(name, places)
    return places


def _many(step: Step, least: int, name: str, places: Places) -> Places:
    new = step(name, places) if least else places
    reached = new
    while new:
        new = step(name, new) - reached
        reached |= new
    return reached


def _run(run: str, name: str, places: Places) -> Places:
    return frozenset(place + len(run) for place in places if name.startswith(run, place))


def _one(letter: re.Pattern[str], name: str, places: Places) -> Places:
    return frozenset(place + 1 for place in places if place < len(name) and letter.fullmatch(name[place]))


def _at_start(name: str, places: Places) -> Places:
    return places & {0}


def _at_end(name: str, places: Places) -> Places:
    return places & {len(name)}
