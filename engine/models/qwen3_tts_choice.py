"""How the codes of a frame are chosen: the rules on the talker's logits, and the numbers a draw depends on.

All of it is tensors with a row a request, so that choosing can be part of a graph. A draw depends on the row's logits
and on (seed, frame, group), never on the batch. It knows numbers; the models that make logits are others' business.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from voxlane.engine.kernels.sampling import (
    MIN_P,
    POSITION,
    SEED_HIGH,
    SEED_LOW,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    sample,
)
from voxlane.engine.models.qwen3_tts_config import SUPPRESSED_CODES, Qwen3TTSConfig, SpeechSampling
from voxlane.engine.models.qwen3_tts_prompt import Utterance

MIN_FRAMES = 2
"""Speech does not end before this many frames."""


@dataclass(frozen=True, slots=True)
class Choices:
    """How the next frame of each row is chosen."""

    seen: Tensor  # [rows, vocabulary] bool: first codes the row has spoken; what is chosen is added
    penalty: Tensor  # [rows] float32, of those
    first: Tensor  # [rows, columns] int32, sampling's packet; the position is frame * groups
    inner: Tensor  # the same for the codes that follow

    @classmethod
    def of(
        cls,
        config: Qwen3TTSConfig,
        rows: Sequence[tuple[Utterance, SpeechSampling, int]],
        device: str | torch.device = "cpu",
    ) -> Choices:
        """Return the choices that utterances stand before; a row's last number is its request's seed."""
        seen = torch.zeros(len(rows), config.talker.vocab_size, dtype=torch.bool)
        first, inner = [], []
        for row, (utterance, sampling, seed) in enumerate(rows):
            seen[row, [frame[0] for frame in utterance.frames]] = True
            position = utterance.spoken * config.groups
            first.append(_numbers(position, seed, sampling.temperature, sampling.top_k, sampling.top_p))
            inner.append(
                _numbers(position, seed, sampling.inner_temperature, sampling.inner_top_k, sampling.inner_top_p)
            )
        penalty = torch.tensor([sampling.repetition_penalty for _, sampling, _ in rows])
        return cls(seen.to(device), penalty.to(device), _packet(first, device), _packet(inner, device))


class FirstCode:
    """The rules for a frame's first code."""

    def __init__(self, config: Qwen3TTSConfig, device: torch.device) -> None:
        vocabulary, self._eos = config.talker.vocab_size, config.codec.eos
        self._earliest_end = MIN_FRAMES * config.groups
        self._forbidden = torch.zeros(vocabulary, dtype=torch.bool, device=device)
        self._forbidden[vocabulary - SUPPRESSED_CODES :] = True
        self._forbidden[self._eos] = False
        self._is_eos = torch.arange(vocabulary, device=device) == self._eos

    def restrict(self, logits: Tensor, choices: Choices) -> Tensor:
        """Return `logits` [rows, vocabulary] with what was spoken made less likely and what is no sound impossible."""
        penalty = choices.penalty[:, None]
        spoken = torch.where(logits < 0, logits * penalty, logits / penalty)
        early = (choices.first[:, POSITION] < self._earliest_end)[:, None]
        impossible = self._forbidden | (early & self._is_eos)
        return torch.where(choices.seen, spoken, logits).masked_fill(impossible, -torch.inf)

    def choose(self, logits: Tensor, choices: Choices) -> Tensor:
        """Return each row's first code [rows] int64, and note it as spoken; -1 where the logits are not finite."""
        codes = draw(self.restrict(logits, choices), choices.first)
        choices.seen.scatter_(1, codes.clamp(min=0)[:, None], True)
        return codes


def draw(logits: Tensor, packet: Tensor) -> Tensor:
    """Return a code [rows] int64 for each row of `logits`, as its row of the packet says; -1: they are not finite."""
    tokens = torch.empty(len(logits), dtype=torch.int32, device=logits.device)
    sample(logits, packet, tokens, torch.empty(len(logits), device=logits.device))
    return tokens.long()


def _numbers(position: int, seed: int, temperature: float, top_k: int, top_p: float) -> list[int]:
    row = [0] * (MIN_P + 1)
    row[POSITION], row[TOP_K] = position, top_k
    row[SEED_LOW], row[SEED_HIGH] = struct.unpack("<ii", struct.pack("<Q", seed & (2**64 - 1)))
    row[TEMPERATURE], row[TOP_P] = struct.unpack("<ii", struct.pack("<ff", temperature, top_p))
    return row


def _packet(rows: list[list[int]], device: str | torch.device) -> Tensor:
    return torch.tensor(rows, dtype=torch.int32).to(device)
