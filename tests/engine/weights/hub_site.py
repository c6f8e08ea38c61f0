"""A Hugging Face hub on this machine, and pulls from it in processes of their own."""

from __future__ import annotations

import hashlib
import json
import os
import random
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ctrl_c import HEAR_CTRL_C

from voxlane.engine.weights import store

from .file_server import FileServer, serving

REPO, COMMIT = "owner/repo", "1234567890abcdef1234567890abcdef12345678"
CHUNK = 10 << 20  # what the library reads before it writes
BIG = random.Random(0).randbytes(CHUNK + (2 << 20))
FILES = {"model.safetensors": BIG, "config.json": b"{}", "pytorch_model.bin": b"a pickle", "sub/tokenizer.json": b"[]"}
TAKEN = {"model.safetensors", "config.json", "sub/tokenizer.json"}
CDN = "/cdn/model.safetensors"


def publish(site: FileServer, files: Mapping[str, bytes] = FILES, repo: str = REPO) -> None:
    """Serve what the library requests from a hub: facts, a listing, and files, the big one from another host."""
    siblings: list[dict[str, Any]] = []
    tree: list[dict[str, Any]] = []
    for name, content in files.items():
        sha256 = hashlib.sha256(content).hexdigest()
        oid = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        large = name.endswith((".safetensors", ".gguf"))
        lfs = {"size": len(content), "pointerSize": 130}
        siblings.append({"rfilename": name, "size": len(content), "blobId": oid})
        tree.append({"type": "file", "path": name, "size": len(content), "oid": oid})
        if large:
            siblings[-1]["lfs"] = lfs | {"sha256": sha256}
            tree[-1]["lfs"] = lfs | {"oid": sha256}
        for revision in ("main", COMMIT):
            path = f"/{repo}/resolve/{revision}/{name}"
            site.headers[path] = {"X-Repo-Commit": COMMIT, "ETag": f'"{oid}"'}
            if large:
                site.headers[path] |= {"X-Linked-Etag": f'"{sha256}"', "X-Linked-Size": str(len(content))}
                site.redirects[path] = f"http://localhost:{site.port}/cdn/{name}"  # another host, as far as HTTP goes
                site.files[f"/cdn/{name}"] = content
            else:
                site.files[path] = content
    info = json.dumps({"id": repo, "sha": COMMIT, "siblings": siblings}).encode()
    for end in ("", "/revision/main", f"/revision/{COMMIT}"):
        site.files[f"/api/models/{repo}{end}"] = info
    site.files[f"/api/models/{repo}/tree/{COMMIT}"] = json.dumps(tree).encode()


@contextmanager
def hub_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
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
