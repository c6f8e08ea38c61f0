"""The weights of a hibari voice, out of its ONNX file, under the names its authors gave the layers.

Most matrices in the file are 8-bit codes without a name of their own; the bias that is added to a product has one. The
two transformer layers are written out in the graph as often as they run, with the same matrices.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from voxlane.engine.errors import WeightsError
from voxlane.engine.weights.importers.onnx import OnnxGraph, read_graph

ENCODERS = ("m.text", "pn.text")

_IN_PROJ = ".attn.self_attn.in_proj_bias"
_TOO_FAR = 4  # operations between a product and the bias that is added to it: a cast and a scale


@dataclass(frozen=True, slots=True)
class HibariWeights:
    """Float tensors by name, matrices [out, in], and numbers that only the graph's operations have."""

    tensors: dict[str, NDArray[np.float32]]
    rounds: dict[str, int]  # how often each encoder's transformer layer runs
    strides: dict[str, int]  # how far apart the rows are that a convolution reads, by its weight's name


def read_weights(path: Path) -> HibariWeights:
    """Return a voice's weights, or raise WeightsError."""
    graph = read_graph(path)
    tensors = {
        name: np.array(values) for name, values in graph.constants.items() if name.startswith(("m.", "pn."))
    }  # copies: the file's own arrays are read-only
    users: dict[str, list[int]] = {}
    for index, operation in enumerate(graph.operations):
        for name in operation.inputs:
            users.setdefault(name, []).append(index)
    rounds: Counter[str] = Counter()
    strides: dict[str, int] = {}
    for index, operation in enumerate(graph.operations):
        if operation.kind == "MatMulInteger":
            bias = _bias_of(path, graph, users, index)
            tensors[bias.removesuffix("bias") + "weight"] = _dequantised(path, graph, operation.inputs)
            rounds[bias] += 1
        elif operation.kind == "Conv":
            strides[operation.inputs[1]] = operation.integers.get("dilations", [1])[0]
    missing = [name for name in ENCODERS if not rounds[f"{name}{_IN_PROJ}"]]
    if missing:
        raise WeightsError(path, f"not a hibari voice: there is no {missing[0]}{_IN_PROJ}")
    return HibariWeights(tensors, {name: rounds[f"{name}{_IN_PROJ}"] for name in ENCODERS}, strides)


def _bias_of(path: Path, graph: OnnxGraph, users: dict[str, list[int]], index: int) -> str:
    for _ in range(_TOO_FAR):
        operation = graph.operations[index]
        named = [name for name in operation.inputs if name.endswith("bias") and name in graph.constants]
        if operation.kind == "Add" and named:
            return named[0]
        following = users.get(operation.outputs[0], [])
        if len(following) != 1:
            break
        index = following[0]
    raise WeightsError(path, f"not a hibari voice: no bias follows the product {graph.operations[index].outputs[0]!r}")


def _dequantised(path: Path, graph: OnnxGraph, inputs: tuple[str, ...]) -> NDArray[np.float32]:
    """Return the matrix of a MatMulInteger, [out, in]."""
    codes = graph.constants.get(inputs[1])
    stem = inputs[1].removesuffix("_quantized")
    scale, zero = (graph.constants.get(f"{stem}_{part}") for part in ("scale", "zero_point"))
    if codes is None or scale is None or zero is None or codes.ndim != 2 or scale.size != 1 or zero.size != 1:
        raise WeightsError(path, f"tensor {inputs[1]!r:.100} is not 8-bit codes with one scale and one zero point")
    values = (codes.astype(np.float32) - np.float32(zero.item())) * np.float32(scale.item())
    return np.ascontiguousarray(values.T)
