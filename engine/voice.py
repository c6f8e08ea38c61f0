"""Speech synthesis's part of a plan: clauses in, samples out, one clause after the other.

It knows a clause and how it is to be said. The order of clauses, their offsets and their text are the job's business.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from voxlane.engine.models.synthesis import Prepared, Synthesiser
from voxlane.engine.plan import Load
from voxlane.engine.runner import Outcome


@dataclass(frozen=True, slots=True)
class Clause:
    """A unit of synthesis."""

    prepared: Prepared
    voice: str
    speed: float
    seed: int


class Voice:
    """Runs a synthesiser; it has no cache, so there is nothing to move and nothing to lose."""

    def __init__(self, model: Synthesiser) -> None:
        self.model = model
        self.phases: dict[str, tuple[float, float]] = {}

    def run(self, load: Load) -> list[Outcome]:
        """Say the clauses of a plan; outcomes are in the order of its rows."""
        begin = time.monotonic()
        clauses: list[Clause] = [row.request.material for row in load.rows]
        outcomes = [
            Outcome(
                speech=self.model.synthesise(clause.prepared, voice=clause.voice, speed=clause.speed, seed=clause.seed)
            )
            for clause in clauses
        ]
        self.phases = {"forward": (begin, time.monotonic())}
        return outcomes
