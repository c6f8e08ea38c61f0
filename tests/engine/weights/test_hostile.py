"""Damaged and forged model files: a one-line WeightsError, nothing else, and no memory spent before the check."""

from __future__ import annotations

import contextlib
import json
import struct
import tempfile
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from voxlane.engine.errors import WeightsError
from voxlane.engine.text.tokenizer import Tokenizer
from voxlane.engine.weights.files import open_weights
from voxlane.engine.weights.gguf import GGUFFile
from voxlane.engine.weights.safetensors import SafetensorsDirectory

from .conftest import WriteGGUF

PEAK_BYTES = 4 * 1024 * 1024
MAGIC = b"GGUF" + struct.pack("<I", 3)


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def header(tensors: int, fields: int, rest: bytes = b"") -> bytes:
    return MAGIC + struct.pack("<QQ", tensors, fields) + rest


def tensor(name: bytes, dimensions: tuple[int, ...], kind: int, offset: int) -> bytes:
    shape = struct.pack(f"<{len(dimensions)}Q", *dimensions)
    return text(name) + struct.pack("<I", len(dimensions)) + shape + struct.pack("<IQ", kind, offset)


FORGED = {
    "empty": (b"", "not a model file"),
    "not a model": (b"hello, world, this is no model", "not a model file"),
    "magic only": (b"GGUF", "truncated"),
    "version 1": (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "2^63 tensors": (header(1 << 63, 0), "truncated"),
    "2^63 fields": (header(0, 1 << 63), "truncated"),
    "2^40 byte key": (header(0, 1, struct.pack("<Q", 1 << 40) + bytes(99)), "truncated"),
    "2^62 strings": (header(0, 1, text(b"a") + struct.pack("<IIQ", 9, 8, 1 << 62) + bytes(99)), "truncated"),
    "2^62 numbers": (header(0, 1, text(b"a") + struct.pack("<IIQ", 9, 4, 1 << 62) + bytes(99)), "truncated"),
    "a string too long": (header(0, 1, text(b"a") + struct.pack("<IIQQ", 9, 8, 2, 1 << 60) + bytes(99)), "truncated"),
    "deep nesting": (header(0, 1, text(b"a") + b"\t\0\0\0" + struct.pack("<IQ", 9, 1) * 40), "nested too deeply"),
    "unknown type": (header(0, 1, text(b"a") + struct.pack("<I", 77) + bytes(99)), "unknown type 77"),
    "unknown item type": (header(0, 1, text(b"a") + struct.pack("<IIQ", 9, 77, 1) + bytes(99)), "unknown type 77"),
    "bad UTF-8 key": (header(0, 1, text(b"\xff\xfe") + bytes(99)), "UTF-8"),
    "bad UTF-8 item": (header(0, 1, text(b"a") + struct.pack("<IIQ", 9, 8, 1) + text(b"\xff")), "UTF-8"),
    "key twice": (header(0, 2, (text(b"a") + struct.pack("<IB", 0, 1)) * 2 + bytes(99)), "occurs twice"),
    "alignment 3": (header(0, 1, text(b"general.alignment") + struct.pack("<II", 4, 3)), "alignment"),
    "alignment 0": (header(0, 1, text(b"general.alignment") + struct.pack("<II", 4, 0)), "alignment"),
    "9 dimensions": (header(1, 0, tensor(b"t", (1,) * 9, 0, 0)), "9 dimensions"),
    "dimension 0": (header(1, 0, tensor(b"t", (0, 4), 0, 0)), "impossible shape"),
    "2^64 elements": (header(1, 0, tensor(b"t", (1 << 32, 1 << 32), 0, 0) + bytes(999)), "beyond the end"),
    "far offset": (header(1, 0, tensor(b"t", (4,), 0, 1 << 62) + bytes(999)), "beyond the end"),
    "crooked offset": (header(1, 0, tensor(b"t", (4,), 0, 5) + bytes(999)), "not aligned"),
    "half a block": (header(1, 0, tensor(b"t", (33,), 8, 0) + bytes(999)), "impossible shape"),
    "tensor type 999": (header(1, 0, tensor(b"t", (4,), 999, 0) + bytes(999)), "unknown type 999"),
    "tensor twice": (header(2, 0, tensor(b"t", (4,), 0, 0) * 2 + bytes(999)), "occurs twice"),
    "overlap": (header(2, 0, tensor(b"t", (64,), 0, 0) + tensor(b"u", (4,), 0, 32) + bytes(999)), "overlaps"),
    "no metadata": (header(0, 0, bytes(99)), "general.architecture"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGED)
def test_forged_headers(name: str, tmp_path: Path) -> None:
    data, reason = FORGED[name]
    path = tmp_path / "forged.gguf"
    path.write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(WeightsError) as caught:
            open_weights(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert reason in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    assert peak < PEAK_BYTES


def test_a_header_over_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "huge.gguf"
    with open(path, "wb") as file:  # sparse: takes no disk
        file.write(header(0, 1, text(b"a") + struct.pack("<IIQ", 9, 0, 100 << 20)))
        file.truncate(200 << 20)
    with pytest.raises(WeightsError, match="header is larger than 64 MiB"):
        GGUFFile(path)


@pytest.mark.parametrize("keep", [0.05, 0.3, 0.9, 0.999])
def test_truncated_files(keep: float, write_gguf: WriteGGUF) -> None:
    path = write_gguf("llama")
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(WeightsError, match="truncated or damaged"):
        open_weights(path)


def vocabulary(writer: gguf.GGUFWriter) -> None:
    """Add a byte-level vocabulary with one merge and a template."""
    letters = [chr(code) for code in range(0x21, 0x45)]
    tokens = [*letters, "!#", "<|im_start|>", "<|im_end|>", "<x>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * (len(letters) + 1) + [3, 3, 4])
    writer.add_token_merges(["! #"])
    writer.add_eos_token_id(38)
    writer.add_chat_template("{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}")


def use(path: Path) -> None:
    """Open everything a model file holds."""
    file = open_weights(path)
    for name in file.names():
        file.tensor(name)
        file.blocks(name)
    tokenizer = Tokenizer.open(path)
    tokenizer.decode(range(tokenizer.vocab_size))
    tokenizer.encode("!#$ hi")


Edits = st.lists(st.tuples(st.integers(0, 1 << 30), st.binary(min_size=1, max_size=9)), min_size=1, max_size=4)


def edited(data: bytes, edits: list[tuple[int, bytes]], span: int) -> bytes:
    result = bytearray(data)
    for position, patch in edits:
        start = position % span
        result[start : start + len(patch)] = patch
    return bytes(result)


@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=Edits)
def test_any_damage_to_a_gguf_header_is_a_weights_error(edits: list[tuple[int, bytes]], write_gguf: WriteGGUF) -> None:
    path = write_gguf("llama", extra=vocabulary, name="whole.gguf")
    use(path)  # whole, it opens
    data = path.read_bytes()
    end = data.index(b"blk.1.ffn_down.weight") + 64
    damaged = path.with_name("damaged.gguf")
    damaged.write_bytes(edited(data, edits, end))
    reason = ""
    try:
        use(damaged)
    except WeightsError as error:
        reason = str(error)
    assert not reason or reason.startswith(f"{damaged}: ")
    assert "\n" not in reason


# ---- safetensors


def write_checkpoint(folder: Path) -> Path:
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    save_file({"a": np.ones((4, 3), np.float32), "b": np.arange(5, dtype=np.float16)}, folder / "model.safetensors")
    return folder


def raw(folder: Path, description: object, data: bytes = b"") -> Path:
    encoded = description if isinstance(description, bytes) else json.dumps(description).encode()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(encoded)) + encoded + data)
    return folder


def entry(dtype: object = "F32", shape: object = (1,), offsets: object = (0, 4)) -> dict[str, object]:
    return {"t": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


@pytest.mark.parametrize(
    ("description", "reason"),
    [
        (b"{", "not valid JSON"), (b"[" * 100_000, "not valid JSON"), (b'{"t": NaN}', "not a JSON number"),
        (b'{"t": 1, "t": 2}', "twice"), ([1], "not a JSON object"), ({"t": 5}, "not described"),
        (entry(dtype="F99"), "unknown type"), (entry(shape=[-1]), "impossible shape"),
        (entry(shape=[True]), "impossible shape"), (entry(shape=[1 << 60]), "impossible shape"),
        (entry(shape=[2]), "does not fill its place"), (entry(offsets=[0, 1 << 50]), "beyond the end"),
        (entry(offsets=[4, 0]), "beyond the end"), (entry(offsets=[0, 4]) | {"u": entry()["t"]}, "overlaps"),
        ({}, "no tensors"),
    ],
)  # fmt: skip
def test_forged_safetensors(description: object, reason: str, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=reason) as caught:
        SafetensorsDirectory(raw(tmp_path, description, bytes(4)))
    assert "\n" not in str(caught.value)


def test_a_safetensors_header_longer_than_its_file(tmp_path: Path) -> None:
    folder = raw(tmp_path, {})
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 62) + b"{}")
    with pytest.raises(WeightsError, match="longer than the file"):
        SafetensorsDirectory(folder)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", 50 << 20))
        file.truncate(60 << 20)
    with pytest.raises(WeightsError, match="larger than 16 MiB"):
        SafetensorsDirectory(folder)


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "..", "a/b.safetensors", "a\\b", "a\0b", ""])
def test_an_index_cannot_point_elsewhere(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    save_file({"a": np.ones(3, np.float32)}, tmp_path / "secret.safetensors")
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(WeightsError, match="not a plain file name"):
        open_weights(folder)


@settings(max_examples=examples(300), deadline=None)
@given(edits=Edits, keep=st.integers(0, 400))
def test_any_damage_to_safetensors_is_a_weights_error(edits: list[tuple[int, bytes]], keep: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = write_checkpoint(Path(name))
        file = folder / "model.safetensors"
        data = file.read_bytes()
        file.write_bytes(edited(data, edits, len(data))[: max(keep, 1)])
        with contextlib.suppress(WeightsError):
            weights = open_weights(folder)
            for tensor_name in weights.names():
                weights.tensor(tensor_name)
