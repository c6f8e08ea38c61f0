"""Moonshine as ONNX Runtime stores it: two .ort graphs and tokenizer.bin, under Hugging Face's names.

The graphs are read as data and never run. Most matrices have no name; the name of the node that multiplies by a matrix
tells its place ("/layers.0/self_attn/k_proj/MatMul_quant"). Matrices are [in, out] in 8 bits, each with one scale and
one zero point. The zero point is not in the middle, so the codes do not fit groups of signed bytes, and the matrices
are dequantised.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from voxlane.engine.errors import WeightsError
from voxlane.engine.weights.gguf_header import map_file
from voxlane.engine.weights.importers.flatbuffers import Table
from voxlane.engine.weights.tensors import Blocks

ENCODER, DECODER, TOKENS = "encoder_model.ort", "decoder_model_merged.ort", "tokenizer.bin"

MAX_NODES, MAX_INITIALIZERS, MAX_INPUTS, MAX_ATTRIBUTES, MAX_RANK = 20_000, 20_000, 256, 64, 8
"""Moonshine's larger graph has 940 nodes and 786 initializers, with up to 28 inputs a node."""

_HEADS = 8
"""Nothing in the graphs names the number of heads; both published sizes, tiny and base, have eight."""

_CONTEXT_TOKENS = 194  # its longest training output: 30 s at 6.5 tokens a second, less the start token

_CONTROLS = 3  # <unk>, <s>, </s>
_RESERVED = re.compile(rb"<<ST_\d+>>")

