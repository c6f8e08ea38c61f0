"""ONNX files as data: a small one and the voice's; damage is a WeightsError."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from voxlane.engine.errors import WeightsError
from voxlane.engine.models.hibari.model import Hibari
from voxlane.engine.models.hibari.weights import read_weights
from voxlane.engine.weights.importers.onnx import read_graph


def field(number: int, payload: bytes) -> bytes:
    assert len(payload) < 128
    return bytes((number << 3 | 2, len(payload))) + payload


FLOATS = bytes((8, 2, 16, 1)) + field(8, b"a") + field(4, np.array([1, -2], "<f4").tobytes())
CODES = field(1, b"\x01\x03") + bytes((16, 3)) + field(8, b"b") + field(5, b"\x05\xff\xff\xff\xff\x0f\x00")
RAW = bytes((8, 2, 16, 7)) + field(8, b"c") + field(9, np.array([7, -7], "<i8").tobytes())
ATTRIBUTE = field(5, field(1, b"pads") + field(8, b"\x03"))
NODE = field(1, b"a") + field(1, b"b") + field(2, b"y") + field(4, b"Conv") + ATTRIBUTE
GRAPH = field(1, NODE) + b"".join(field(5, tensor) for tensor in (FLOATS, CODES, RAW))
MODEL = bytes((8, 7, 13, 0, 0, 0, 0)) + field(7, GRAPH)


def test_a_small_one(tmp_path: Path) -> None:
    (tmp_path / "small.onnx").write_bytes(MODEL)
    graph = read_graph(tmp_path / "small.onnx")
    assert {name: values.tolist() for name, values in graph.constants.items()} == {
        "a": [1.0, -2.0],
        "b": [[5, -1, 0]],
        "c": [7, -7],
    }
    (node,) = graph.operations
    assert (node.kind, node.inputs, node.outputs, node.integers) == ("Conv", ("a", "b"), ("y",), {"pads": [3]})


@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, len(MODEL) - 1), st.integers(0, 255), st.booleans())
def test_damage_is_an_error_and_nothing_else(tmp_path: Path, place: int, byte: int, cut: bool) -> None:
    damaged = MODEL[:place] if cut else MODEL[:place] + bytes([byte]) + MODEL[place + 1 :]
    (tmp_path / "damaged.onnx").write_bytes(damaged)
    with contextlib.suppress(WeightsError):
        graph = read_graph(tmp_path / "damaged.onnx")
        # A number of one byte becomes one of at most eight: no damage makes more of the file than is in it.
        assert sum(values.nbytes for values in graph.constants.values()) <= 8 * len(damaged)


def test_a_voices_weights(tmp_path: Path) -> None:
    weights = read_weights(Hibari().file())
    assert weights.rounds == {"m.text": 4, "pn.text": 6}
    assert weights.tensors["m.head.weight"].shape == (3005, 256)
    assert [weights.strides[f"pn.pro.{index}.dw.weight"] for index in range(6)] == [1, 2, 4, 8, 1, 2]
    (tmp_path / "other.onnx").write_bytes(MODEL)
    with pytest.raises(WeightsError, match="not a hibari voice"):
        read_weights(tmp_path / "other.onnx")
