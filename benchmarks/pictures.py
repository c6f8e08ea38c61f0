"""Draw docs/img/interrupt-lane.svg: the requests in each step while a critical request came into a full engine.

    python benchmarks/pictures.py [TRACE]

TRACE is a file that `[engine] trace` wrote; without one the load of interrupt_lane.py runs first, under `deadline`.
barge_in.py draws docs/img/barge-in.svg itself, from its own run.

Time: a moment with a TRACE; half a minute on two cores without one.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from interrupt_lane import CRITICAL_PROMPT, LIMITS, LOAD, LOAD_TOKENS, prompts
from support.command_line import REPOSITORY, command_line
from support.common import engine, machine, request
from support.pictures import lane

from voxlane.engine.api import Priority, Text

TARGET = REPOSITORY / "docs" / "img" / "interrupt-lane.svg"


def record(path: Path) -> None:
    """Write a trace of the load; the critical request comes when three quarters of the requests have a token."""
    assembly = engine(policy="deadline", prefix_cache=False, trace=str(path), **LIMITS)
    core, answering = assembly.core, set[str]()
    core.handle([request(f"load{index}", words, LOAD_TOKENS) for index, words in enumerate(prompts())])
    waiting = [request("critical", CRITICAL_PROMPT, 16, priority=Priority.CRITICAL)]
    while core.busy:
        answering |= {message.request_id for message in core.step() if isinstance(message, Text)}
        if waiting and len(answering) >= LOAD * 3 // 4:
            core.handle([waiting.pop()])
    assert assembly.trace is not None
    assembly.trace.close()


def draw_lane(trace: Path | None) -> str:
    """Return the picture of a trace, or of a new run of the load."""
    with tempfile.TemporaryDirectory() as folder:
        path = trace or Path(folder) / "trace.json"
        if trace is None:
            record(path)
        return lane.draw(lane.read(path), f"{LIMITS['max_batch']} rows in a step, policy deadline, {machine()}")


def main() -> None:
    """Draw the picture and print its path."""
    parser = command_line(__doc__)
    parser.add_argument("trace", type=Path, nargs="?", metavar="TRACE")
    TARGET.write_text(draw_lane(parser.parse_args().trace), encoding="utf-8")
    print(TARGET)


if __name__ == "__main__":
    main()
