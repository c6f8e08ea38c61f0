"""ONNX files as data: the constants of a graph, and the inputs of its operations. Nothing in a file is ever run.

It knows Protocol Buffers' wire format and the few fields of an ONNX model that hold weights. The caller knows what the
operations mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxlane.engine.errors import WeightsError

MAX_RANK = 8

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}
_MODEL_GRAPH, _GRAPH_NODE, _GRAPH_INITIALIZER = 7, 1, 5
_NODE_INPUT, _NODE_OUTPUT, _NODE_OPERATION, _NODE_ATTRIBUTE = 1, 2, 4, 5
_ATTRIBUTE_NAME, _ATTRIBUTE_INTEGERS = 1, 8
_TENSOR_DIMS, _TENSOR_KIND, _TENSOR_FLOATS, _TENSOR_INTEGERS, _TENSOR_NAME, _TENSOR_RAW = 1, 2, 4, 5, 8, 9
_DTYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype("<f4"), 2: np.dtype("u1"), 3: np.dtype("i1"), 6: np.dtype("<i4"), 7: np.dtype("<i8"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Operation:
    """One node of a graph."""

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    integers: dict[str, list[int]] = field(default_factory=dict)  # attributes that are lists of integers


@dataclass(frozen=True, slots=True)
class OnnxGraph:
    """Constants by name, and operations in their order."""

    constants: dict[str, NDArray[Any]] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)


def read_graph(path: Path) -> OnnxGraph:
    """Return the graph of an ONNX file, or raise WeightsError; inner graphs are left out."""
    graph = OnnxGraph()
    try:
        for number, value in _fields(memoryview(path.read_bytes())):
            if number == _MODEL_GRAPH:
                _read(graph, _bytes(value))
    except ValueError as error:
        raise WeightsError(path, f"not an ONNX model, or damaged: {error}") from error
    if not graph.operations:
        raise WeightsError(path, "there is no graph in it")
    return graph


def _read(graph: OnnxGraph, message: memoryview) -> None:
    for number, value in _fields(message):
        if number == _GRAPH_INITIALIZER:
            name, values = _tensor(_bytes(value))
            graph.constants[name] = values
        elif number == _GRAPH_NODE:
            graph.operations.append(_operation(_bytes(value)))


def _operation(message: memoryview) -> Operation:
    texts: dict[int, list[str]] = {_NODE_INPUT: [], _NODE_OUTPUT: [], _NODE_OPERATION: [""]}
    integers: dict[str, list[int]] = {}
    for number, value in _fields(message):
        if number in texts:
            texts[number].append(_text(value))
        elif number == _NODE_ATTRIBUTE:
            name, numbers = "", []
            for part, content in _fields(_bytes(value)):
                if part == _ATTRIBUTE_NAME:
                    name = _text(content)
                elif part == _ATTRIBUTE_INTEGERS:
                    numbers += _numbers(content)
            if numbers:
                integers[name] = numbers
    return Operation(texts[_NODE_OPERATION][-1], tuple(texts[_NODE_INPUT]), tuple(texts[_NODE_OUTPUT]), integers)


def _tensor(message: memoryview) -> tuple[str, NDArray[Any]]:
    name, kind, raw = "", 0, b""
    shape: list[int] = []
    integers: list[int] = []
    for number, value in _fields(message):
        if number == _TENSOR_DIMS:
            shape += _numbers(value)
        elif number == _TENSOR_KIND and isinstance(value, int):
            kind = value
        elif number == _TENSOR_NAME:
            name = _text(value)
        elif number in (_TENSOR_RAW, _TENSOR_FLOATS):
            raw += _bytes(value)
        elif number == _TENSOR_INTEGERS:
            integers += _numbers(value)
    if kind not in _DTYPES:
        raise ValueError(f"constant {name!r:.100} is of a kind ({kind}) that is not read here")
    if integers:
        raw += np.array(integers, np.uint64).astype(_DTYPES[kind]).tobytes()
    if len(shape) > MAX_RANK or len(raw) != math.prod(shape) * _DTYPES[kind].itemsize:
        raise ValueError(f"constant {name!r:.100} has {len(raw)} bytes, which are not its shape's")
    return name, np.frombuffer(raw, dtype=_DTYPES[kind]).reshape(shape)


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield a message's fields: (number, value), a value being a number or bytes."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if wire == _BYTES:
            size, at = _varint(message, at)
        elif wire in _FIXED_BYTES:
            size = _FIXED_BYTES[wire]
        else:
            raise ValueError(f"a field of wire type {wire}")
        if size > len(message) - at:
            raise ValueError("a field goes beyond the end of what holds it")
        yield number, message[at : at + size]
        at += size


def _numbers(values: int | memoryview) -> list[int]:
    """Return the values of a repeated number: one in each field, or all in one field."""
    if isinstance(values, int):
        return [values]
    numbers, at = [], 0
    while at < len(values):
        number, at = _varint(values, at)
        numbers.append(number)
    return numbers


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            break
        byte, at = message[at], at + 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise ValueError("a number does not end")


def _text(value: int | memoryview) -> str:
    return bytes(_bytes(value)).decode("utf-8")


def _bytes(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise ValueError("a number where there should be bytes")
    return value
