"""What the default voice says on a device, beside the CPU, and a clause alone beside the same clause in a batch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from voxlane.engine.memory.blocks import BlockPool, BlockTable
from voxlane.engine.models.hibari.model import Hibari
from voxlane.engine.models.synthesis import SynthesisedClause
from voxlane.engine.runners.clause_tts import ClausePayload
from voxlane.engine.runners.cuda.clause_tts import CudaClauseTTS
from voxlane.engine.schedule.plan import ModelBatch, Row
from voxlane.engine.schedule.request import Request

CLAUSES = (
    "Sure, I can help with that.",
    "The library opens at nine in the morning and closes at six in the evening, except on Sundays, when it stays "
    "closed, and nobody answers the telephone.",
    "Yes.",
    "Turn left after the second bridge,",
    "and it costs $12.50 if you come before 10:30.",
)


def say(voice: CudaClauseTTS, clauses: Sequence[ClausePayload]) -> list[SynthesisedClause]:
    """Return what one step says."""
    table = BlockTable(BlockPool(0, 1, prefix_cache=False))
    rows = [
        Row(Request(id=str(n), task="tts", tokens=[], prompt_tokens=0, table=table, model="tts", payload=one), 0, 1)
        for n, one in enumerate(clauses)
    ]
    return [outcome.speech for outcome in voice.collect(voice.launch(ModelBatch(rows)))]


def difference(one: SynthesisedClause, other: SynthesisedClause) -> str:
    """Return the difference of two recordings of a clause as text."""
    if one.words != other.words or len(one.samples) != len(other.samples):
        return "OTHER WORDS' TIMES"
    error = np.abs(one.samples - other.samples)
    share = np.linalg.norm(one.samples - other.samples) / np.linalg.norm(other.samples)
    return f"most {error.max():.1e} of full scale, {share:.1e} of the sound"


def compare(device: torch.device) -> Iterator[str]:
    """Compare a device with the CPU, and a clause alone with one in a batch."""
    model = Hibari(threads=1)
    model.warm_up_reading()
    voice, cpu = CudaClauseTTS(model, device), CudaClauseTTS(model, torch.device("cpu"))
    if device.type == "cuda":
        voice.capture()
    clauses = [
        ClausePayload(model.prepare(text), model.default_voice, speed, seed)
        for seed, (text, speed) in enumerate(itertools.product(CLAUSES, (1.0, 0.7)))
    ]
    for clause, together in zip(clauses, say(voice, clauses), strict=True):
        alone, here = say(voice, [clause])[0], say(cpu, [clause])[0]
        yield (
            f"{clause.prepared.phonemes:4} phonemes at {clause.speed}: CPU {difference(alone, here)}; "
            f"together {difference(together, alone)}"
        )
