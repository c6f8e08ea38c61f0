"""What the first and the second signal to stop do, in a server process and in a supervisor."""

from __future__ import annotations

import asyncio
import signal

import pytest

from voxlane.server.commands.stopping import STOP_SIGNALS, stop_signals


@pytest.mark.parametrize("number", STOP_SIGNALS)
async def test_the_first_signal_asks_and_the_next_ones_end(number: signal.Signals) -> None:
    asked, ended, again = [], [], asyncio.Event()

    def end_at_once() -> dict[str, object]:
        ended.append(True)
        again.set()
        return {"ended": 1}

    before = signal.getsignal(number)
    with stop_signals(end_at_once, lambda: asked.append(True)) as stop:
        assert not stop.is_set()
        signal.raise_signal(number)
        await stop.wait()
        assert (len(asked), len(ended)) == (1, 0)
        for count in (1, 2):
            again.clear()
            signal.raise_signal(number)
            await again.wait()
            assert (len(asked), len(ended)) == (1, count)
    assert signal.getsignal(number) in (before, signal.SIG_DFL, signal.default_int_handler)
