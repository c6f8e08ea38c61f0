"""Matrices that were packed once are read again: the same bits, and anything else is packed anew."""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from voxlane.engine.kernels.linear.linear import PACKING, PackedPart, embed, pack_part
from voxlane.engine.models import kept_matrices
from voxlane.engine.models.decoder import Decoder
from voxlane.engine.models.kept_matrices import KeptMatrices
from voxlane.engine.models.registry import load_model
from voxlane.engine.weights import store
from voxlane.engine.weights.files import open_weights
from voxlane.engine.weights.tensors import quantise

MODEL = "smollm2-135m-instruct"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, in which little is enough to be kept."""
    monkeypatch.setattr(kept_matrices, "LEAST_BYTES", 1)
    monkeypatch.setenv("VOXLANE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "packed"


def part(seed: int = 0) -> PackedPart:
    return pack_part(quantise(torch.randn(40, 64, generator=torch.Generator().manual_seed(seed))))


def source(folder: Path, content: bytes = b"weights") -> Path:
    path = folder.parent.parent / "model.gguf"
    path.write_bytes(content)
    return path


def keep(path: Path) -> Path:
    kept = KeptMatrices([path])
    kept.put("one", part(1))
    kept.put("two", part(2))
    kept.save()
    (made,) = store.packed_folder(path).glob("*.packed")
    return made


def test_the_layout_has_a_version() -> None:
    """If this fails, matrices that were kept have another layout than the kernels read: raise PACKING."""
    codes = quantise((torch.arange(20 * 64).view(20, 64) % 37 - 18).float())
    assert (PACKING, zlib.crc32(pack_part(codes).data.numpy().tobytes())) == (1, 3105888958)


def test_what_was_kept_comes_back(folder: Path) -> None:
    path = source(folder)
    keep(path)
    again = KeptMatrices([path])
    for name, seed in (("one", 1), ("two", 2)):
        found = again.get(name, (40, 64))
        assert found is not None
        assert torch.equal(found.data, part(seed).data)
        assert found.data.data_ptr() % 64 == 0
    assert again.get("one", (64, 40)) is None
    assert again.get("three", (40, 64)) is None


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)


def lengthen(path: Path) -> None:
    data = bytearray(path.read_bytes())
    at = data.index(b"\n", data.index(b"\n") + 1) + 1
    data[at : at + 8] = (1 << 62).to_bytes(8, "little")
    path.write_bytes(data)


def foreign(path: Path) -> None:
    path.write_bytes(b"\x80" * 4096)


@pytest.mark.parametrize("harm", [cut, empty, damage, lengthen, foreign])
def test_a_file_that_is_damaged_is_packed_anew(
    folder: Path, harm: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    path = source(folder)
    made = keep(path)
    harm(made)
    kept = KeptMatrices([path])
    assert kept.get("one", (40, 64)) is None
    assert len(caplog.records) == 1
    assert keep(path) == made
    assert KeptMatrices([path]).get("one", (40, 64)) is not None


def test_another_state_of_the_model_is_packed_anew_and_the_old_one_goes(folder: Path) -> None:
    before = keep(source(folder))
    path = source(folder, b"other weights")
    assert KeptMatrices([path]).get("one", (40, 64)) is None
    assert keep(path) != before
    assert not before.exists()


def test_a_model_with_one_adapter_after_another_keeps_two(folder: Path) -> None:
    path, made = source(folder), []
    for number in range(4):
        adapter = path.with_name(f"adapter{number}")
        adapter.touch()
        kept = KeptMatrices([path, adapter])
        kept.put("one", part())
        kept.save()
        made.append(folder / kept_matrices.file_name([path, adapter]))
    assert [one.exists() for one in made] == [False, False, True, True]


def test_a_folder_that_cannot_be_written_costs_one_line(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = source(folder)
    folder.parent.mkdir(exist_ok=True)
    folder.write_bytes(b"in the way")
    kept = KeptMatrices([path])
    kept.put("one", part())
    kept.save()
    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.WARNING]
    assert "not kept" in caplog.text


def test_a_full_disk_costs_one_line_and_leaves_nothing(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(before: Path, after: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    path = source(folder)
    kept = KeptMatrices([path])
    kept.put("one", part())
    kept.save()
    assert "not kept: No space left on device" in caplog.text
    assert list(folder.iterdir()) == []


def test_removing_a_model_removes_what_was_packed_of_it(folder: Path) -> None:
    path = source(folder)
    made = keep(path)
    store._remove_packed()
    assert made.exists()
    path.unlink()
    store._remove_packed()
    assert not made.exists()


def test_a_model_of_kept_matrices_is_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VOXLANE_CACHE")
    path = Path(store.resolve(MODEL))
    monkeypatch.setenv("VOXLANE_CACHE", str(folder.parent))
    first = load_model(open_weights(path))
    monkeypatch.setattr("voxlane.engine.models.loading.pack_part", None)  # nothing is packed again
    second = load_model(open_weights(path))
    assert isinstance(first, Decoder)
    assert isinstance(second, Decoder)
    assert second.parameters == first.parameters
    rows = torch.tensor([1, 77, 4000])
    assert torch.equal(embed(rows, first._embedding), embed(rows, second._embedding))
    hidden = torch.randn(2, first.config.hidden_size, generator=torch.Generator().manual_seed(1))
    assert torch.equal(first.logits(hidden), second.logits(hidden))
