"""hibari's file with its 8-bit products replaced by float ones, so that ONNX Runtime computes it without rounding."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from voxlane.engine.weights.importers.onnx import OnnxGraph, Operation, _bytes, _fields, read_graph

_GRAPH, _NODE, _INITIALIZER = 7, 1, 5
_FLOAT = 1


def float_graph(path: Path) -> bytes:
    """Return the model with every DynamicQuantizeLinear and MatMulInteger replaced by a MatMul of floats."""
    graph = read_graph(path)
    products, dropped, constants = _replacements(graph)
    inner = b""
    operations = iter(graph.operations)
    model = memoryview(path.read_bytes())
    for number, value in _fields(_bytes(dict(_fields(model))[_GRAPH])):
        if number == _NODE:
            output = next(operations).outputs[0]
            if output not in dropped:
                inner += _field(_NODE, products.get(output, bytes(_bytes(value))))
        else:
            inner += _field(number, bytes(_bytes(value)))
    inner += b"".join(_field(_INITIALIZER, _tensor(name, values)) for name, values in constants.items())
    whole = b"".join(
        _number(number, value) if isinstance(value, int) else _field(number, bytes(value))
        for number, value in _fields(model)
        if number != _GRAPH
    )
    return whole + _field(_GRAPH, inner)


def _replacements(graph: OnnxGraph) -> tuple[dict[str, bytes], set[str], dict[str, np.ndarray]]:
    maker = {output: operation for operation in graph.operations for output in operation.outputs}
    user: dict[str, Operation] = {name: operation for operation in graph.operations for name in operation.inputs}
    products, dropped, constants = {}, set(), {}
    for operation in graph.operations:
        if operation.kind != "MatMulInteger":
            continue
        rounding = maker[operation.inputs[0]]
        cast = user[operation.outputs[0]]
        scaled = user[cast.outputs[0]]
        scale = next(name for name in scaled.inputs if name != cast.outputs[0])
        stem = operation.inputs[1].removesuffix("_quantized")
        codes, step, zero = (graph.constants[f"{stem}_{part}"] for part in ("quantized", "scale", "zero_point"))
        constants[f"{stem}_float"] = (codes.astype(np.float32) - np.float32(zero)) * step
        names = [(1, rounding.inputs[0]), (1, f"{stem}_float"), (2, scaled.outputs[0]), (4, "MatMul")]
        products[scaled.outputs[0]] = b"".join(_field(number, name.encode()) for number, name in names)
        dropped |= {rounding.outputs[0], operation.outputs[0], cast.outputs[0], scale}
    return products, dropped, constants


def _tensor(name: str, values: np.ndarray) -> bytes:
    shape = b"".join(_number(1, size) for size in values.shape)
    return shape + _number(2, _FLOAT) + _field(8, name.encode()) + _field(9, values.tobytes())


def _field(number: int, payload: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))
