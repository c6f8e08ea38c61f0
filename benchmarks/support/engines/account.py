"""An account of the step thread's processor time: what it does, and what it only asks again and again.

While a step is under way on a device, the engine's thread asks the device and the socket in turn, so that it takes a
whole core however little it does. A pass of the loop that took no command, began and ended no step and let no job work
is counted as "asking", and so is the check of all blocks by an idle engine, which ends where a command comes. The rest
is work, and grows with the number of conversations.

The engine's process writes the sums to a file that Engine (support/sessions/engine.py) reads; ACCOUNT names it. With
PARTS set, the work is counted by part, which takes a few per cent more time.
"""

from __future__ import annotations

import gc
import mmap
import os
import struct
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from support.engines.parts import DEVICE, EVENTS, PARTS, Place

from voxlane.engine import links
from voxlane.engine.loop import core

ACCOUNT, BY_PART = "VOXLANE_ACCOUNT", "VOXLANE_ACCOUNT_PARTS"
"""Variables of the environment: the file's name, and whether the work is counted by part."""

ASKING, PRETENDING, REST = "asking", "pretending", "rest"
NAMES = (*PARTS, "garbage", REST, ASKING, PRETENDING)
_LAYOUT = struct.Struct(f"<{len(NAMES)}q")


def make(path: Path) -> None:
    """Write an empty account."""
    path.write_bytes(bytes(_LAYOUT.size))


def read(path: Path) -> dict[str, float]:
    """Return the seconds so far, by part."""
    spent = _LAYOUT.unpack(path.read_bytes())
    return {name: one / 1e9 for name, one in zip(NAMES, spent, strict=True)}


def keep() -> None:
    """Keep an account in the file that the environment names, if it names one."""
    path = os.environ.get(ACCOUNT)
    if path is None:
        return
    book = _Book(path)
    for place in DEVICE:
        _replace(place, book.counted(place, PRETENDING))
    if os.environ.get(BY_PART):
        gc.callbacks.append(book.collects)
        for part, places in PARTS.items():
            for place in places:
                _replace(place, book.counted(place, part))
    for place in EVENTS:
        _replace(place, book.noted(place))
    _replace((core.Core, "idle"), book.counted((core.Core, "idle"), ASKING))
    _replace((core.Core, "step"), book.passed((core.Core, "step")))
    _replace((links.Links, "wait"), book.woken((links.Links, "wait")))


def _replace(place: Place, function: Callable[..., Any]) -> None:
    owner, name = place
    setattr(owner, name, function)


class _Book:
    """The sums of one thread, in nanoseconds."""

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:
            self._page = mmap.mmap(file.fileno(), _LAYOUT.size)
        self._spent = dict.fromkeys(NAMES, 0)
        self._now = dict.fromkeys(NAMES, 0)  # in this pass of the loop
        self._open = [REST]  # the parts that are being run, the innermost last
        self._since = time.thread_time_ns()
        self._worked = False

    def counted(self, place: Place, part: str) -> Callable[..., Any]:
        """Return a function whose own time counts for a part."""
        function = getattr(*place)

        @wraps(function)
        def counted(*given: object, **named: object) -> object:
            self._enter(part)
            try:
                return function(*given, **named)
            finally:
                self._leave()

        return counted

    def noted(self, place: Place) -> Callable[..., Any]:
        """Return a function that shows that a pass does something: where it returns anything but nothing."""
        function = getattr(*place)

        @wraps(function)
        def noted(*given: object, **named: object) -> object:
            found = function(*given, **named)
            self._worked = self._worked or found != []
            return found

        return noted

    def passed(self, place: Place) -> Callable[..., Any]:
        """Return the function that takes the engine a step further: one pass of the loop."""
        function = getattr(*place)

        @wraps(function)
        def passed(*given: object, **named: object) -> object:
            self._turn(ASKING if not self._worked else None)
            return function(*given, **named)

        return passed

    def woken(self, place: Place) -> Callable[..., Any]:
        """Return the function that waits for a command: an engine that did something until then was not asking."""
        function = getattr(*place)

        @wraps(function)
        def woken(*given: object, **named: object) -> object:
            self._turn(None)
            found = function(*given, **named)
            self._worked = True
            return found

        return woken

    def collects(self, phase: str, info: object) -> None:
        """Count the collection of garbage."""
        if phase == "start":
            self._enter("garbage")
        else:
            self._leave()

    def _enter(self, part: str) -> None:
        now = time.thread_time_ns()
        self._now[self._open[-1]] += now - self._since
        self._since = now
        self._open.append(part)

    def _leave(self) -> None:
        now = time.thread_time_ns()
        self._now[self._open.pop()] += now - self._since
        self._since = now

    def _turn(self, name: str | None) -> None:
        """End a pass: its time goes to the parts, or, except a pretended device's, all to one name."""
        now = time.thread_time_ns()
        self._now[self._open[-1]] += now - self._since
        self._since = now
        for part, spent in self._now.items():
            if spent:
                self._spent[part if name is None or part == PRETENDING else name] += spent
                self._now[part] = 0
        self._worked = False
        _LAYOUT.pack_into(self._page, 0, *self._spent.values())
