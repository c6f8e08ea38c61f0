"""Run a Qwen3-TTS model in the simplest way: a pool of blocks, a step at a time, no scheduler."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from qwen3_tts_cases import ROLE, Answers, Case
from torch import Tensor

from voxlane.engine.kernels.attention.pages import Layout
from voxlane.engine.memory.blocks import BlockPool, BlockTable
from voxlane.engine.memory.pages import KVCache
from voxlane.engine.models.qwen3_tts.choice import Choices
from voxlane.engine.models.qwen3_tts.config import SpeechSampling
from voxlane.engine.models.qwen3_tts.model import Qwen3TTS
from voxlane.engine.models.qwen3_tts.prompt import Clone, Utterance, open_utterance

GREEDY = SpeechSampling(temperature=0.0, inner_temperature=0.0)


@dataclass(slots=True, eq=False)
class Part:
    """One request."""

    utterance: Utterance
    table: BlockTable
    sampling: SpeechSampling = GREEDY
    seed: int = 0
    hidden: list[Tensor] = field(default_factory=list)  # of every computed position

    @property
    def frames(self) -> list[tuple[int, ...]]:
        return self.utterance.frames


class Stage:
    """Requests that share a model and a cache; every page starts as NaN."""

    def __init__(self, model: Qwen3TTS, dtype: torch.dtype = torch.float32, block_tokens: int = 8) -> None:
        self.model = model
        talker = model.talker
        self.pool = BlockPool(96, block_tokens)
        self.cache = KVCache(talker.spec.pages, 96, block_tokens, dtype)
        self.scratch = model.predictor.scratch(8)
        for pages in (*self.cache.pages, *self.scratch.pages):
            pages.k.fill_(torch.nan)
            pages.v.fill_(torch.nan)

    def enter(self, utterance: Utterance, sampling: SpeechSampling = GREEDY, seed: int = 0) -> Part:
        return Part(utterance, BlockTable(self.pool), sampling, seed)

    def step(self, parts: Sequence[Part], chunk: int = 1000) -> list[Part]:
        """Compute up to `chunk` positions of every part that has any left; return the parts with a frame due."""
        moving = [part for part in parts if part.utterance.available > part.table.length]
        if not moving:
            return []
        starts = [part.table.length for part in moving]
        stops = [min(part.utterance.available, part.table.length + chunk) for part in moving]
        for part, start, stop in zip(moving, starts, stops, strict=True):
            assert not part.table.append(stop - start)
        ranges = [(part.utterance, start, stop) for part, start, stop in zip(moving, starts, stops, strict=True)]
        hidden = self.model.forward(self.model.inputs(ranges), self._layout(moving, starts), self.cache.pages)
        sizes = [stop - start for start, stop in zip(starts, stops, strict=True)]
        for part, rows in zip(moving, hidden.split(sizes), strict=True):
            part.hidden += rows
        return [part for part, stop in zip(moving, stops, strict=True) if part.utterance.frame_due(stop)]

    def speak(self, parts: Sequence[Part], frames: int, chunk: int = 1000) -> list[Part]:
        """Run until every part has `frames` frames, has ended or waits for text; return those that wait."""
        going = [part for part in parts if len(part.frames) < frames]
        while going:
            due = self.step(going, chunk)
            stuck = [part for part in going if part not in due and part.utterance.available == part.table.length]
            if stuck == going:
                return stuck
            self.answer(due)
            over = [part for part in due if part.frames[-1][0] == self.model.end_code]
            going = [part for part in going if part not in over and len(part.frames) < frames]
        return []

    def answer(self, due: Sequence[Part]) -> None:
        """Make the next frame of the parts that have one due."""
        if due:
            choices = Choices.of(self.model.config, [(part.utterance, part.sampling, part.seed) for part in due])
            hidden = torch.stack([part.hidden[-1] for part in due])
            for part, frame in zip(due, self.model.frames(hidden, choices, self.scratch).tolist(), strict=True):
                part.utterance.add(frame)

    def rewind(self, part: Part, frames: int) -> None:
        """Take a part back to `frames` frames, all computed but the newest."""
        part.utterance.rewind(frames)
        part.table.rewind(part.utterance.available - 1)
        del part.hidden[part.table.length :]

    def layout_of_next(self, parts: Sequence[Part]) -> Layout:
        """Return the layout of the next step, without moving any part."""
        starts = [part.table.length for part in parts]
        for part in parts:
            assert not part.table.append(part.utterance.available - part.table.length)
        layout = self._layout(parts, starts)
        for part, start in zip(parts, starts, strict=True):
            part.table.rewind(start)
        return layout

    def _layout(self, parts: Sequence[Part], starts: Sequence[int]) -> Layout:
        spans = [range(start, part.table.length) for part, start in zip(parts, starts, strict=True)]
        width = max(len(part.table.blocks) for part in parts)
        return Layout(
            positions=_int32([position for span in spans for position in span]),
            slots=_int32(
                [
                    slot
                    for part, span in zip(parts, spans, strict=True)
                    for slot in part.table.slots(span.start, span.stop)
                ]
            ),
            query_starts=_int32([0, *itertools.accumulate(len(span) for span in spans)]),
            context_lengths=_int32([part.table.length for part in parts]),
            block_tables=_int32([part.table.blocks + [0] * (width - len(part.table.blocks)) for part in parts]),
        )


def _int32(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def open_case(model: Qwen3TTS, case: Case, answers: Answers) -> Utterance:
    """Return a case's utterance, before its text."""
    clone = None
    if case.clip:
        frames = answers.given[f"{case.name}.clip_frames"].tolist()
        embedding = model.embed_voice(answers.given[case.clip])
        clone = Clone(embedding, case.clip_text, tuple(tuple(frame) for frame in frames))
    return open_utterance(
        model.config, ROLE, language=case.language, speaker=case.speaker, clone=clone, instructions=case.instructions,
        whole_text=case.whole_text,
    )  # fmt: skip
