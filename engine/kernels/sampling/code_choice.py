"""Chooses one code of a frame, and looks up the next step's input for it: one launch where there were eight.

The draw is sampling.py's, number for number: seeded, after top-k and top-p. Rules of a frame's first code (the penalty
on codes used before, codes that are no sound) come before it. Vocabularies are codebooks: small enough for registers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from voxlane.engine.kernels.sampling.sampling import POSITION, sample

MAX_CODES = 8192
"""The largest vocabulary that a program holds at once."""


@dataclass(frozen=True, slots=True)
class FirstRules:
    """The rules for a frame's first code."""

    said: Tensor  # [slots, vocabulary] bool: codes used before; each choice is added
    slots: Tensor  # [rows] int64: each row's slot
    penalty: Tensor  # [rows] float32, on codes used before
    sounds: int  # codes from here on are no sound and are not chosen, but for `end`
    end: int  # the code that ends speech
    earliest_end: int  # the first position at which `end` may be chosen


def restrict(logits: Tensor, packet: Tensor, rules: FirstRules) -> Tensor:
    """Return `logits` [rows, vocabulary] with codes used before less likely, and codes without sound impossible."""
    penalty, code = rules.penalty[:, None], torch.arange(logits.shape[1], device=logits.device)
    spoken = torch.where(logits < 0, logits * penalty, logits / penalty)
    early = (packet[:, POSITION] < rules.earliest_end)[:, None]
    is_end = code == rules.end
    impossible = ((code >= rules.sounds) & ~is_end) | (early & is_end)
    said = rules.said.index_select(0, rules.slots)
    return torch.where(said, spoken, logits).masked_fill(impossible, -torch.inf)


def choose_code_ref(
    logits: Tensor, packet: Tensor, codes: Tensor, rules: FirstRules | None = None, residual: Tensor | None = None,
    table: Tensor | None = None, offset: int = 0,
) -> None:  # fmt: skip
    """Write a code for each row of `logits`, and its row of the table."""
    if rules is not None:
        logits = restrict(logits, packet, rules)
    tokens = torch.empty(len(logits), dtype=torch.int32, device=logits.device)
    sample(logits, packet, tokens, torch.empty(len(logits), device=logits.device))
    codes.copy_(tokens)
    kept = codes.clamp(min=0)
    if rules is not None:
        rules.said[rules.slots, kept] = True
    if residual is not None and table is not None:
        residual.copy_(F.embedding(kept + offset, table))


def choose_code(
    logits: Tensor,
    packet: Tensor,
    codes: Tensor,
    rules: FirstRules | None = None,
    residual: Tensor | None = None,
    table: Tensor | None = None,
    offset: int = 0,
) -> None:
    """Write a code into `codes` [rows] int64 for each row of `logits` [rows, vocabulary] float32; -1: not finite.

    `packet` [rows, columns] int32 is sampling's, without min_p. With `residual` [rows, width] float32, row offset +
    code of `table` is written there. Rows of codes and of the residual may lie apart.
    """
    rows, vocabulary = logits.shape
    if codes.shape != (rows,) or packet.shape[0] != rows or (residual is None) != (table is None):
        raise ValueError(f"codes {tuple(codes.shape)} and packet {tuple(packet.shape)} for {rows} rows of logits")
    if residual is not None and table is not None and residual.shape != (rows, table.shape[1]):
        raise ValueError(f"residual {tuple(residual.shape)} does not take {rows} rows of {tuple(table.shape)}")
    if not logits.is_cuda:
        choose_code_ref(logits, packet, codes, rules, residual, table, offset)
        return
    if vocabulary > MAX_CODES:
        raise ValueError(f"a vocabulary of {vocabulary}: {MAX_CODES} is the most")
    from voxlane.engine.kernels.sampling import code_choice_triton

    code_choice_triton.choose_code(logits, packet, codes, rules, residual, table, offset)
