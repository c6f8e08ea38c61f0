"""Grow the corpora of the parsers until nothing new is reached for --quiet runs: `python tests/fuzz/grow.py --help`.

It is no test. It prints, for each parser, how many runs there were, how many of them after the last discovery, how many
inputs the smallest corpus has, and what share of the parser's statements it reaches.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).parents[1] / "support/fuzz"))

from examples import seed_of_today
from fuzz_parsers import TARGETS
from fuzzing import Report, fuzz, minimal, read_corpus, share_reached, write_corpus, write_shares


def main() -> None:
    """Grow one corpus or all of them, and save them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="PARSER", help=f"of {', '.join(TARGETS)}; all of them")
    parser.add_argument("--quiet", type=int, default=100_000, help="runs without a discovery that end it (%(default)d)")
    parser.add_argument("--seed", type=int, default=seed_of_today(), help="today's date (%(default)d)")
    options = parser.parse_args()
    for name in options.names or TARGETS:
        target = TARGETS[name]
        before = [*read_corpus(name), *target.seeds]

        def goes_on(report: Report) -> bool:
            return report.quiet_runs < options.quiet

        report = fuzz(target, before, options.seed, goes_on)
        corpus = minimal(target, [*before, *report.kept])
        write_corpus(name, corpus)
        share = share_reached(target, corpus)
        write_shares({name: share})
        print(f"{name}: {report.runs} runs, {report.quiet_runs} since the last discovery, "
              f"{len(corpus)} inputs, {share} % of the statements", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
