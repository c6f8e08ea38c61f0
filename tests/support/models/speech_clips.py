"""Run a speech recogniser over paged requests in the simplest way, and clips for it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch
from paged import int32, rubbish
from torch import Tensor

from voxlane.codecs.wav import decode_wav
from voxlane.engine.audio.torchaudio_import import functional
from voxlane.engine.kernels.attention.pages import Layout
from voxlane.engine.models.moonshine import Moonshine
from voxlane.engine.models.recognition import Cross
from voxlane.engine.models.whisper import Whisper


@cache
def _recording(path: Path) -> np.ndarray:
    samples, rate = decode_wav(path.read_bytes())
    return functional.resample(torch.from_numpy(samples), rate, 16_000).numpy()


def clip(path: Path, start_s: float = 0.0, end_s: float = 1e9) -> Tensor:
    """Return part of a file as float32 at 16 kHz."""
    samples = _recording(path)
    first, last = int(start_s * 16_000), int(min(end_s * 16_000, len(samples)))
    return torch.from_numpy(samples[first:last].copy())


def _padded(tables: list[list[int]]) -> Tensor:
    width = max(map(len, tables))
    return int32([table + [0] * (width - len(table)) for table in tables])


class PagedClips:
    """Clips of one batch in one cache; every page starts as garbage, blocks are in scrambled order."""

    def __init__(
        self, model: Moonshine | Whisper, clips: list[Tensor], dtype: torch.dtype = torch.float32, block_tokens: int = 8
    ) -> None:
        self.model = model
        states = [model.states(len(one)) for one in clips]
        self._windows = [model.window(len(one)) for one in clips]
        blocks = sum(-(-count // block_tokens) for count in states) + len(clips) * -(-240 // block_tokens)
        self.cache, self._free = rubbish(model, blocks, block_tokens, dtype)
        with torch.inference_mode():
            self.encoded = model.encode(clips)
            assert self.encoded.lengths == states
            self._cross = [[self._free.pop() for _ in range(-(-count // block_tokens))] for count in states]
            slots = [
                table[place // block_tokens] * block_tokens + place % block_tokens
                for table, count in zip(self._cross, states, strict=True)
                for place in range(count)
            ]
            model.write_cross(self.encoded.states, int32(slots), self.cache.pages)
        self._tables: list[list[int]] = [[] for _ in clips]
        self._lengths = [0] * len(clips)

    def feed(self, chunks: dict[int, list[int]]) -> list[Tensor]:
        """Append tokens to requests in one step; return the hidden rows [tokens, hidden] of each."""
        tokens, layout, cross = self._places(chunks)
        with torch.inference_mode():
            hidden = self.model.forward(tokens, layout, cross, self.cache.pages)
        return [hidden[first:last] for first, last in itertools.pairwise(layout.query_starts.tolist())]

    def greedy(self, language: str = "en", limit: int = 200) -> list[list[int]]:
        """Return every clip's tokens without the end token, decoded in one batch."""
        outputs: list[list[int]] = [[] for _ in self._tables]
        live, first = dict.fromkeys(range(len(outputs)), self.model.prompt_tokens(language)), True
        while live:
            last = torch.cat([rows[-1:] for rows in self.feed(live)])
            logits = self.model.restrict(self.model.logits(last), [first] * len(last), [False] * len(last))
            chosen = dict(zip(live, logits.argmax(dim=-1).tolist(), strict=True))
            live = {row: [token] for row, token in chosen.items() if token not in self.model.eos_ids}
            for row, (token,) in live.items():
                outputs[row].append(token)
            live = {row: chunk for row, chunk in live.items() if len(outputs[row]) < limit}
            first = False
        return outputs

    def rewind(self) -> None:
        """Forget every token; the clips stay encoded."""
        self._lengths = [0] * len(self._lengths)

    def cross_weights(self, row: int, tokens: list[int]) -> Tensor:
        """Return the attention of the alignment heads for a request's tokens: [heads, tokens, states]."""
        self._lengths[row] = 0
        ids, layout, cross = self._places({row: tokens})
        with torch.inference_mode():
            return self.model.cross_weights(ids, layout, cross, self.cache.pages, self.model.alignment_heads)[0]

    def _places(self, chunks: dict[int, list[int]]) -> tuple[Tensor, Layout, Cross]:
        size = self.cache.block_tokens
        positions, slots, starts = [], [], [0]
        for row, tokens in chunks.items():
            table, start = self._tables[row], self._lengths[row]
            for position in range(start, start + len(tokens)):
                if position == len(table) * size:
                    table.append(self._free.pop())
                positions.append(position)
                slots.append(table[position // size] * size + position % size)
            starts.append(len(positions))
            self._lengths[row] = start + len(tokens)
        layout = Layout(
            int32(positions),
            int32(slots),
            int32(starts),
            int32([self._lengths[row] for row in chunks]),
            _padded([self._tables[row] for row in chunks]),
        )
        cross = Cross(
            int32([self.encoded.lengths[row] for row in chunks]),
            _padded([self._cross[row] for row in chunks]),
            int32([self._windows[row] for row in chunks]) if self.model.thinned > 1 else None,
            self.model.thinned,
        )
        return torch.tensor([token for tokens in chunks.values() for token in tokens]), layout, cross


def decode(
    model: Moonshine | Whisper, clip: Tensor, forced: Sequence[int], limit: int
) -> tuple[list[int], list[float]]:
    """Return one clip's tokens, first `forced`, then greedy ones, and the logprobs of all."""
    batch = PagedClips(model, [clip], block_tokens=16)
    prompt, tokens = model.prompt_tokens("en"), list(forced)
    logprobs: list[float] = []
    rows = batch.feed({0: [*prompt, *forced]})[0][len(prompt) - 1 :]
    while True:
        first = [not logprobs and at == 0 for at in range(len(rows))]
        logits = model.restrict(model.logits(rows), first, [False] * len(rows)).log_softmax(dim=-1)
        for row, token in zip(logits, tokens[len(logprobs) :], strict=False):
            logprobs.append(float(row[token]))
        token = int(logits[-1].argmax())
        if token in model.eos_ids or len(tokens) >= limit:
            return tokens, logprobs
        tokens.append(token)
        logprobs.append(float(logits[-1, token]))
        rows = batch.feed({0: [token]})[0]
