"""How the codes of a frame are chosen: the rules on the talker's logits, and the numbers a draw depends on.

All of it is tensors with one row per request, so that choosing can be part of a graph. A draw depends on the row's
logits and on (seed, frame, group), never on the batch.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from voxlane.engine.kernels.sampling.code_choice import FirstRules
from voxlane.engine.kernels.sampling.sampling import MIN_P, POSITION, SEED_HIGH, SEED_LOW, TEMPERATURE, TOP_K, TOP_P
from voxlane.engine.models.qwen3_tts.config import MIN_FRAMES, SUPPRESSED_CODES, Qwen3TTSConfig, SpeechSampling
from voxlane.engine.models.qwen3_tts.prompt import Utterance


@dataclass(frozen=True, slots=True)
class Choices:
    """How the next frame of each row is chosen."""

    seen: Tensor  # [slots, vocabulary] bool: first codes used so far; each choice is added
    penalty: Tensor  # [rows] float32: on codes in `seen`
    first: Tensor  # [rows, columns] int32, sampling's packet; the position is frame * groups
    inner: Tensor  # the same for the codes that follow
    slots: Tensor  # [rows] int64: each row's row of `seen`

    @classmethod
    def of(
        cls,
        config: Qwen3TTSConfig,
        rows: Sequence[tuple[Utterance, SpeechSampling, int]],
        device: str | torch.device = "cpu",
    ) -> Choices:
        """Return how the next frames of utterances are chosen; the third number of each is the request's seed."""
        seen = torch.zeros(len(rows), config.talker.vocab_size, dtype=torch.bool)
        first, inner = [], []
        for row, (utterance, sampling, seed) in enumerate(rows):
            seen[row, [frame[0] for frame in utterance.frames]] = True
            own = packet_rows(sampling, seed, utterance.spoken * config.groups)
            first.append(own[0])
            inner.append(own[1])
        penalty = torch.tensor([sampling.repetition_penalty for _, sampling, _ in rows])
        slots = torch.arange(len(rows), device=device)
        return cls(seen.to(device), penalty.to(device), _packet(first, device), _packet(inner, device), slots)


class FirstCode:
    """The rules for a frame's first code."""

    def __init__(self, config: Qwen3TTSConfig) -> None:
        self._sounds = config.talker.vocab_size - SUPPRESSED_CODES
        self._end = config.codec.eos
        self._earliest_end = MIN_FRAMES * config.groups

    def rules(self, choices: Choices) -> FirstRules:
        """Return the rules as the kernels take them."""
        return FirstRules(choices.seen, choices.slots, choices.penalty, self._sounds, self._end, self._earliest_end)


def packet_rows(sampling: SpeechSampling, seed: int, position: int) -> tuple[list[int], list[int]]:
    """Return the packet rows of a frame whose first code has this position: for that code, and for the others."""
    return (
        _numbers(position, seed, sampling.temperature, sampling.top_k, sampling.top_p),
        _numbers(position, seed, sampling.inner_temperature, sampling.inner_top_k, sampling.inner_top_p),
    )


def _numbers(position: int, seed: int, temperature: float, top_k: int, top_p: float) -> list[int]:
    row = [0] * (MIN_P + 1)
    row[POSITION], row[TOP_K] = position, top_k
    row[SEED_LOW], row[SEED_HIGH] = struct.unpack("<ii", struct.pack("<Q", seed & (2**64 - 1)))
    row[TEMPERATURE], row[TOP_P] = struct.unpack("<ii", struct.pack("<ff", temperature, top_p))
    return row


def _packet(rows: list[list[int]], device: str | torch.device) -> Tensor:
    return torch.tensor(rows, dtype=torch.int32).to(device)
