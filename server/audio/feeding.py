"""Feed a request while its output already comes: one task for each, with a limit on the lead of the input."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from voxlane.engine.api import Finished
from voxlane.server.errors import InternalError, ModelFailed

Result = TypeVar("Result")


class Lead:
    """Limits how far input runs ahead of the engine's progress; both are counted in the same unit."""

    def __init__(self, most: float) -> None:
        self._most = most
        self._given = 0.0
        self._taken = 0.0
        self._moved = asyncio.Event()

    async def room_for(self, amount: float) -> None:
        """Wait until `amount` more may be given, and count it as given."""
        # If nothing is under way, no progress will ever come: then any amount may be given.
        while self._given > self._taken and self._given + amount - self._taken > self._most:
            self._moved.clear()
            await self._moved.wait()
        self._given += amount

    def reached(self, position: float) -> None:
        """Note that the engine has processed everything before `position`."""
        self._taken = max(self._taken, position)
        self._moved.set()


async def feed_beside(feed: Coroutine[Any, Any, None], take: Coroutine[Any, Any, Result]) -> Result:
    """Run both until `take` ends, and return its result; an error in either ends both and is raised."""

    async def take_and_leave() -> Result:
        result = await take
        feeder.cancel()  # a request that has ended needs no more input
        return result

    try:
        async with asyncio.TaskGroup() as group:
            feeder = group.create_task(feed, name="feed")
            taker = group.create_task(take_and_leave(), name="take")
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors.exceptions[0].__cause__
    return taker.result()


def checked(end: Finished) -> Finished:
    """Return the end of a request that succeeded; raise for one that did not."""
    if end.reason == "failed":
        raise ModelFailed
    if end.reason == "cancelled":
        raise InternalError(detail="cancelled, but not by its owner")
    if end.reason == "length":  # the output is incomplete, so it is no answer
        raise ModelFailed("The model reached its limit before the end.")
    return end
