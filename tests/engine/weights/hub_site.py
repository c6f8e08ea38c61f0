"""A Hugging Face hub on this machine, and pulls from it: here, or in processes that can be interrupted."""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import random
import select
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from ctrl_c import HEAR_CTRL_C
from huggingface_hub import constants
from huggingface_hub.utils import close_session

from voxlane.engine.errors import StoreError
from voxlane.engine.weights import command, store

from .file_server import Cut, FileServer, RefusedAnswer, serving

REPO, COMMIT = "owner/repo", "1234567890abcdef1234567890abcdef12345678"
CHUNK = 10 << 20  # what the library reads before it writes
BIG = random.Random(0).randbytes(CHUNK + (2 << 20))
FILES = {"model.safetensors": BIG, "config.json": b"{}", "pytorch_model.bin": b"a pickle", "sub/tokenizer.json": b"[]"}
TAKEN = {"model.safetensors", "config.json", "sub/tokenizer.json"}
CDN = "/cdn/model.safetensors"
FIRST_PART = CHUNK / (len(BIG) + 1000)
"""The share of the whole that has arrived when the library has written its first chunk."""


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
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "home" / "token"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)  # a pull sets it
    close_session()
    with serving() as site:
        use_hub(site.url, monkeypatch)
        publish(site)
        yield site
        close_session()


def use_hub(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Name a hub to pulls: to the library here, which has read the environment at its import, and to children."""
    monkeypatch.setenv("HF_ENDPOINT", url)
    monkeypatch.setattr(constants, "ENDPOINT", url)
    template = f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


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


def pull(name: str, at_first_part: Callable[[], object] = lambda: None) -> tuple[list[float], Path]:
    """Pull; return the progress and the path. `at_first_part` is called when the first chunk is written."""
    seen: list[float] = []

    def told(done: float) -> None:
        if done >= FIRST_PART and not any(each >= FIRST_PART for each in seen):
            at_first_part()
        seen.append(done)

    return seen, store.pull(name, told)


def break_pull(hub: FileServer, name: str = f"hf:{REPO}") -> StoreError:
    """Pull until the first chunk is written; then the hub fails. Return the error; a part is left."""
    cuts = [Cut(CHUNK + 4096) for _ in range(2)]
    hub.cuts |= dict(zip((CDN, "/cdn/copy.safetensors"), cuts, strict=True))

    def fail() -> None:
        hub.refusals["/cdn"] = RefusedAnswer(503)
        for cut in cuts:
            cut.now.set()

    with pytest.raises(StoreError) as caught:
        pull(name, fail)
    for kept in (hub.cuts, hub.refusals, hub.log):
        kept.clear()  # type: ignore[attr-defined]
    return caught.value


def models(*words: str) -> tuple[int, str, str]:
    """Run `voxlane models`; return its status and what it writes on both streams."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    with redirect_stdout(io.StringIO()) as output, redirect_stderr(io.StringIO()) as errors:
        status = command.run(parser.parse_args(words))
    return status, output.getvalue(), errors.getvalue()


def wait_for_first_part(child: subprocess.Popen[str]) -> None:
    """Wait until a pull has written its first chunk."""
    assert child.stdout is not None
    told = b""
    while not any(float(line) >= FIRST_PART for line in told.split(b"\n")[:-1]):
        # Not by readline: select() does not see the lines that it has read ahead.
        assert select.select([child.stdout], [], [], 60)[0], "no progress"
        data = os.read(child.stdout.fileno(), 4096)
        assert data, "the pull ended"
        told += data
