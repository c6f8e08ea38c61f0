"""Mutate inputs of a parser, keep those that reach code no input reached before, and stop at an undocumented exception.

The tracer is that of the `coverage` package, in C. Coverage is looked at after a batch; only a batch that reached
something new is run again, in halves. atheris has no wheel for this architecture and needs a Clang of its own.
"""

from __future__ import annotations

import base64
import json
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import coverage
from fuzz_parsers import Target

CORPUS = Path(__file__).parents[2] / "fuzz" / "corpus"
MOST_BYTES = 4096
BATCH = 2048
EDGES = (0, 1, 0x7F, 0x80, 0xFE, 0xFF)

Arcs = set[tuple[str, int, int]]


class Undocumented(AssertionError):
    """A parser raised what it does not document; str() holds the input in base64."""

    def __init__(self, data: bytes, seed: int, error: BaseException) -> None:
        super().__init__(f"{type(error).__name__} for {base64.b64encode(data).decode()} (seed {seed})")


def mutated(choose: random.Random, data: bytes, others: list[bytes], words: tuple[bytes, ...]) -> bytes:
    """Return an input with a few changes."""
    made = bytearray(data)
    for _ in range(choose.choice((1, 1, 2, 3, 5, 8))):
        at = choose.randrange(len(made) + 1)
        end = min(len(made), at + choose.choice((1, 1, 2, 4, 8, 32)))
        match choose.randrange(8):
            case 0 if at < len(made):
                made[at] ^= 1 << choose.randrange(8)
            case 1 if at < len(made):
                made[at] = choose.choice(EDGES)
            case 2:
                made[at:at] = choose.choice(words)
            case 3:
                del made[at:end]
            case 4:
                made[at:at] = made[at:end]
            case 5:
                other = choose.choice(others)
                start = choose.randrange(len(other) + 1)
                made[at:end] = other[start : start + choose.choice((1, 4, 16, 64))]
            case 6:
                made[at:end] = choose.choice(words)
            case _:
                made[at:end] = choose.randbytes(end - at)
    return bytes(made[:MOST_BYTES])


class Tracer:
    """The arcs of a target's files that inputs have taken."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.seen: Arcs = set()

    def run(self, inputs: Iterable[bytes], seed: int) -> Arcs:
        """Parse inputs and return the arcs that are new."""
        tracer = coverage.Coverage(data_file=None, branch=True, include=list(self._target.files), config_file=False)
        tracer.start()
        try:
            for data in inputs:
                try:
                    self._target.try_one(data)
                except Exception as error:
                    raise Undocumented(data, seed, error) from error
        finally:
            tracer.stop()
        found = tracer.get_data()
        arcs = {(file, *arc) for file in found.measured_files() for arc in found.arcs(file) or ()}
        found.close(force=True)
        new = arcs - self.seen
        self.seen |= arcs
        return new

    def reach(self, inputs: list[bytes], seed: int) -> list[bytes]:
        """Parse inputs and return those that reach something new: halves of a batch, then halves of these."""
        before = set(self.seen)
        if not self.run(inputs, seed):
            return []
        if len(inputs) == 1:
            return inputs
        self.seen = before
        middle = len(inputs) // 2
        return self.reach(inputs[:middle], seed) + self.reach(inputs[middle:], seed)


@dataclass(slots=True)
class Report:
    """What a run of the fuzzer did."""

    runs: int = 0
    kept: list[bytes] = field(default_factory=list)  # inputs that reached something new
    quiet_runs: int = 0  # runs since the last of them
    arcs: int = 0


def fuzz(target: Target, corpus: list[bytes], seed: int, goes_on: Callable[[Report], bool]) -> Report:
    """Mutate a corpus while `goes_on`; raise Undocumented for a failure."""
    choose, report = random.Random(seed), Report()
    tracer = Tracer(target)
    tracer.run(corpus, seed)
    pool = list(corpus)
    while goes_on(report):
        batch = [mutated(choose, choose.choice(pool), pool, target.words) for _ in range(BATCH)]
        report.runs += BATCH
        report.quiet_runs += BATCH
        if new := tracer.reach(batch, seed):
            pool += new
            report.kept += new
            report.quiet_runs = 0
    report.arcs = len(tracer.seen)
    return report


def for_seconds(seconds: float) -> Callable[[Report], bool]:
    """Return a condition that holds for a time."""
    due = time.monotonic() + seconds
    return lambda _: time.monotonic() < due


def minimal(target: Target, inputs: Iterable[bytes]) -> list[bytes]:
    """Return few short inputs that together reach all that the inputs reach."""
    return Tracer(target).reach(sorted(set(inputs), key=lambda one: (len(one), one)), 0)


def share_reached(target: Target, inputs: Iterable[bytes]) -> int:
    """Return the percentage of the statements of a target's files that inputs reach, once the files are imported."""
    tracer = coverage.Coverage(data_file=None, include=list(target.files), config_file=False)
    with tracer.collect():
        for data in inputs:
            target.try_one(data)
    counts = [tracer.analysis2(file) for file in target.files]
    statements = sum(len(found[1]) for found in counts)
    return 100 * (statements - sum(len(found[3]) for found in counts)) // statements


def read_corpus(name: str) -> list[bytes]:
    """Return the saved inputs of a target."""
    path = CORPUS / f"{name}.txt"
    return [base64.b64decode(line) for line in path.read_text("ascii").splitlines()] if path.exists() else []


def write_corpus(name: str, inputs: Iterable[bytes]) -> None:
    """Save the inputs of a target, a line in base64 for each."""
    CORPUS.mkdir(exist_ok=True)
    (CORPUS / f"{name}.txt").write_text("".join(f"{base64.b64encode(data).decode()}\n" for data in inputs), "ascii")


def read_shares() -> dict[str, int]:
    """Return the percentage that each saved corpus reached when it was saved."""
    path = CORPUS / "shares.json"
    return dict(json.loads(path.read_text("ascii"))) if path.exists() else {}


def write_shares(new: dict[str, int]) -> None:
    """Save the percentages of some corpora."""
    shares = dict(sorted({**read_shares(), **new}.items()))
    (CORPUS / "shares.json").write_text(json.dumps(shares, indent=2) + "\n", "ascii")
