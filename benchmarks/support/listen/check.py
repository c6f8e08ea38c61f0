"""Compare what a GPU hears with what a CPU hears, with small random models of both kinds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from support.listen.parts import Bench, Model, make_bench, make_model, noise

from voxlane.engine.runners.recogniser import TranscriptionOutcome
from voxlane.engine.schedule.plan import ModelBatch
from voxlane.engine.schedule.request import Request


@dataclass(slots=True)
class Heard:
    """The result of one transcription."""

    request: Request
    logprobs: list[float] = field(default_factory=list)
    done: bool = False

    @property
    def tokens(self) -> list[int]:
        """The tokens after the prompt."""
        return self.request.tokens[self.request.prompt_tokens :]


def hear(bench: Bench, clips: list[NDArray[np.float32]]) -> list[Heard]:
    """Decode clips together to their ends."""
    looks = [Heard(bench.request(str(number), clip)) for number, clip in enumerate(clips)]
    while live := [look for look in looks if not look.done]:
        rows = [bench.row(look.request) for look in live]
        for look, outcome in zip(live, bench.runner.run(ModelBatch(rows=rows)), strict=True):
            assert isinstance(outcome, TranscriptionOutcome)
            assert not outcome.failed
            _advance(bench.model, look, [choice.token for choice in outcome.choices])
            look.logprobs += [choice.logprob or 0.0 for choice in outcome.choices]
    for look in looks:
        look.request.free()
    return looks


def _advance(model: Model, look: Heard, tokens: list[int]) -> None:
    request = look.request
    for token in tokens:
        if token in model.eos_ids:
            look.done = True
            break
        request.tokens.append(token)
    look.done |= len(request.tokens) >= request.limit
    request.table.rewind(min(request.table.length, len(request.tokens) - 1))


def small(device: torch.device) -> Iterator[str]:
    """Compare the output of small random models of both kinds on the CPU and a device, in float32."""
    # Under an interpreter a second of sound takes a minute, and Whisper always takes thirty seconds.
    dry = device.type == "cpu"
    clips = [noise(seconds, seed) for seed, seconds in enumerate((0.1,) if dry else (3.0, 0.3, 10.0, 1.0))]
    for shape in ("moonshine-speck",) if dry else ("whisper-speck", "moonshine-speck"):
        heard = []
        for plain, where in ((True, torch.device("cpu")), (False, device)):
            model = make_model(shape, "float32", where, drawn_on="cpu", context_tokens=4 if dry else 40)
            heard.append(hear(make_bench(model, where, streams=len(clips), plain=plain), clips))
        yield f"small {shape}: {_alike(*heard)}"


def _alike(one: list[Heard], other: list[Heard]) -> str:
    same = [(a, b) for a, b in zip(one, other, strict=True) if a.tokens == b.tokens]
    off = [abs(mine - theirs) for a, b in same for mine, theirs in zip(a.logprobs, b.logprobs, strict=True)]
    return f"{len(same)} of {len(one)} as on the CPU in float32, log-probabilities within {max(off, default=0.0):.1e}"
