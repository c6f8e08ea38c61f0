"""What SIGTERM and SIGINT do to a process that serves: the first one asks it to drain, the next one to end at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Iterator, Mapping

from voxlane.server.log import line

logger = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def stop_signals(
    end_at_once: Callable[[], Mapping[str, object]], asked: Callable[[], None] = lambda: None
) -> Iterator[asyncio.Event]:
    """Give an event that the first signal sets, after `asked`.

    Every further signal calls `end_at_once`, which returns what the log should tell of it.
    """
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def on_signal(number: signal.Signals) -> None:
        if stop.is_set():
            logger.info(line("stopping at once", signal=number.name, **end_at_once()))
        else:
            logger.info(line("stopping", signal=number.name))
            asked()
            stop.set()

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield stop
    finally:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)
