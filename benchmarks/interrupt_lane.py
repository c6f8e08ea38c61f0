"""A critical request in a busy engine: its time to first token under `deadline` against `fcfs`, in one run.

Sixteen requests with different prompts and lengths keep the engine full; after some steps a critical request arrives.
The outputs of the load must be the same under both policies, and every request must finish. SmolLM2-135M, three runs of
each policy in turn. The time that a request waits at the socket for the running step is not included.

Time: about a minute on two cores.
"""

from __future__ import annotations

import statistics

from support.command_line import command_line
from support.common import engine, machine, request, spread, table

from voxlane.engine.api import Finished, Priority, Text
from voxlane.engine.build.assemble import Assembly

LOAD = 16
LOAD_TOKENS = 64
ARRIVES_AT_STEP = 6
CRITICAL_PROMPT = "The person said: please stop, I want to ask something else. The assistant answered:"
REPEATS = 3
BAR = 5.0
LIMITS = {"max_batch": 8}  # half of the load waits, as on any full machine


def prompts() -> list[str]:
    """Return sixteen prompts from about 60 to about 360 tokens."""
    topics = ["rivers", "engines", "music", "bread", "maps", "winter", "glass", "bridges"]
    return [
        " ".join(f"Paragraph {n} of an essay on {topics[(index + n) % 8]}." for n in range(6 + 2 * index))
        for index in range(LOAD)
    ]


def run(assembly: Assembly) -> tuple[float, dict[str, str], float]:
    """Return the critical request's time to first token, all texts, and how long the whole load took."""
    core = assembly.core
    messages = core.handle([request(f"load{index}", text, LOAD_TOKENS) for index, text in enumerate(prompts())])
    steps = 0
    while core.busy:
        if steps == ARRIVES_AT_STEP:
            messages += core.handle([request("critical", CRITICAL_PROMPT, 16, priority=Priority.CRITICAL)])
        messages += core.step()
        steps += 1
    texts: dict[str, str] = {}
    ends = {message.request_id: message for message in messages if isinstance(message, Finished)}
    for message in messages:
        if isinstance(message, Text):
            texts[message.request_id] = texts.get(message.request_id, "") + message.text
    if len(ends) != LOAD + 1 or any(end.reason != "length" for end in ends.values()):
        raise RuntimeError("a request did not finish")
    return ends["critical"].stats.first_token_s, texts, max(end.stats.total_s for end in ends.values())


def main() -> None:
    """Measure and print the table."""
    command_line(__doc__).parse_args()
    waits: dict[str, list[float]] = {"fcfs": [], "deadline": []}
    totals: dict[str, list[float]] = {"fcfs": [], "deadline": []}
    texts: list[dict[str, str]] = []
    engines = {policy: engine(policy=policy, prefix_cache=False, **LIMITS) for policy in waits}
    for _ in range(REPEATS):
        for policy, assembly in engines.items():
            wait, text, total = run(assembly)
            waits[policy].append(wait * 1e3)
            totals[policy].append(total)
            texts.append(text)
    same = all(text == texts[0] for text in texts)
    ratio = statistics.median(waits["fcfs"]) / statistics.median(waits["deadline"])
    rows = [[policy, spread(waits[policy]), spread(totals[policy], 1)] for policy in waits]
    title = f"Critical request into a load of {LOAD}, median of {REPEATS} (range), {machine()}"
    table(title, ["policy", "first token, ms", "whole load, s"], rows)
    print(f"  ratio {ratio:.1f} (bar ≥ {BAR:g}); outputs of all {LOAD + 1} requests identical: {same}")
    if not same:
        raise SystemExit("outputs differ between runs")


if __name__ == "__main__":
    main()
