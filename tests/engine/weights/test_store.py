"""The store against a real pip and a real wheel, served from a folder instead of an index."""

from __future__ import annotations

import hashlib
import io
import itertools
import os
import select
import subprocess
import sys
import tarfile
import textwrap
import zipfile
from pathlib import Path

import pytest

from voxlane.engine.api import EngineConfig
from voxlane.engine.errors import StoreError
from voxlane.engine.weights import catalog, store

from .hub_site import models

CONTENT = bytes(range(256)) * 4096  # 1 MiB
SECOND = b"a second file" * 1000
CATALOG = """
[tiny]
task = "chat"
architecture = "llama"
licence = "MIT"
description = "A model for tests."
parameters = 7
[[tiny.files]]
name = "tiny.gguf"
source = "pypi:tiny-model==1.0#tiny_model/tiny.gguf"
size = {size}
sha256 = "{sha256}"
"""
PAIR = """
[[tiny.files]]
name = "second.bin"
source = "pypi:tiny-model==1.0#tiny_model/second.bin"
size = {size}
sha256 = "{sha256}"
"""


def described(template: str, content: bytes) -> str:
    return template.format(size=len(content), sha256=hashlib.sha256(content).hexdigest())


def write_wheel(folder: Path, content: bytes = CONTENT) -> Path:
    folder.mkdir(exist_ok=True)
    wheel = folder / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny_model/__init__.py", "raise SystemExit('a model package must never be imported')\n")
        archive.writestr("tiny_model/tiny.gguf", content)
        archive.writestr("tiny_model/second.bin", SECOND)
        archive.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(
            "tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    return wheel


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Point the store at an empty cache and a catalog of one tiny model, and pip at a folder that holds its wheel."""
    folder = tmp_path / "wheels"
    write_wheel(folder)
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv(store.CACHE_VARIABLE, str(tmp_path / "cache"))
    use_catalog(monkeypatch, described(CATALOG, CONTENT))
    return folder


KEPT = Path("cache", "downloads", "tiny", "tiny_model__1.0", "tiny_model-1.0-py3-none-any.whl")
"""Where an earlier pull leaves a wheel that it could not use yet: from there it is taken without pip."""


def keep_wheel(wheels: Path, content: bytes = CONTENT) -> Path:
    """Write the wheel to where an earlier pull leaves it."""
    kept = wheels.parent / KEPT
    kept.parent.mkdir(parents=True, exist_ok=True)
    return write_wheel(wheels, content).rename(kept)


def use_catalog(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(store, "load_catalog", lambda: catalog.parse_catalog(text))


def leftovers(cache: Path) -> set[str]:
    """Return the files under the cache, without locks."""
    return {str(p.relative_to(cache)) for p in cache.rglob("*") if p.is_file() and p.parent.name != "locks"}


def test_pull_path_list_remove(wheels: Path, tmp_path: Path) -> None:
    assert [listing.path for listing in store.list_models()] == [None]
    with pytest.raises(StoreError, match="run `voxlane models pull tiny`"):
        store.path("tiny")
    seen: list[float] = []
    path = store.pull("tiny", seen.append)
    assert path == tmp_path / "cache" / "models" / "tiny" / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    assert store.path("tiny") == path
    assert [listing.path for listing in store.list_models()] == [path]
    assert leftovers(tmp_path / "cache") == {"models/tiny/tiny.gguf"}
    store.remove("tiny")
    assert leftovers(tmp_path / "cache") == set()
    with pytest.raises(StoreError, match="tiny is not here"):
        store.remove("tiny")


def test_several_files_make_a_folder(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_catalog(monkeypatch, described(CATALOG, CONTENT) + described(PAIR, SECOND))
    keep_wheel(wheels)
    path = store.pull("tiny")
    assert path == tmp_path / "cache" / "models" / "tiny"
    assert (path / "second.bin").read_bytes() == SECOND
    (path / "second.bin").unlink()
    with pytest.raises(StoreError, match="is not here"):
        store.path("tiny")


def test_a_file_in_parts_is_joined(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = '["pypi:tiny-model==1.0#tiny_model/second.bin", "pypi:tiny-model==1.0#tiny_model/tiny.gguf"]'
    text = described(CATALOG, SECOND + CONTENT)
    use_catalog(monkeypatch, text.replace('source = "pypi:tiny-model==1.0#tiny_model/tiny.gguf"', f"sources = {parts}"))
    seen: list[float] = []
    keep_wheel(wheels)
    assert store.pull("tiny", seen.append).read_bytes() == SECOND + CONTENT
    assert seen == sorted(seen)


def write_sdist(folder: Path) -> Path:
    """Write a source archive that leaves a file behind if anything in it is run."""
    escape = f"open({str(folder / 'was-run')!r}, 'w')\n"
    files = {
        "pyproject.toml": b'[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n',
        "setup.py": escape.encode(), "hatch_build.py": escape.encode(), "tiny_source/__init__.py": escape.encode(),
        "data/b.bin": b"second", "data/a.bin": b"first ", "data/c.txt": b"no part of it",
    }  # fmt: skip
    path = folder / "tiny_source-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"tiny_source-1.0/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


def use_sdist(monkeypatch: pytest.MonkeyPatch, archive: Path, members: str, sha256: str | None = None) -> None:
    sha256 = sha256 or hashlib.sha256(archive.read_bytes()).hexdigest()
    source = f"sdist:tiny-source==1.0@{sha256}#tiny_source-1.0/{members}"
    text = described(CATALOG, b"first second").replace("pypi:tiny-model==1.0#tiny_model/tiny.gguf", source)
    use_catalog(monkeypatch, text)


def test_members_of_a_source_archive_are_joined_and_nothing_is_run(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_sdist(monkeypatch, write_sdist(wheels), "data/*.bin")
    assert store.pull("tiny").read_bytes() == b"first second"
    assert not (wheels / "was-run").exists()
    assert leftovers(tmp_path / "cache") == {"models/tiny/tiny.gguf"}


def test_a_source_archive_that_is_not_the_one(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = write_sdist(wheels)
    use_sdist(monkeypatch, archive, "data/*.bin", "0" * 64)
    with pytest.raises(StoreError, match=r"pip could not download tiny-source==1\.0: .*HASHES"):
        store.pull("tiny")
    use_sdist(monkeypatch, archive, "other/*.bin")
    kept = tmp_path / "cache" / "downloads" / "tiny" / "tiny_source__1.0" / archive.name
    whole = archive.read_bytes()
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(whole)
    with pytest.raises(StoreError, match=r"has no member tiny_source-1\.0/other/\*\.bin"):
        store.pull("tiny")
    use_sdist(monkeypatch, archive, "data/*.bin")
    for damaged in (whole[: len(whole) // 2], b"no archive at all"):
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(damaged)
        with pytest.raises(StoreError, match="damaged and was removed"):
            store.pull("tiny")
    assert not (wheels / "was-run").exists()


def test_a_second_pull_needs_no_index_and_repairs_damage(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_wheel(wheels)
    path = store.pull("tiny")
    path.write_bytes(b"x" + CONTENT[1:])
    write_wheel(wheels)
    assert store.pull("tiny").read_bytes() == CONTENT
    next(wheels.glob("*.whl")).unlink()
    assert store.pull("tiny").read_bytes() == CONTENT


@pytest.mark.parametrize("content", [b"x" + CONTENT[1:], CONTENT[:-1], CONTENT + b"x"], ids=["hash", "short", "long"])
def test_a_wrong_file_is_removed_and_named(content: bytes, wheels: Path, tmp_path: Path) -> None:
    keep_wheel(wheels, content)
    with pytest.raises(StoreError, match=r"tiny\.gguf: expected .* and got .*; it was removed") as caught:
        store.pull("tiny")
    assert "\n" not in str(caught.value)
    if len(content) == len(CONTENT):
        assert hashlib.sha256(CONTENT).hexdigest() in str(caught.value)
        assert hashlib.sha256(content).hexdigest() in str(caught.value)
    assert leftovers(tmp_path / "cache") == set()
    keep_wheel(wheels)
    assert store.pull("tiny").read_bytes() == CONTENT


def test_a_damaged_wheel_and_a_missing_member(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = keep_wheel(wheels)
    use_catalog(monkeypatch, described(CATALOG, CONTENT).replace("tiny_model/tiny.gguf", "tiny_model/other.gguf"))
    with pytest.raises(StoreError, match=r"has no member tiny_model/other\.gguf"):
        store.pull("tiny")
    use_catalog(monkeypatch, described(CATALOG, CONTENT))
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(b"PK but no archive")
    with pytest.raises(StoreError, match="damaged and was removed"):
        store.pull("tiny")
    write_wheel(wheels)
    assert store.pull("tiny").read_bytes() == CONTENT


def test_no_such_release(wheels: Path) -> None:
    next(wheels.glob("*.whl")).unlink()
    with pytest.raises(StoreError, match=r"pip could not download tiny-model==1\.0: No matching distribution"):
        store.pull("tiny")


def test_offline(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nothing listens on the discard port
    with pytest.raises(StoreError) as caught:
        store.pull("tiny")
    target = tmp_path / "cache" / "models" / "tiny" / "tiny.gguf"
    assert str(caught.value) == (
        "could not reach the package index for tiny-model==1.0; "
        f"check your network or pip settings, or copy the file to {target}"
    )
    assert leftovers(tmp_path / "cache") == set()
    target.parent.mkdir(parents=True)
    target.write_bytes(CONTENT)  # the advice of the message works
    assert store.path("tiny") == target


def test_no_space(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_catalog(monkeypatch, described(CATALOG, CONTENT).replace(f"size = {len(CONTENT)}", f"size = {1 << 60}"))
    with pytest.raises(StoreError, match=r"no space left for tiny in .*: \d+ MiB are needed and \d+ MiB are free"):
        store.pull("tiny")


def test_a_cache_that_cannot_be_written(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(store.CACHE_VARIABLE, str(tmp_path / "file"))
    with pytest.raises(StoreError, match=r"tiny: .*Not a directory"):
        store.pull("tiny")


def test_resolve(wheels: Path, tmp_path: Path) -> None:
    local = tmp_path / "mine.gguf"
    local.write_bytes(b"GGUF")
    assert store.resolve(local) == local
    assert store.resolve(str(tmp_path)) == tmp_path
    with pytest.raises(StoreError, match="no such file"):
        store.resolve(str(tmp_path / "other.gguf"))
    with pytest.raises(StoreError, match="no model 'nothing'"):
        store.resolve("nothing")
    with pytest.raises(StoreError, match="models pull tiny"):
        store.resolve("tiny", pull_missing=False)
    keep_wheel(wheels)
    assert store.resolve("tiny").read_bytes() == CONTENT
    with pytest.raises(StoreError, match="neither pypi:"):
        store.resolve("hf:only-one-part")


def test_hub_models_that_are_not_here(wheels: Path) -> None:
    with pytest.raises(StoreError, match="run `voxlane models pull hf:owner/repo`"):
        store.path("hf:owner/repo")


SLOW_PIP = """
import os, pathlib, runpy, sys
if sys.argv[1] == "download":
    with pathlib.Path(os.environ["COUNTER"]).open("a") as file:
        file.write("pip\\n")
if sys.argv[1] == "download" and "BEGUN" in os.environ:
    pathlib.Path(os.environ["BEGUN"]).write_bytes(b"!")
    os.read(os.open(os.environ["GATE"], os.O_RDONLY), 1)  # wait to be let go
sys.path.remove(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
del sys.modules["pip"]
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""


@pytest.fixture
def counted_pip(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a pip in front of pip that writes a line to the returned file each time it downloads."""
    package = tmp_path / "front" / "pip"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(textwrap.dedent(SLOW_PIP))
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.setenv("COUNTER", str(tmp_path / "runs"))
    return tmp_path / "runs"


CHILD = """
import sys
from voxlane.engine.weights import catalog, store
store.load_catalog = lambda: catalog.parse_catalog(sys.argv[1])
store.pull("tiny")
"""


def start_child(**environment: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, described(CATALOG, CONTENT)],
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
    )


def test_two_processes_fetch_once(counted_pip: Path) -> None:
    children = [start_child() for _ in range(2)]
    assert [child.wait(120) for child in children] == [0, 0]
    assert store.path("tiny").read_bytes() == CONTENT
    assert counted_pip.read_text() == "pip\n"


@pytest.mark.soak
def test_a_killed_pull_leaves_nothing_in_the_way(counted_pip: Path, tmp_path: Path) -> None:
    for name in ("begun", "gate"):
        os.mkfifo(tmp_path / name)
    begun, gate = (
        os.open(tmp_path / name, os.O_RDWR) for name in ("begun", "gate")
    )  # open at both ends: no open() blocks
    try:
        child = start_child(BEGUN=str(tmp_path / "begun"), GATE=str(tmp_path / "gate"))
        assert select.select([begun], [], [], 60)[0], "pip never ran"
        child.kill()
        child.wait(60)
        cache = tmp_path / "cache"
        assert any((cache / "downloads" / "tiny").glob("pip-*"))
        os.write(gate, b"!")  # the orphaned pip goes on while we pull
        assert store.pull("tiny").read_bytes() == CONTENT
        assert leftovers(cache) == {"models/tiny/tiny.gguf"}
    finally:
        os.close(begun)
        os.close(gate)


def test_the_command(wheels: Path, tmp_path: Path) -> None:
    assert models("path", "tiny") == (1, "", "voxlane: tiny is not here: run `voxlane models pull tiny`\n")
    keep_wheel(wheels)
    path = tmp_path / "cache" / "models" / "tiny" / "tiny.gguf"
    assert models("pull", "tiny") == models("path", "tiny") == (0, f"{path}\n", "")
    assert models() == models("list")
    lines = models()[1].splitlines()
    assert lines[0].split() == ["NAME", "TASK", "SIZE", "LICENCE", "HERE"]
    assert lines[1].split() == ["tiny", "chat", "1", "MB", "MIT", "yes"]
    assert lines[2].strip() == catalog.parse_catalog(described(CATALOG, CONTENT))["tiny"].description
    assert models("rm", "tiny") == (0, "", "")
    assert not path.exists()


def test_every_default_model_is_listed_with_what_it_is_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(store.CACHE_VARIABLE, str(tmp_path))  # nothing has been pulled
    lines = models()[1].splitlines()
    rows = {row.split()[0]: (row.split()[1:], below) for row, below in itertools.pairwise(lines) if row[:1].strip()}
    for model in catalog.load_catalog().values():
        (task, *_, licence, here), below = rows[model.name]
        assert (task, licence, here) == (model.task, model.licence, "yes" if model.package else "no")
        assert model.description in below
    usual = {name for name, (_, below) in rows.items() if "The default." in below}
    assert usual == {EngineConfig().tts_model}  # the models that chat and listen are the machine's choice


def test_a_model_that_a_package_brings_is_neither_pulled_nor_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    for action in ("path", "pull"):
        assert (Path(models(action, "hibari")[1].strip()) / "__init__.py").is_file()
    status, _, errors = models("rm", "hibari")
    assert status == 1
    assert "belongs to the package hibari-tts" in errors
    assert store.task_of("hibari") == "tts"
    packaged = "".join(f'{key} = "p"\n' for key in ("task", "architecture", "licence", "description"))
    use_catalog(monkeypatch, f'[voice]\n{packaged}parameters = 1\nsize = 9\npackage = "no-such-package"\n')
    assert [(listing.path, listing.model.size) for listing in store.list_models()] == [(None, 9)]
    for action in ("path", "pull"):
        assert models(action, "voice") == (1, "", "voxlane: voice is not here: run `pip install no-such-package`\n")


def test_the_store_does_not_load_torch() -> None:
    code = "import sys, voxlane.engine.weights.command; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
