"""The engine's process with a policy that can be changed while it is idle: a new start would take as long as measuring.

    python -m support.engines.switched FD      # FD: the engine's socket, as for voxlane.engine.process

SIGNALS maps each policy to a signal. The signal also empties the prefix cache, because the next measurement asks for
the same prompts. The step costs that the engine has learnt stay.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from types import FrameType

from support.command_line import command_line

from voxlane.engine import process
from voxlane.engine.api import EngineConfig, Policy
from voxlane.engine.build import assemble
from voxlane.engine.build.model_part import Progress
from voxlane.engine.schedule.scheduler import Scheduler

SIGNALS: dict[Policy, signal.Signals] = {
    "deadline": signal.SIGUSR1,
    "priority": signal.SIGUSR2,
    "fcfs": signal.SIGHUP,
}


def listen() -> None:
    """Make the next assembled engine follow the signals."""
    made = assemble.assemble

    def assembled(config: EngineConfig, progress: Progress = lambda what, done: None) -> assemble.Assembly:
        found = made(config, progress)
        for policy, number in SIGNALS.items():
            signal.signal(number, _switch(found.core.scheduler, policy))
        return found

    assemble.assemble = assembled


def _switch(scheduler: Scheduler, policy: Policy) -> Callable[[int, FrameType | None], None]:
    def switch(number: int, frame: FrameType | None) -> None:
        assert not scheduler.requests, "only an idle engine can change its policy"
        scheduler.limits = replace(scheduler.limits, policy=policy)
        for resources in scheduler.resources.values():
            for block in resources.pool.take(resources.pool.available):
                resources.pool.release(block)
        print(f"policy: {policy}", flush=True)

    return switch


def main() -> int:
    """Run the engine."""
    parser = command_line(__doc__)
    parser.add_argument("fd", type=int, metavar="FD")
    parser.parse_args()
    listen()
    return process.main()


if __name__ == "__main__":
    sys.exit(main())
