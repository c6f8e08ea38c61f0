"""Run a model over paged sequences in the simplest way: blocks in scrambled order, no scheduler."""

from __future__ import annotations

import itertools
import random

import torch
from torch import Tensor

from voxlane.engine.kernels.attention.pages import Layout, StatePages
from voxlane.engine.memory.pages import KVCache
from voxlane.engine.models.decoder import Decoder
from voxlane.engine.models.moonshine import Moonshine
from voxlane.engine.models.whisper import Whisper


def int32(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def rubbish(
    model: Decoder | Moonshine | Whisper, blocks: int, block_tokens: int, dtype: torch.dtype
) -> tuple[KVCache, list[int]]:
    """Return a cache whose every page is NaN, or extreme codes with NaN scales, and its blocks in scrambled order."""
    cache = KVCache(model.spec.pages, blocks, block_tokens, dtype)
    for state in cache.layers:
        if isinstance(state, StatePages):
            state.vectors.fill_(float("nan"))
    for pages in cache.pages:
        for tensor in (pages.k, pages.v, pages.k_scale, pages.v_scale):
            if tensor is not None:
                tensor.fill_(127 if tensor.dtype is torch.int8 else float("nan"))
    free = list(range(blocks))
    random.Random(7).shuffle(free)
    return cache, free


class Pager:
    """Sequences that grow in one cache; every page starts as garbage."""

    def __init__(self, model: Decoder, dtype: torch.dtype = torch.float32, block_tokens: int = 8, blocks: int = 96):
        self.model = model
        self.cache, self._free = rubbish(model, blocks, block_tokens, dtype)
        self._tables: dict[int, list[int]] = {}
        self._lengths: dict[int, int] = {}

    def feed(self, chunks: dict[int, list[int]]) -> list[Tensor]:
        """Append tokens to sequences in one step; return the hidden rows [tokens, hidden] of each."""
        size = self.cache.block_tokens
        positions, slots, starts = [], [], [0]
        for sequence, tokens in chunks.items():
            start, table = self._lengths.get(sequence, 0), self._tables.setdefault(sequence, [])
            for position in range(start, start + len(tokens)):
                if position == len(table) * size:
                    table.append(self._free.pop())
                positions.append(position)
                slots.append(table[position // size] * size + position % size)
            starts.append(len(positions))
            self._lengths[sequence] = start + len(tokens)
        width = max(len(self._tables[sequence]) for sequence in chunks)
        tables = [self._tables[sequence] + [0] * (width - len(self._tables[sequence])) for sequence in chunks]
        lengths = [self._lengths[sequence] for sequence in chunks]
        layout = Layout(int32(positions), int32(slots), int32(starts), int32(lengths), int32(tables))
        tokens_in = torch.tensor([token for tokens in chunks.values() for token in tokens])
        hidden = self.model.forward(tokens_in, layout, self.cache.layers)
        return [hidden[first:last] for first, last in itertools.pairwise(starts)]

    def logits(self, sequence: int, tokens: list[int], chunk: int = 0) -> Tensor:
        """Return the logits [tokens, vocab] of one sequence, fed whole or `chunk` tokens at a time."""
        step = chunk or len(tokens)
        rows = [self.feed({sequence: tokens[at : at + step]})[0] for at in range(0, len(tokens), step)]
        return self.model.logits(torch.cat(rows))

    def greedy(self, prompts: list[list[int]], count: int) -> list[list[int]]:
        """Return `count` greedy tokens for every prompt, all of them in one batch."""
        outputs: list[list[int]] = [[] for _ in prompts]
        chunks = dict(enumerate(prompts))
        for _ in range(count):
            last = torch.cat([rows[-1:] for rows in self.feed(chunks)])
            for output, token in zip(outputs, self.model.logits(last).argmax(dim=-1).tolist(), strict=True):
                output.append(token)
            chunks = {index: [output[-1]] for index, output in enumerate(outputs)}
        return outputs
