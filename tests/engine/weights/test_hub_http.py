"""hf: pulls against a hub that redirects, refuses, changes its files, and loses connections, as the real one does."""

from __future__ import annotations

import hashlib
import json
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from huggingface_hub import constants

from voxlane.engine.errors import StoreError
from voxlane.engine.weights import store

from .file_server import Cut, FileServer, RefusedAnswer
from .hub_site import BIG, CDN, CHUNK, COMMIT, FILES, REPO, hub_on_this_machine, publish, pull

NAME = f"hf:{REPO}"
RESOLVE, API = f"/{REPO}/resolve/", f"/api/models/{REPO}"
OTHER = BIG[::-1]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """Point the library at a hub on this machine, and the store at an empty cache."""
    with hub_on_this_machine(tmp_path, monkeypatch) as site:
        yield site


def fail(name: str = NAME) -> str:
    """Pull without success; return the error, which is one line. Nothing is left that passes for a model."""
    with pytest.raises(StoreError) as caught:
        pull(name)
    assert "\n" not in str(caught.value)
    assert store.hub_models() == []
    assert not store.present(name)
    assert not list(store.cache_root().rglob("*.incomplete"))
    return str(caught.value)


def weights_of(path: Path) -> bytes:
    return (path / "model.safetensors").read_bytes()


def continue_after_a_cut(hub: FileServer, change: str) -> Path:
    """Cut a pull in the big file, let the server change in the meantime, and return what was pulled."""
    cut = hub.cuts[CDN] = Cut(CHUNK + 4096, reset=change == "reset")

    def go_on() -> None:
        hub.cuts.clear()
        match change:
            case "ignores ranges":
                hub.whole.add(CDN)
            case "refuses ranges":
                hub.refusals[CDN] = RefusedAnswer(416, {"Content-Range": "bytes */7"}, ranged=True)
            case "has another file":
                publish(hub, FILES | {"model.safetensors": OTHER})
        cut.now.set()

    return pull(NAME, go_on)[1]


@pytest.mark.parametrize(
    ("change", "ranges"),
    [
        ("nothing", [None, f"bytes={CHUNK}-"]),
        ("reset", [None, f"bytes={CHUNK}-"]),
        ("ignores ranges", [None, f"bytes={CHUNK}-"]),
        ("refuses ranges", [None, f"bytes={CHUNK}-", None]),
    ],
)
def test_a_torn_connection(hub: FileServer, change: str, ranges: list[str | None]) -> None:
    assert weights_of(continue_after_a_cut(hub, change)) == BIG
    assert hub.asked(CDN) == ranges


def test_a_file_that_changes_between_two_parts_is_fetched_anew(hub: FileServer) -> None:
    """The library joins the halves of two files. The hash tells, and the new file is taken whole."""
    path = continue_after_a_cut(hub, "has another file")
    assert weights_of(path) == OTHER
    assert hub.asked(CDN) == [None, f"bytes={CHUNK}-", None]
    blobs = {one.name for one in (path.parents[1] / "blobs").iterdir()}
    assert hashlib.sha256(OTHER).hexdigest() in blobs
    assert hashlib.sha256(BIG).hexdigest() not in blobs


def test_bytes_with_another_hash_are_refused(hub: FileServer) -> None:
    hub.files[CDN] = OTHER
    refused = "owner/repo sent other bytes than the hash that it announced; they were removed; try again later"
    assert fail() == refused
    assert hub.asked(CDN) == [None, None]
    hub.files[CDN] = BIG
    assert weights_of(pull(NAME)[1]) == BIG
    assert hub.asked("config.json") == [None]  # what was right is not fetched again


def test_a_small_file_with_another_hash_is_refused(hub: FileServer) -> None:
    for revision in ("main", COMMIT):
        hub.files[f"{RESOLVE}{revision}/config.json"] = b"[]"
    assert fail(f"{NAME}#config.json").startswith("owner/repo sent other bytes than the hash")


def test_a_server_with_plain_hashes_of_small_files(hub: FileServer) -> None:
    """A mirror of the hub need not name small files by git's hash."""
    plain = hashlib.sha1(FILES["config.json"]).hexdigest()
    for revision in ("main", COMMIT):
        hub.headers[f"{RESOLVE}{revision}/config.json"]["ETag"] = f'"{plain}"'
    assert pull(f"{NAME}#config.json")[1].read_bytes() == FILES["config.json"]


