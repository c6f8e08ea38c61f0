"""Steps that hold decodes and prompts, as CUDA graphs: one for each number of rows and of tokens, captured at start.

A decode reads all weights for a few tokens, and so does a short prompt. One after the other they read the weights
twice; together they read them once. With a model of 8 billion parameters a step of 15 decodes takes 5.7 ms, and a
prompt of 70 tokens after it 6.9 ms more.

Products, norms and logits are those of all tokens; attention is that of decodes for decodes, and that of prompts for
prompts. Packets, block tables and choices are those of decode_graphs.py and prompt_graphs.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from voxlane.engine.kernels.yield_flag import YieldFlag
from voxlane.engine.memory.pages import KVCache
from voxlane.engine.runners.cuda.decode_graphs import DecodeGraphs
from voxlane.engine.runners.cuda.prompt_graphs import FEW_ROWS, PromptGraphs, Shape
from voxlane.engine.runners.decoder import DecoderModel

ROWS = (16, 32, 64, 128, 256)
"""Decodes a joint step is padded to: a row without a request has products and a choice, and no attention."""

TOKENS = (64, 128, 256, 512)
"""Tokens of prompts a joint step is padded to. Longer prompts keep the device busy by themselves."""

Progress = Callable[[float], None]
JointShape = tuple[int, Shape]
"""Rows that decode, and the tokens and rows of the prompts."""


class JointGraphs:
    """Steps over decode rows and prompts."""

    def __init__(
        self,
        model: DecoderModel,
        cache: KVCache,
        decodes: DecodeGraphs,
        prompts: PromptGraphs,
        *,
        max_rows: int,
        yield_flag: YieldFlag | None = None,
    ) -> None:
        """Join the steps of `decodes`, which has `max_rows` rows, and of `prompts`."""
        self._model = model
        self._pages = cache.layers
        self._decodes, self._prompts = decodes, prompts
        self._yield_flag = yield_flag
        self._rows = sorted({min(size, max_rows) for size in ROWS})
        self._graphs: dict[JointShape, torch.cuda.CUDAGraph] = {}

    def shape(self, rows: int, tokens: int, wanted: int, longest: int) -> JointShape | None:
        """Return the smallest step for so many decodes, and prompts as PromptGraphs.shape has them; None: none does."""
        size = next((size for size in self._rows if size >= rows), None)
        if size is None or tokens > TOKENS[-1] or wanted > FEW_ROWS:
            return None
        prompts = self._prompts.shape(max(tokens, TOKENS[0]), wanted, longest)
        return None if prompts is None or prompts not in self._kinds() else (size, prompts)

    def capture(self, pool: Any, max_tokens: int, progress: Progress = lambda done: None) -> None:
        """Capture the steps with prompts of up to `max_tokens` tokens, after those of both kinds."""
        most = next((size for size in TOKENS if size >= max_tokens), TOKENS[-1])
        kinds = [kind for kind in self._kinds() if kind[0] <= most]
        shapes = sorted(((rows, kind) for rows in self._rows for kind in kinds), key=_size, reverse=True)
        for number, shape in enumerate(shapes):
            self._prompts.packet(shape[1]).clear("slots")
            self._step(shape)  # compiles kernels and picks products: a capture cannot
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                self._step(shape)
            self._graphs[shape] = graph
            progress((number + 1) / len(shapes))
        torch.cuda.synchronize()

    def launch(self, shape: JointShape) -> None:
        """Launch a step after both packets were written."""
        graph = self._graphs.get(shape)
        if graph is None:
            self._step(shape)
        else:
            graph.replay()

    def _kinds(self) -> list[Shape]:
        return [shape for shape in self._prompts.shapes if shape[0] in TOKENS and shape[1] <= FEW_ROWS]

    def _step(self, shape: JointShape) -> None:
        rows, kind = shape
        with torch.inference_mode():
            tokens, layout = self._decodes.begin(rows)
            more, beside = self._prompts.begin(kind)
            layout = replace(layout, yield_flag=self._yield_flag, beside=beside)
            hidden = self._model.forward(torch.cat([tokens, more]), layout, self._pages)
            picked = self._prompts.pick(kind, hidden[rows:])
            logits = self._model.logits(torch.cat([hidden[:rows], picked]))
            self._decodes.end(hidden[:rows], logits[:rows])
            self._prompts.end(kind, picked, logits[rows:])


def _size(shape: JointShape) -> tuple[int, int]:
    rows, (tokens, _) = shape
    return rows + tokens, rows
