"""Runs speech synthesis's part of a plan: one clause after the other becomes samples.

The job keeps the order of clauses, their offsets and their text.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from voxlane.engine import progress
from voxlane.engine.errors import REQUEST_FAULTS, describe_fault
from voxlane.engine.models.synthesis import RUN_ERRORS, Prepared, SynthesisedClause, Synthesiser
from voxlane.engine.runners.decoder import Immediate, Outcome
from voxlane.engine.schedule.plan import ModelBatch, Row
from voxlane.engine.schedule.request import Payload

log = logging.getLogger(__name__)

CLAUSE_FAULTS = (*REQUEST_FAULTS, *RUN_ERRORS)
"""What may go wrong with one clause."""


@dataclass(frozen=True, slots=True)
class ClausePayload(Payload):
    """What the synthesiser needs of a request: a clause and how to say it."""

    prepared: Prepared
    voice: str
    speed: float
    seed: int


@dataclass(slots=True)
class ClauseOutcome(Outcome):
    """What a clause sounds like."""

    speech: SynthesisedClause


class ClauseTTS(Immediate):
    """Runs a synthesiser, which has no KV cache."""

    def __init__(self, model: Synthesiser) -> None:
        self.model = model
        self.phases: dict[str, tuple[float, float]] = {}

    def launch(self, load: ModelBatch) -> list[Outcome]:
        """Synthesise the clauses of a plan; return outcomes in the order of its rows."""
        begin = time.monotonic()
        outcomes = [self._say(clause_of(row)) for row in load.rows]
        self.phases = {"forward": (begin, time.monotonic())}
        return outcomes

    def _say(self, clause: ClausePayload) -> Outcome:
        """Synthesise one clause; a fault fails this clause alone."""
        try:
            with progress.allow(progress.CLAUSE_S):
                speech = self.model.synthesise(
                    clause.prepared, voice=clause.voice, speed=clause.speed, seed=clause.seed
                )
        except CLAUSE_FAULTS as fault:
            log.error("clause failed phonemes=%d %s", clause.prepared.phonemes, describe_fault(fault))
            return Outcome(failed=True)
        return ClauseOutcome(speech)


class ConcurrentClauseTTS(ClauseTTS):
    """A synthesiser on the CPU beside models on a device: jobs run it in `thread`, not in steps.

    ONNX Runtime releases Python's lock while it works. Steps with clauses still work: the rehearsal uses them.
    """

    overlaps = True  # no step waits for it

    def __init__(self, model: Synthesiser) -> None:
        super().__init__(model)
        self.thread = ThreadPoolExecutor(1, "voice")

    def close(self) -> None:
        """End the thread after its present clause."""
        self.thread.shutdown(cancel_futures=True)


def clause_of(row: Row) -> ClausePayload:
    """Return the clause that a row says."""
    assert isinstance(row.request.payload, ClausePayload)
    return row.request.payload