GATED = {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to model owner/repo is restricted."}
BAD_TOKEN = {"X-Error-Message": "Invalid credentials in Authorization header"}


@pytest.mark.parametrize(
    ("where", "status", "headers", "says"),
    [
        (
            RESOLVE, 401, GATED,
            "owner/repo is gated; accept its terms on https://huggingface.co/owner/repo, "
            "then run `hf auth login` or set HF_TOKEN",
        ),
        (
            "/", 401, {"X-Error-Code": "RepoNotFound"},
            "Hugging Face has no repository owner/repo, or it is private; "
            "check its name; for a private one run `hf auth login` or set HF_TOKEN",
        ),
        ("/", 404, {"X-Error-Code": "RevisionNotFound"}, "owner/repo has no revision main"),
        (
            API, 429, {"Retry-After": "37"},
            "Hugging Face allows no more requests for now, asked for owner/repo; pull again in 37 s",
        ),
        (
            API, 503, {},
            "Hugging Face answered 503 for owner/repo; it has a problem of its own: pull again later",
        ),
        (
            "/cdn", 502, {},
            "Hugging Face answered 502 for owner/repo; it has a problem of its own: pull again later",
        ),
        ("/cdn", 403, {}, "Hugging Face answered 403 for owner/repo"),
        (
            "/", 401, BAD_TOKEN,
            "Hugging Face answered 401 for owner/repo; it asks for a token: run `hf auth login`, or set HF_TOKEN",
        ),
    ],
)  # fmt: skip
def test_a_refusal_says_what_to_do(
    hub: FileServer, where: str, status: int, headers: dict[str, str], says: str
) -> None:
    hub.refusals[where] = RefusedAnswer(status, headers)
    assert fail() == says


@pytest.mark.parametrize(
    ("where", "status", "headers", "says"),
    [
        (
            RESOLVE, 403, GATED,
            "owner/repo is gated; accept its terms on https://huggingface.co/owner/repo with the account of your token",
        ),
        (
            "/", 401, BAD_TOKEN,
            "Hugging Face answered 401 for owner/repo; your token is not valid: run `hf auth login`, or set HF_TOKEN",
        ),
    ],
)  # fmt: skip
def test_a_refusal_of_a_token_says_so(
    hub: FileServer, monkeypatch: pytest.MonkeyPatch, where: str, status: int, headers: dict[str, str], says: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.refusals[where] = RefusedAnswer(status, headers)
    assert fail() == says


def test_a_hub_that_fails_after_its_listing_is_named(hub: FileServer) -> None:
    hub.refusals[RESOLVE] = RefusedAnswer(503)
    assert fail(f"{NAME}#model.safetensors") == (
        "Hugging Face answered 503 for owner/repo; it has a problem of its own: pull again later"
    )


def test_a_request_too_many_is_repeated_when_the_hub_allows_it(hub: FileServer) -> None:
    hub.refusals["/cdn"] = RefusedAnswer(429, {"Retry-After": "0"}, times=1)
    assert weights_of(pull(NAME)[1]) == BIG
    assert hub.asked(CDN) == [None, None]


def test_a_file_that_is_not_there(hub: FileServer) -> None:
    publish(hub, FILES | {f"{letter}.gguf": b"GGUF" for letter in "abcd"})
    assert fail(f"{NAME}#e.gguf") == "owner/repo has no file e.gguf; it has a.gguf, b.gguf, c.gguf and others"


def test_a_repository_without_a_model_that_can_be_loaded(hub: FileServer) -> None:
    publish(hub, {"a.gguf": b"GGUF", "config.json": b"{}"}, "owner/packed")
    assert fail("hf:owner/packed") == ("owner/packed has no safetensors; name one of its files: hf:owner/packed#a.gguf")
    publish(hub, {"pytorch_model.bin": b"a pickle", "config.json": b"{}"}, "owner/pickled")
    assert fail("hf:owner/pickled") == "owner/pickled has no safetensors; pickled weights are never fetched"
    assert not [one for one in hub.log if "/resolve/" in one.path]


def test_a_renamed_repository_is_followed(hub: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub redirects an old name to the new one on the same host: the token goes there, and no further."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.redirect_status = 307
    old = "/owner/old"
    for path in [path for path in (*hub.files, *hub.redirects) if REPO in path]:
        hub.redirects[path.replace(f"/{REPO}", old)] = path
    assert weights_of(pull("hf:owner/old")[1]) == BIG
    resolved = {one.authorization for one in hub.log if "/resolve/" in one.path}
    assert resolved == {"Bearer hf_secret"}
    assert {one.authorization for one in hub.log if one.path == CDN} == {None}


def test_the_token_of_a_file(hub: FileServer, tmp_path: Path) -> None:
    """`hf auth login` keeps the token in a file."""
    (tmp_path / "home").mkdir(exist_ok=True)
    (tmp_path / "home" / "token").write_text("hf_kept\n", encoding="utf-8")
    pull(NAME)
    assert {one.authorization for one in hub.log if "/resolve/" in one.path} == {"Bearer hf_kept"}
    assert {one.authorization for one in hub.log if one.path == CDN} == {None}


def give_to_other_storage(hub: FileServer, storage: str) -> None:
    """Serve the big file from the hub's newer storage, as most repositories do: HTTP is there, too."""
    pass_path = f"/api/models/{REPO}/xet-read-token/{COMMIT}"
    expires = str(int(time.time()) + 3600)
    for revision in ("main", COMMIT):
        link = f'<{hub.url}{pass_path}>; rel="xet-auth"'
        hub.headers[f"{RESOLVE}{revision}/model.safetensors"] |= {"X-Xet-Hash": "a" * 64, "Link": link}
    hub.files[pass_path] = json.dumps({"casUrl": storage, "exp": int(expires), "accessToken": "pass"}).encode()
    passes = {"X-Xet-Cas-Url": storage, "X-Xet-Access-Token": "pass", "X-Xet-Token-Expiration": expires}
    hub.headers[pass_path] = passes


@pytest.mark.parametrize("storage", ["cannot be reached", "has no such file"])
def test_a_newer_storage_that_cannot_serve(hub: FileServer, monkeypatch: pytest.MonkeyPatch, storage: str) -> None:
    """The file comes over HTTP instead. The token does not follow the redirect to another host."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    give_to_other_storage(hub, f"{hub.url}/storage" if storage == "has no such file" else "http://127.0.0.1:9")
    assert weights_of(pull(NAME)[1]) == BIG
    assert [one.authorization for one in hub.log if one.path == CDN] == [None]


def test_offline_by_choice(hub: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fail() == "HF_HUB_OFFLINE is set, which forbids Hugging Face for owner/repo"
    assert hub.log == []


@pytest.fixture
def small_disk(hub: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Put the cache on a file system of its own that does not hold the big file."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "none", disk]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only the superuser may mount a file system")
    monkeypatch.setenv(store.CACHE_VARIABLE, str(disk))
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)


def test_too_little_space_is_said_before_anything_is_fetched(hub: FileServer, small_disk: Path) -> None:
    assert fail() == (
        f"no space left for hf:owner/repo in {small_disk / 'hub'}: 12 MiB are needed and 8 MiB are free; "
        "make room, or name a folder on another disk in VOXLANE_CACHE"
    )
    assert not [one for one in hub.log if "/resolve/" in one.path]
    subprocess.run(["mount", "-o", "remount,size=32m", small_disk], check=True)
    assert weights_of(pull(NAME)[1]) == BIG


def test_a_disk_that_fills_while_the_file_is_fetched(hub: FileServer, small_disk: Path) -> None:
    """Another program fills the disk when the space has been checked."""
    subprocess.run(["mount", "-o", "remount,size=16m", small_disk], check=True)
    cut = hub.cuts[CDN] = Cut(4096, resume_body=True)
    with ThreadPoolExecutor(1) as pool:
        failed = pool.submit(fail)
        hub.reached.wait(60)
        (small_disk / "other").write_bytes(bytes(8 << 20))
        cut.now.set()
        assert failed.result(120).startswith(f"no space left for hf:owner/repo in {small_disk}")
    (small_disk / "other").unlink()
    hub.cuts.clear()
    assert weights_of(pull(NAME)[1]) == BIG
