"""Moonshine's own 8-bit graphs in the library's own runtime, with a window on what goes into every product.

The decoder's graph is a choice between two: the first step, which also projects the sound, and every later one. Each is
lifted out and run by itself, for a window cannot be opened from within a choice. It knows nothing of our models.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .library_runtime import LibraryRuntime

_LAYERS = 6
_ENCODER = ("self_attn/q_proj", "self_attn/o_proj", "mlp/fc1", "mlp/fc2")
_DECODER = (*_ENCODER[:2], "encoder_attn/q_proj", "encoder_attn/o_proj", *_ENCODER[2:])
"""The products of a layer in order; queries stand for the keys and values made of the same rows."""

_CACHE = [
    f"{layer}.{kind}.{part}"
    for layer, kind, part in itertools.product(range(_LAYERS), ("decoder", "encoder"), ("key", "value"))
]
_EMPTY = (1, 8, 1, 36)  # [batch, heads, places, head_dim]: what the first step is given and does not look at

# Numbers of fields in ONNX's messages.
_MODEL_GRAPH = 7
_GRAPH_NODE, _GRAPH_OUTPUT = 1, 12
_NODE_INPUT, _NODE_NAME, _NODE_ATTRIBUTE = 1, 3, 5
_ATTRIBUTE_NAME, _ATTRIBUTE_GRAPH = 1, 6
_OUTPUT_NAME = 1


class Graph:
    """The encoder and the decoder, for one sound at a time."""

    def __init__(self, directory: Path, scratch: Path) -> None:
        runtime = LibraryRuntime()
        encoder, decoder = (scratch / name for name in ("encoder.onnx", "decoder.onnx"))
        runtime.convert(directory / "encoder_model.ort", encoder)
        runtime.convert(directory / "decoder_model_merged.ort", decoder)
        layers = range(_LAYERS)
        self._encoder = _Windows(
            runtime, encoder.read_bytes(), [f"/layers.{layer}/{product}" for layer in layers for product in _ENCODER]
        )
        inputs = [f"/model/decoder/layers.{layer}/{product}" for layer in layers for product in _DECODER]
        first, later = (_branch(decoder.read_bytes(), name) for name in (b"else_branch", b"then_branch"))
        self._first = _Windows(runtime, first, [*inputs, "/proj_out"])
        self._later = _Windows(runtime, later, [*inputs, "/proj_out"])

    def encode(self, samples: Tensor) -> list[Tensor]:
        """Take a new sound; return the rows that go into the encoder's products, and the states at last."""
        feed = {"input_values": samples[None].numpy(), "attention_mask": np.ones((1, len(samples)), np.int64)}
        found, rest = self._encoder.run(["last_hidden_state"], feed)
        self._sound = {
            "encoder_hidden_states": rest["last_hidden_state"],
            "encoder_attention_mask": feed["attention_mask"],
            "use_cache_branch": np.array([True]),  # the choice is made, but the inputs stay the same
        }
        self._past = {f"past_key_values.{name}": np.zeros(_EMPTY, np.float32) for name in _CACHE}
        self._decoder = self._first
        return [*found, torch.from_numpy(rest["last_hidden_state"][0])]

    def step(self, token: int) -> list[Tensor]:
        """Take the next token; return the row that goes into each of the decoder's products."""
        feed = {"input_ids": np.array([[token]]), **self._sound, **self._past}
        # The sound's keys and values come once.
        news = [name for name in _CACHE if self._decoder is self._first or ".decoder." in name]
        found, rest = self._decoder.run([f"present.{name}" for name in news], feed)
        self._past.update({f"past_key_values.{name}": rest[f"present.{name}"] for name in news})
        self._decoder = self._later
        return found


class _Windows:
    """A graph that shows what goes into some of its products."""

    def __init__(self, runtime: LibraryRuntime, model: bytes, products: Sequence[str]) -> None:
        graph = next(value for number, value, _ in _fields(model) if number == _MODEL_GRAPH)
        sources: dict[str, str] = {}
        for node in _all(graph, _GRAPH_NODE):
            inputs = [name.decode() for name in _all(node, _NODE_INPUT)]
            sources[next(_all(node, _NODE_NAME)).decode()] = inputs[0].removesuffix("_quantized") if inputs else ""
        self._inputs = [sources[f"{product}/MatMul_quant"] for product in products]
        # Messages that follow each other are one: this adds outputs to the graph.
        outputs = (_field(_GRAPH_OUTPUT, _field(_OUTPUT_NAME, name.encode())) for name in self._inputs)
        self._session = runtime.session(model + _field(_MODEL_GRAPH, b"".join(outputs)))

    def run(
        self, names: Sequence[str], feed: dict[str, NDArray[np.generic]]
    ) -> tuple[list[Tensor], dict[str, NDArray[np.float32]]]:
        """Return the products' inputs [rows, columns] and the outputs `names`."""
        found = self._session.run([*self._inputs, *names], feed)
        return [torch.from_numpy(found[name][0]) for name in self._inputs], {name: found[name] for name in names}


def _branch(model: bytes, name: bytes) -> bytes:
    """Return a model of one branch of the choice that ends a whole model, with all that comes before the choice."""
    outer = next(_all(model, _MODEL_GRAPH))
    *_, choice = _all(outer, _GRAPH_NODE)
    chosen = next(found for found in _all(choice, _NODE_ATTRIBUTE) if next(_all(found, _ATTRIBUTE_NAME)) == name)
    before = (raw for number, value, raw in _fields(outer) if number != _GRAPH_OUTPUT and value != choice)
    header = (raw for number, _, raw in _fields(model) if number != _MODEL_GRAPH)
    return b"".join(header) + _field(_MODEL_GRAPH, b"".join(before) + next(_all(chosen, _ATTRIBUTE_GRAPH)))


def _all(message: bytes, wanted: int) -> Iterator[bytes]:
    return (value for number, value, _ in _fields(message) if number == wanted)


def _fields(message: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield the number, the value and the whole encoding of a protocol buffer's fields; numbers have no value."""
    at = 0
    while at < len(message):
        start = at
        key, at = _varint(message, at)
        length = {1: 8, 5: 4}.get(key & 7, 0)
        if key & 7 == 0:
            _, at = _varint(message, at)
        elif key & 7 == 2:
            length, at = _varint(message, at)
        at += length
        yield key >> 3, message[at - length : at], message[start:at]


def _field(number: int, value: bytes) -> bytes:
    length, digits = len(value), bytearray()
    while length > 127:
        digits.append(length & 127 | 128)
        length >>= 7
    return bytes([number << 3 | 2, *digits, length]) + value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the number that starts at `at` and where it ends."""
    number = shift = 0
    while message[at] > 127:
        number |= (message[at] & 127) << shift
        at, shift = at + 1, shift + 7
    return number | message[at] << shift, at + 1
