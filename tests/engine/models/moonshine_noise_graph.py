"""Moonshine's own 8-bit graphs in the installed ONNX Runtime, and what their rounding does to them.

The graphs round the activations before every product, so that an inaudible change (half a step of 16 bits) comes
out of the encoder as large as any other error of eight bits. `draw` 0 is a sound as it is; every other draw adds such a
change. How draws differ from each other is what the graph itself does not know. It knows nothing of our models.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import torch
from torch import Tensor

START, END = 1, 2
STEP = 1 / 32768


def dithered(samples: Tensor, draw: int) -> Tensor:
    """Return a sound with noise of at most half a step of 16 bits, another one for every draw but the first."""
    noise = torch.rand(len(samples), generator=torch.Generator().manual_seed(draw)) - 0.5
    return samples + noise * STEP if draw else samples


class Graph:
    """Encoder and decoder as the C++ library runs them: one token at a time, the first without a cache."""

    def __init__(self, directory: Path) -> None:
        self._encoder = _session(directory / "encoder_model.ort")
        self._decoder = _session(directory / "decoder_model_merged.ort")
        self._outputs = [output.name for output in self._decoder.get_outputs()]
        self._empty = {
            put.name: np.zeros((1, put.shape[1], 1, put.shape[3]), np.float32)  # [batch, heads, places, head_dim]
            for put in self._decoder.get_inputs()
            if put.name.startswith("past_key_values")
        }

    def states(self, samples: Tensor) -> Tensor:
        """Return the encoder's states [states, hidden]."""
        feed = {"input_values": samples[None].numpy(), "attention_mask": np.ones((1, len(samples)), np.int64)}
        return torch.from_numpy(self._encoder.run(None, feed)[0][0])

    def logits(self, samples: Tensor, states: Tensor, tokens: list[int]) -> Tensor:
        """Return what it would write first and after each of `tokens`: [len(tokens) + 1, vocabulary]."""
        past, rows = dict(self._empty), []
        for place, token in enumerate([START, *tokens]):
            feed = {
                "input_ids": np.array([[token]]),
                "encoder_hidden_states": states[None].numpy(),
                "encoder_attention_mask": np.ones((1, len(samples)), np.int64),
                "use_cache_branch": np.array([place > 0]),
            }
            found = dict(zip(self._outputs, self._decoder.run(None, feed | past), strict=True))
            rows.append(found["logits"][0, -1])
            for name in past:
                if place == 0 or ".decoder." in name:  # the sound's keys and values come once
                    past[name] = found[name.replace("past_key_values", "present")]
        return torch.from_numpy(np.stack(rows))


def _session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
