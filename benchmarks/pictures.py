"""Draw the pictures of the documentation that come from a trace or from figures of another benchmark.

    python benchmarks/pictures.py lane [TRACE]                 # docs/img/interrupt-lane.svg
    python benchmarks/pictures.py goodput gpu_sessions.json    # docs/img/goodput.svg

`lane` draws which requests were in which step while a critical request came into a full engine. TRACE is a file that
`[engine] trace` wrote; without one the load of interrupt_lane.py runs first, under `deadline`. `goodput` draws the
sessions within their targets over the sessions offered, from the file that gpu_sessions.py --json wrote. barge_in.py
draws docs/img/barge-in.svg itself, from its own run.

Time: a moment; half a minute on two cores for `lane` without a TRACE.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from interrupt_lane import CRITICAL_PROMPT, LIMITS, LOAD, LOAD_TOKENS, prompts
from support.command_line import REPOSITORY, command_line
from support.common import engine, machine, request
from support.pictures import goodput, lane

from voxlane.engine.api import Priority, Text

FOLDER = REPOSITORY / "docs" / "img"
GOODPUT_WHERE = "one H200, chat Qwen3-0.6B, Moonshine tiny, hibari"


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


def draw_goodput(figures: Path, where: str) -> str:
    """Return the picture of a file of gpu_sessions.py."""
    return goodput.draw(json.loads(figures.read_text(encoding="utf-8"))["levels"], where)


def main() -> None:
    """Draw one picture and print its path."""
    parser = command_line(__doc__)
    pictures = parser.add_subparsers(dest="picture", required=True)
    of_lane = pictures.add_parser("lane", help="requests and steps around a critical request")
    of_lane.add_argument("trace", type=Path, nargs="?", metavar="TRACE")
    of_goodput = pictures.add_parser("goodput", help="sessions within their targets")
    of_goodput.add_argument("file", type=Path, metavar="FILE")
    of_goodput.add_argument("--where", default=GOODPUT_WHERE, help="for the subtitle (%(default)s)")
    chosen = parser.parse_args()
    if chosen.picture == "lane":
        target, picture = FOLDER / "interrupt-lane.svg", draw_lane(chosen.trace)
    else:
        target, picture = FOLDER / "goodput.svg", draw_goodput(chosen.file, chosen.where)
    target.write_text(picture, encoding="utf-8")
    print(target)


if __name__ == "__main__":
    main()
