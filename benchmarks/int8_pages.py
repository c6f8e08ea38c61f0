"""int8 KV pages against bfloat16 and float32 pages: bytes a token, and perplexity of a fixed text (SmolLM2-135M).

Time: some 20 s on two cores.
"""

from __future__ import annotations

import math
from pathlib import Path

from support.command_line import command_line
from support.common import engine, table

from voxlane.engine.api import Finished, Submit

TEXT = Path(__file__).parent.parent / "tests" / "data" / "prose.txt"


def perplexity(pages: str) -> tuple[float, int]:
    """Return the perplexity of the text and the page bytes of a token."""
    assembly = engine(pages=pages, prefix_cache=False)
    messages = assembly.core.handle([Submit("score", "score", text=TEXT.read_text())])
    while assembly.core.busy:
        messages += assembly.core.step()
    (end,) = [message for message in messages if isinstance(message, Finished)]
    return math.exp(-end.stats.logprob_sum / end.stats.scored_tokens), assembly.ready.page_bytes_per_token


def main() -> None:
    """Measure and print the table."""
    command_line(__doc__).parse_args()
    results = {pages: perplexity(pages) for pages in ("float32", "bfloat16", "int8")}
    base, base_bytes = results["bfloat16"]
    rows = [
        [pages, f"{size}", f"{size / base_bytes:.2f}", f"{value:.4f}", f"{(value / base - 1) * 100:+.2f} %"]
        for pages, (value, size) in results.items()
    ]
    table("KV pages", ["pages", "bytes/token", "of bfloat16", "perplexity", "against bfloat16"], rows)


if __name__ == "__main__":
    main()