_FLOAT, _UINT8, _GRAPH_ATTRIBUTE = 1, 2, 5
_DTYPES: dict[int, np.dtype[Any]] = {
    _FLOAT: np.dtype("<f4"), _UINT8: np.dtype("u1"), 3: np.dtype("i1"), 6: np.dtype("<i4"), 7: np.dtype("<i8"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Initializer:
    """A constant of a graph. Its bytes are read from the file when they are requested."""

    name: str
    kind: int  # onnx's TensorProto.DataType
    shape: tuple[int, ...]
    raw: memoryview

    def array(self) -> NDArray[Any]:
        """Return its values."""
        return np.frombuffer(self.raw, dtype=_DTYPES[self.kind]).reshape(self.shape)


@dataclass(frozen=True, slots=True)
class Node:
    """One operation of a graph."""

    operation: str
    name: str
    inputs: list[str]


@dataclass(frozen=True, slots=True)
class OrtGraph:
    """Constants by name, and operations, those of inner graphs included."""

    initializers: dict[str, Initializer]
    nodes: list[Node]


def read_graph(path: Path) -> OrtGraph:
    """Return the graph of an .ort file, or raise WeightsError."""
    root = Table.root(str(path), memoryview(map_file(path)), b"ORTM")
    model = root.table(1)
    graph = model.table(7) if model is not None else None
    if graph is None:
        raise WeightsError(path, "there is no graph in it")
    found = OrtGraph({}, [])
    _collect(path, graph, found, depth=0)
    return found


def _collect(path: Path, graph: Table, found: OrtGraph, depth: int) -> None:
    for table in graph.tables(0, MAX_INITIALIZERS):
        initializer = _initializer(path, table)
        if initializer is not None:
            found.initializers.setdefault(initializer.name, initializer)
    for table in graph.tables(2, MAX_NODES):
        found.nodes.append(Node(table.text(5), table.text(0), table.texts(8, MAX_INPUTS)))
        if len(found.nodes) > MAX_NODES or len(found.initializers) > MAX_INITIALIZERS:
            raise WeightsError(path, "there are too many nodes in its graph")
        for attribute in table.tables(10, MAX_ATTRIBUTES):
            inner = attribute.table(7) if attribute.integer(2, "i") == _GRAPH_ATTRIBUTE else None
            if inner is not None:
                if depth:
                    raise WeightsError(path, "graphs within graphs within graphs are not supported")
                _collect(path, inner, found, depth + 1)


def _initializer(path: Path, table: Table) -> Initializer | None:
    """Return a constant, None if its type is not one of a weight."""
    name, kind = table.text(0), table.integer(3, "i")
    if kind not in _DTYPES:
        return None
    shape = tuple(table.integers(2, "q", MAX_RANK))
    raw = table.raw(4)
    if any(not 0 <= size < 1 << 40 for size in shape) or math.prod(shape) * _DTYPES[kind].itemsize != len(raw):
        raise WeightsError(path, f"tensor {name!r:.100} does not fill its place in the file")
    return Initializer(name, kind, shape, raw)


@dataclass(frozen=True, slots=True)
class _Matrix:
    """A tensor's values as the graph holds them. With a scale they are codes; `turned` means [in, out]."""

    values: Initializer
    scale: Initializer | None = None
    zero: Initializer | None = None
    turned: bool = False


# For each operation the input numbers of its (weight, scale, zero point, bias).
_PRODUCTS = {"MatMulIntegerToFloat": (1, 3, 5, 6), "DynamicQuantizeMatMul": (1, 2, 3, 4)}
_NAMED = re.compile(r"/(?P<place>(?:[\w.]+/)*[\w.]+)/(?P<operation>\w+)")


def _tensors(path: Path, prefix: str) -> dict[str, _Matrix]:
    """Return a graph's weights under Hugging Face's names."""
    graph = read_graph(path)
    found: dict[str, _Matrix] = {}
    for node in graph.nodes:
        match = _NAMED.fullmatch(node.name)
        if node.operation == "SkipLayerNormalization" and len(node.inputs) > 2:
            # The node of a norm that is fused with an addition does not tell its place; its weight has a name.
            found[prefix + node.inputs[2]] = _Matrix(_known(path, graph, node.inputs[2]))
        if match is None:
            continue
        place = prefix + match["place"].replace("/", ".")
        for ending, matrix in _weights_of(path, graph, node):
            name = f"{place}.{ending}"
            if name in found and found[name].values.name != matrix.values.name:
                raise WeightsError(path, f"two different tensors are both {name!r:.100}")
            found[name] = matrix
    if not found:
        raise WeightsError(path, "there are no weights in it that we know")
    return found


def _weights_of(path: Path, graph: OrtGraph, node: Node) -> Iterator[tuple[str, _Matrix]]:
    """Yield the weights of one node, with the last part of their names."""

    def constant(index: int) -> Initializer | None:
        return graph.initializers.get(node.inputs[index]) if index < len(node.inputs) else None

    match node.operation:
        case "MatMulIntegerToFloat" | "DynamicQuantizeMatMul":
            weight, scale, zero, bias = (constant(index) for index in _PRODUCTS[node.operation])
            if weight is not None:
                yield "weight", _checked(path, _Matrix(weight, scale, zero, turned=True))
            if bias is not None:
                yield "bias", _Matrix(bias)
        case "Gather":
            weight = constant(0)
            if weight is not None and len(weight.shape) == 2:
                stem = weight.name.removesuffix("_quantized")
                scale, zero = (graph.initializers.get(f"{stem}_{part}") for part in ("scale", "zero_point"))
                yield "weight", _checked(path, _Matrix(weight, scale, zero))
        case "Conv" | "FusedConv" | "LayerNormalization":
            # Moonshine's layer norms have no bias: the graph's third input is a row of zeros.
            inputs = (("weight", 1),) if node.operation == "LayerNormalization" else (("weight", 1), ("bias", 2))
            for ending, index in inputs:
                values = constant(index)
                if values is not None:
                    yield ending, _Matrix(values)
        case "Mul" | "Add" if node.name.startswith("/groupnorm/"):
            values = constant(1)
            if values is not None:
                yield "weight" if node.operation == "Mul" else "bias", _Matrix(values)


def _known(path: Path, graph: OrtGraph, name: str) -> Initializer:
    if name not in graph.initializers:
        raise WeightsError(path, f"tensor {name!r:.100} is missing")
    return graph.initializers[name]


def _checked(path: Path, matrix: _Matrix) -> _Matrix:
    values, scale, zero = matrix.values, matrix.scale, matrix.zero
    sound = values.kind == _UINT8 and scale is not None and scale.kind == _FLOAT and zero is not None
    if not sound or scale is None or zero is None or zero.kind != _UINT8 or len(scale.raw) != 4 or len(zero.raw) != 1:
        raise WeightsError(path, f"tensor {values.name!r:.100} is not 8-bit codes with one scale and one zero point")
    return matrix


class MoonshineDirectory:
    """A directory with encoder_model.ort, decoder_model_merged.ort and tokenizer.bin as a WeightFile."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tensors = {
            **_tensors(path / ENCODER, "model.encoder."),
            **_tensors(path / DECODER, ""),
        }
        self._config = self._read_config()

    @property
    def config(self) -> dict[str, object]:
        """The architecture in the form of Hugging Face's config.json."""
        return self._config

    def names(self) -> list[str]:
        """Return every tensor's name."""
        return list(self._tensors)

    def tensor(self, name: str) -> Tensor:
        """Return one tensor as float32, matrices as [out, in]."""
        matrix = self._tensors[name]
        values = matrix.values.array().astype(np.float32)
        if matrix.scale is not None and matrix.zero is not None:
            values = (values - np.float32(matrix.zero.array().item())) * np.float32(matrix.scale.array().item())
        if matrix.turned:
            values = values.T
        if ".groupnorm." in name:
            values = values.reshape(-1)  # stored [channels, 1]
        return torch.from_numpy(np.ascontiguousarray(values))

    def blocks(self, name: str) -> Blocks | None:
        """Return None: codes with a zero point off the middle do not fit groups of signed bytes."""
        if name not in self._tensors:
            raise KeyError(name)
        return None

    def _read_config(self) -> dict[str, object]:
        embedding = self._shape("model.decoder.embed_tokens.weight", 2)
        inner = self._shape("model.encoder.layers.0.mlp.fc1.weight", 2)
        layers = {
            side: len({name.split(".")[3] for name in self._tensors if name.startswith(f"model.{side}.layers.")})
            for side in ("encoder", "decoder")
        }
        return {
            "architectures": ["MoonshineForConditionalGeneration"],
            "model_type": "moonshine",
            "vocab_size": embedding[0],
            "hidden_size": embedding[1],
            "intermediate_size": inner[1],
            "encoder_num_hidden_layers": layers["encoder"],
            "decoder_num_hidden_layers": layers["decoder"],
            "encoder_num_attention_heads": _HEADS,
            "decoder_num_attention_heads": _HEADS,
            "max_position_embeddings": _CONTEXT_TOKENS,
            "partial_rotary_factor": 0.9,
            "rope_theta": 10000.0,
            "decoder_start_token_id": 1,
            "eos_token_id": 2,
            "tie_word_embeddings": "proj_out.weight" not in self._tensors,
        }

    def _shape(self, name: str, rank: int) -> tuple[int, ...]:
        if name not in self._tensors or len(self._tensors[name].values.shape) != rank:
            raise WeightsError(self.path, f"not a Moonshine model: {name} is missing or misshapen")
        return self._tensors[name].values.shape


def read_tokens(path: Path) -> list[bytes]:
    """Return the vocabulary of a tokenizer.bin, each token's bytes in order of their ids, or raise WeightsError.

    A token is its length and its bytes; a length of 128 or more takes two bytes, the first one's low seven bits and 128
    times the second.
    """
    data = memoryview(map_file(path))
    tokens: list[bytes] = []
    at = 0
    while at < len(data):
        length, at = data[at], at + 1
        if length >= 128 and at < len(data):
            length, at = length - 128 + 128 * data[at], at + 1
        if at + length > len(data):
            raise WeightsError(path, f"token {len(tokens)} lies beyond the end of the file: truncated or damaged")
        tokens.append(bytes(data[at : at + length]))
        at += length
    return tokens


def read_pieces(path: Path) -> list[bytes]:
    """Return the bytes that each token of a tokenizer.bin adds to a text: control tokens add none."""
    return [
        b"" if index < _CONTROLS or _RESERVED.fullmatch(token) else token.replace("▁".encode(), b" ")
        for index, token in enumerate(read_tokens(path))
    ]
