"""hf: pulls with the real library against a hub on this machine, in processes that can be interrupted."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .file_server import Cut, FileServer
from .hub_site import (
    BIG,
    CDN,
    CHUNK,
    COMMIT,
    FILES,
    REPO,
    TAKEN,
    hub_on_this_machine,
    models,
    pull,
    start_pull,
    wait_for,
)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """Point the library at a hub on this machine, and the store at an empty cache."""
    with hub_on_this_machine(tmp_path, monkeypatch) as site:
        yield site


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
