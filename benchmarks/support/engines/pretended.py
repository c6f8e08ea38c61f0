"""The engine's process on a device that takes an H200's time and computes nothing, to measure the host alone.

    python -m support.engines.pretended FD      # FD: the engine's socket

The chat model writes the same words over and over, the recogniser writes nonsense at a usual pace, the voice hums as
long as speech takes, and loud audio counts as speech. All else is the engine's own: queues, plans, texts, sound,
blocks. The times are those of steps with 384 conversations (gpu_sessions.py), without the host's time for launches.
Signals change the policy as in support.engines.switched.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from support.engines import switched
from support.replace import put

from voxlane.codecs.silero import HIDDEN
from voxlane.engine.build import asr_tts, assemble
from voxlane.engine.models.synthesis import SynthesisedClause, TimedWord
from voxlane.engine.runners.clause_tts import ClauseOutcome, clause_of
from voxlane.engine.runners.cuda import vad
from voxlane.engine.runners.decoder import Immediate, Outcome, TokenOutcome
from voxlane.engine.runners.recogniser import TranscriptionOutcome
from voxlane.engine.runners.sampler import SampledToken
from voxlane.engine.schedule.plan import ModelBatch, Row

PHONEME_S, RATE = 0.055, 24_000  # as hibari's
STATES_OF_A_TOKEN = 12  # three tokens a second
WORDS = [1000 + 37 * number for number in range(400)]  # tokens that every recogniser has
LOUD = 0.005


@dataclass(slots=True)
class Ticket:
    """A running step: when it began, when its clips are encoded, when it is done, and its outcome."""

    begin: float
    encoded: float
    until: float
    outcomes: list[Outcome]


class Pretended(Immediate):
    """A runner on a device, as the host sees it."""

    overlaps = True

    def __init__(self, model: Any, cache: Any = None) -> None:
        self.model = model
        self.phases: dict[str, tuple[float, float]] = {}

    def launch(self, load: ModelBatch) -> Ticket:
        """Launch a step: note when it will be done."""
        begin = time.monotonic()
        encoding_ms, rest_ms = self._ms(load)
        encoded = begin + encoding_ms / 1e3
        return Ticket(begin, encoded, encoded + rest_ms / 1e3, [self._outcome(row) for row in load.rows])

    def done(self, ticket: Ticket) -> bool:
        """Return whether the step is done."""
        return time.monotonic() >= ticket.until

    def wait(self, ticket: Ticket) -> None:
        """Wait for the step in a busy loop, as for a device."""
        while not self.done(ticket):
            pass

    def collect(self, ticket: Ticket) -> Sequence[Outcome]:
        """Return the outcomes of the step."""
        self.wait(ticket)
        self.phases = {"encode": (ticket.begin, ticket.encoded), "device": (ticket.begin, ticket.until)}
        return ticket.outcomes

    def samples_on_device(self, request: object) -> bool:
        """Return whether the next step can go on from this one."""
        return True

    def prepare(self, load: ModelBatch) -> None:
        """Do nothing: there is nothing to prepare."""

    def _ms(self, load: ModelBatch) -> tuple[float, float]:
        raise NotImplementedError

    def _outcome(self, row: Row) -> Outcome:
        raise NotImplementedError


class Chat(Pretended):
    """The chat model."""

    def _ms(self, load: ModelBatch) -> tuple[float, float]:
        work = load.work
        return 0.0, 1.0 + 0.05 * work.rows + (1.4 + 0.003 * work.prefill_tokens if work.prefill_tokens else 0.0)

    def _outcome(self, row: Row) -> Outcome:
        unread = row.count > 1 and row.start + row.count < len(row.request.tokens)
        return TokenOutcome() if unread else TokenOutcome(choices=(SampledToken(300 + row.start % 200, -1.0),))


class Listener(Pretended):
    """The recogniser."""

    def _ms(self, load: ModelBatch) -> tuple[float, float]:
        clips = load.encoding.rows
        return (0.9 + 0.2 * clips, 0.9 + 0.03 * load.work.rows) if clips else (0.0, 0.5 + 0.03 * load.work.rows)

    def _outcome(self, row: Row) -> Outcome:
        request = row.request
        known, all_of_them = len(request.tokens) - request.prompt_tokens, max(3, request.states // STATES_OF_A_TOKEN)
        found = [*WORDS[:all_of_them], next(iter(self.model.eos_ids))][known : known + 1 + len(row.drafts)]
        return TranscriptionOutcome(choices=[SampledToken(token, -0.2) for token in found])


class Voice(Pretended):
    """The voice."""

    def _ms(self, load: ModelBatch) -> tuple[float, float]:
        return 0.0, 0.7 + 0.004 * load.work.prefill_tokens

    def _outcome(self, row: Row) -> Outcome:
        prepared = clause_of(row).prepared
        each = round(PHONEME_S * RATE)
        words = [
            TimedWord(one.source_start, one.source_end, one.first * each, one.last * each) for one in prepared.words
        ]
        sound = np.where(np.arange(len(prepared.ids) * each) % 100 < 50, 0.1, -0.1).astype(np.float32)
        return ClauseOutcome(SynthesisedClause(sound, tuple(words)))


class Ears(vad.DeviceVad):
    """A voice activity detector that takes loud audio for speech."""

    def _run(self, shape: vad.Shape) -> None:
        streams, frames = shape
        loud = self._parts(shape)[0].abs().mean(2) > LOUD  # [streams, frames]
        answers = self._back.view(-1, 1 + 2 * HIDDEN)[: frames * streams, 0]
        answers.copy_((loud.T * 0.96 + 0.02).flatten())


def pretend() -> None:
    """Give the next assembled engine this device."""
    put(asr_tts, Recogniser=Listener, ClauseTTS=Voice, Voicing=Ears(torch.device("cpu")).open)
    put(assemble, Runner=Chat)


def main() -> int:
    """Run the engine."""
    pretend()
    return switched.main()


if __name__ == "__main__":
    sys.exit(main())
