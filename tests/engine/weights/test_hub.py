"""hf: pulls with the real library against a hub on this machine, some in processes that can be interrupted."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from examples import sweep

from .file_server import Cut, FileServer, RefusedAnswer
from .hub_site import (
    BIG,
    CDN,
    CHUNK,
    COMMIT,
    FILES,
    REPO,
    TAKEN,
    break_pull,
    hub_on_this_machine,
    models,
    publish,
    pull,
    start_pull,
    use_hub,
    wait_for_first_part,
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
    assert models("path", f"hf:{REPO}") == (0, f"{path}\n", "")
    assert models("rm", f"hf:{REPO}") == (0, "", "")
    assert not path.exists()
    assert not any((tmp_path / "cache" / "hub").rglob("models--*"))
    assert models("rm", f"hf:{REPO}") == (1, "", f"voxlane: hf:{REPO} is not here\n")


def test_a_single_file(hub: FileServer) -> None:
    progress, path = pull(f"hf:{REPO}@main#config.json")
    assert path.read_bytes() == FILES["config.json"]
    assert progress[-1] == 1.0
    assert not hub.asked(CDN)
    assert models("path", f"hf:{REPO}")[0] == 1  # one file is not the model


@pytest.mark.parametrize(
    ("name", "end"),
    sweep(itertools.product((f"hf:{REPO}", f"hf:{REPO}#model.safetensors"), (signal.SIGKILL, signal.SIGINT))),
    ids=["repository killed", "repository interrupted", "file killed", "file interrupted"],
)
def test_an_interrupted_pull_is_continued(hub: FileServer, tmp_path: Path, name: str, end: signal.Signals) -> None:
    hub.cuts[CDN] = Cut(CHUNK + 4096)
    with start_pull(name) as child:
        wait_for_first_part(child)
        child.send_signal(end)
        child.communicate(timeout=60)  # the connection is still there: the process does not wait for the file
        assert child.returncode == -end
    assert models("path", name)[0] == 1
    hub.cuts.clear()
    hub.log.clear()
    progress, path = pull(name)
    assert (path if path.suffix else path / "model.safetensors").read_bytes() == BIG
    assert hub.asked(CDN) == [f"bytes={CHUNK}-"]
    assert progress == sorted(progress)
    assert progress[-1] == 1.0
    left = {one.suffix for one in (tmp_path / "cache" / "hub").rglob("*") if one.is_file()}
    assert left.isdisjoint({".incomplete", ".part", ".link"})


@pytest.mark.parametrize(
    ("change", "asked"),
    [
        ("other file", [None]), ("ignores ranges", [f"bytes={CHUNK}-"]), ("refuses ranges", [f"bytes={CHUNK}-", None]),
        ("damaged part", [f"bytes={CHUNK}-", None]), ("long part", [None]),
    ],
)  # fmt: skip
def test_a_part_that_does_not_fit_is_fetched_whole(
    hub: FileServer, tmp_path: Path, change: str, asked: list[str | None]
) -> None:
    break_pull(hub)
    (part,) = (tmp_path / "cache" / "hub").rglob("*.part")
    content = BIG
    match change:
        case "other file":
            content = BIG[::-1]
            publish(hub, FILES | {"model.safetensors": content})
        case "ignores ranges":
            hub.whole.add(CDN)
        case "refuses ranges":
            hub.refusals[CDN] = RefusedAnswer(416, {"Content-Range": "bytes */7"}, ranged=True)
        case "damaged part":
            part.write_bytes(bytes(CHUNK))
        case "long part":
            part.write_bytes(BIG[::-1] + b"more")
    _, path = pull(f"hf:{REPO}")
    assert (path / "model.safetensors").read_bytes() == content
    assert hub.asked(CDN) == asked
    assert not part.exists()


def test_a_pull_that_failed_is_continued(hub: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    says = "Hugging Face answered 503 for owner/repo; it has a problem of its own: pull again later"
    assert str(break_pull(hub)) == says
    hub.refusals[CDN] = RefusedAnswer(503)
    assert models("pull", f"hf:{REPO}") == (1, "", f"voxlane: {says}\n")
    hub.refusals.clear()
    hub.log.clear()
    assert (pull(f"hf:{REPO}")[1] / "model.safetensors").read_bytes() == BIG
    assert hub.asked(CDN) == [f"bytes={CHUNK}-"]
    assert {one.authorization for one in hub.log if f"{REPO}/resolve" in one.path} == {"Bearer hf_secret"}
    assert [one.authorization for one in hub.log if one.path == CDN] == [None]


def test_a_part_stays_while_another_file_is_pulled_and_goes_with_its_model(hub: FileServer, tmp_path: Path) -> None:
    publish(hub, FILES | {"other.gguf": b"GGUF"})
    break_pull(hub)
    pull(f"hf:{REPO}#other.gguf")
    assert len(list((tmp_path / "cache" / "hub").rglob("*.part"))) == 1
    assert models("rm", f"hf:{REPO}")[0] == 0
    assert not list((tmp_path / "cache" / "hub").rglob("*.part"))


def test_two_files_with_the_same_content(hub: FileServer) -> None:
    publish(hub, FILES | {"copy.safetensors": BIG})
    break_pull(hub)
    _, path = pull(f"hf:{REPO}")
    assert (path / "model.safetensors").read_bytes() == (path / "copy.safetensors").read_bytes() == BIG
    assert hub.asked(".safetensors") == [f"bytes={CHUNK}-"] * 2  # to the hub, and where it redirects


def test_the_token_goes_to_the_hub_only(hub: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    pull(f"hf:{REPO}#model.safetensors")
    sent = {(one.path.startswith(CDN), one.authorization) for one in hub.log if one.path.endswith(".safetensors")}
    assert sent == {(False, "Bearer hf_secret"), (True, None)}


@pytest.mark.soak
def test_two_processes_fetch_once(hub: FileServer) -> None:
    children = [start_pull(f"hf:{REPO}") for _ in range(2)]
    for child in children:
        with child:
            output, errors = child.communicate(timeout=120)
        assert child.returncode == 0, errors
        assert output.splitlines()[-2:-1] == ["1.0"]
    assert hub.asked(CDN) == [None]


def test_a_model_that_is_here_serves_while_the_hub_fails(hub: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    _, path = pull(f"hf:{REPO}")
    hub.refusals["/"] = RefusedAnswer(503)
    assert pull(f"hf:{REPO}") == ([1.0], path)
    use_hub("http://127.0.0.1:9", monkeypatch)  # nothing listens on the discard port
    assert pull(f"hf:{REPO}") == ([1.0], path)
    says = "voxlane: could not reach Hugging Face for owner/other; check your network, or give a path\n"
    assert models("pull", "hf:owner/other") == (1, "", says)


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
