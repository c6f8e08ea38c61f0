"""hf: pulls with the real library against a hub on this machine, in processes that can be interrupted."""

from __future__ import annotations

import hashlib
import json
import os
import random
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ctrl_c import HEAR_CTRL_C

from voxlane.engine.weights import store

from .file_server import Cut, FileServer, serving

REPO, COMMIT = "owner/repo", "1234567890abcdef1234567890abcdef12345678"
CHUNK = 10 << 20  # what the library reads before it writes
BIG = random.Random(0).randbytes(CHUNK + (2 << 20))
SHA256 = hashlib.sha256(BIG).hexdigest()
FILES = {"model.safetensors": BIG, "config.json": b"{}", "pytorch_model.bin": b"a pickle", "sub/tokenizer.json": b"[]"}
TAKEN = {"model.safetensors", "config.json", "sub/tokenizer.json"}
CDN = "/cdn/model.safetensors"


def publish(site: FileServer) -> None:
    """Serve what the library requests from a hub: facts, a listing, and files, the big one from another host."""
    siblings: list[dict[str, Any]] = []
    tree: list[dict[str, Any]] = []
    for name, content in FILES.items():
        oid = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        large = name.endswith(".safetensors")
        lfs = {"size": len(content), "pointerSize": 130}
        siblings.append({"rfilename": name, "size": len(content), "blobId": oid})
        tree.append({"type": "file", "path": name, "size": len(content), "oid": oid})
        if large:
            siblings[-1]["lfs"] = lfs | {"sha256": SHA256}
            tree[-1]["lfs"] = lfs | {"oid": SHA256}
        for revision in ("main", COMMIT):
            path = f"/{REPO}/resolve/{revision}/{name}"
            site.headers[path] = {"X-Repo-Commit": COMMIT, "ETag": f'"{oid}"'}
            if large:
                site.headers[path] |= {"X-Linked-Etag": f'"{SHA256}"', "X-Linked-Size": str(len(content))}
                site.redirects[path] = f"http://localhost:{site.port}{CDN}"  # another host, as far as HTTP goes
                site.files[CDN] = content
            else:
                site.files[path] = content
    info = json.dumps({"id": REPO, "sha": COMMIT, "siblings": siblings}).encode()
    for end in ("", "/revision/main", f"/revision/{COMMIT}"):
        site.files[f"/api/models/{REPO}{end}"] = info
    site.files[f"/api/models/{REPO}/tree/{COMMIT}"] = json.dumps(tree).encode()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """Point the library at a hub on this machine, and the store at an empty cache."""
    for name in [name for name in os.environ if name.startswith("HF_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv(store.CACHE_VARIABLE, str(tmp_path / "cache"))
    with serving() as site:
        monkeypatch.setenv("HF_ENDPOINT", site.url)
        publish(site)
        yield site


CHILD = f"""
{HEAR_CTRL_C}
import sys
from voxlane.engine.weights import command, store
from voxlane.engine.errors import StoreError
try:
    print(store.pull(sys.argv[1], lambda done: print(done, flush=True)))
except StoreError as error:
    sys.exit(str(error))
"""


def start_pull(name: str) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", CHILD, name]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def pull(name: str) -> tuple[list[float], Path]:
    """Pull in a process of its own; return the progress it made and the path."""
    with start_pull(name) as child:
        output, errors = child.communicate(timeout=120)
    assert child.returncode == 0, errors
    *progress, path = output.splitlines()
    return [float(line) for line in progress], Path(path)


def models(*words: str) -> subprocess.CompletedProcess[str]:
    arguments = [sys.executable, "-m", "voxlane.server.cli", "models", *words]
    return subprocess.run(arguments, capture_output=True, text=True, check=False)


def test_a_whole_repository(hub: FileServer, tmp_path: Path) -> None:
    progress, path = pull(f"hf:{REPO}")
    assert {str(one.relative_to(path)) for one in path.rglob("*") if one.is_file()} - {".voxlane-complete"} == TAKEN
    assert all((path / name).read_bytes() == FILES[name] for name in TAKEN)
    assert progress == sorted(progress)
    assert progress[-1] == 1.0
    shown = models("path", f"hf:{REPO}")
    assert shown.stdout == f"{path}\n"
    assert models("rm", f"hf:{REPO}").returncode == 0
    assert not path.exists()
    assert not any((tmp_path / "cache" / "hub").rglob("models--*"))
    again = models("rm", f"hf:{REPO}")
    assert (again.returncode, again.stderr) == (1, f"voxlane: hf:{REPO} is not here\n")


def test_a_single_file(hub: FileServer) -> None:
    progress, path = pull(f"hf:{REPO}@main#config.json")
    assert path.read_bytes() == FILES["config.json"]
    assert progress[-1] == 1.0
    assert not hub.asked(CDN)
    assert models("path", f"hf:{REPO}").returncode == 1  # one file is not the model


def wait_for(child: subprocess.Popen[str], share: float) -> None:
    """Wait until a pull has reached this share."""
    assert child.stdout is not None
    told = b""
    while not any(float(line) >= share for line in told.split(b"\n")[:-1]):
        # Not by readline: select() does not see the lines that it has read ahead.
        assert select.select([child.stdout], [], [], 60)[0], "no progress"
        data = os.read(child.stdout.fileno(), 4096)
        assert data, "the pull ended"
        told += data


@pytest.mark.parametrize(
    ("name", "end"),
    [
        (f"hf:{REPO}", signal.SIGKILL),
        (f"hf:{REPO}#model.safetensors", signal.SIGKILL),
        (f"hf:{REPO}#model.safetensors", signal.SIGINT),
    ],
    ids=["repository killed", "file killed", "file interrupted"],
)
def test_an_interrupted_pull_leaves_nothing_in_the_way(
    hub: FileServer, tmp_path: Path, name: str, end: signal.Signals
) -> None:
    cut = hub.cuts[CDN] = Cut(CHUNK + 4096)
    with start_pull(name) as child:
        wait_for(child, CHUNK / (len(BIG) + 1000))
        child.send_signal(end)
        cut.now.set()
        child.communicate(timeout=60)
        assert child.returncode == -end
    assert models("path", name).returncode == 1
    hub.cuts.clear()
    hub.log.clear()
    progress, path = pull(name)
    assert (path if path.suffix else path / "model.safetensors").read_bytes() == BIG
    assert hub.asked(CDN) == [None]
    assert hub.asked("config.json") == []  # the files that were complete are not fetched again
    assert progress == sorted(progress)
    assert progress[-1] == 1.0
    assert not list((tmp_path / "cache" / "hub").rglob("*.incomplete"))


def test_the_token_goes_to_the_hub_only(hub: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    pull(f"hf:{REPO}#model.safetensors")
    assert {one.authorization for one in hub.log if f"{REPO}/resolve" in one.path} == {"Bearer hf_secret"}
    assert [one.authorization for one in hub.log if one.path == CDN] == [None]


def test_a_lost_connection_is_taken_up_again(hub: FileServer) -> None:
    cut = hub.cuts[CDN] = Cut(CHUNK + 4096)
    with start_pull(f"hf:{REPO}") as child:
        wait_for(child, CHUNK / (len(BIG) + 1000))
        hub.cuts.clear()
        cut.now.set()
        output, errors = child.communicate(timeout=120)
    assert (child.returncode, errors) == (0, "")
    assert (Path(output.splitlines()[-1]) / "model.safetensors").read_bytes() == BIG
    assert hub.asked(CDN) == [None, f"bytes={CHUNK}-"]


def test_two_processes_fetch_once(hub: FileServer) -> None:
    children = [start_pull(f"hf:{REPO}") for _ in range(2)]
    for child in children:
        with child:
            output, errors = child.communicate(timeout=120)
        assert child.returncode == 0, errors
        assert output.splitlines()[-2:-1] == ["1.0"]
    assert hub.asked(CDN) == [None]


def test_offline(hub: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    _, path = pull(f"hf:{REPO}")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nothing listens on the discard port
    assert pull(f"hf:{REPO}") == ([1.0], path)
    shown = models("pull", "hf:owner/other")
    assert shown.returncode == 1
    assert shown.stderr.splitlines()[-1] == (
        "voxlane: could not reach Hugging Face for owner/other; check your network, or give a path"
    )


def test_the_bar_on_a_terminal(hub: FileServer, terminal: Callable[..., Any], tmp_path: Path) -> None:
    cut = hub.cuts[CDN] = Cut(CHUNK + 4096, resume_body=True)
    shown = terminal("models", "pull", f"hf:{REPO}")
    percent = 100 * (CHUNK + 4) / (len(BIG) + 4)
    text = shown.until(f"hf:{REPO} {percent:3.0f}% |")
    assert "Fetching" not in text  # the library's own bars
    assert "Download" not in text
    cut.now.set()
    shown.until(f"{tmp_path / 'cache' / 'hub' / 'models--owner--repo' / 'snapshots' / COMMIT}\r\n")
    assert shown.exit_status() == 0
