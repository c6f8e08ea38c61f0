"""Files of Hugging Face repositories, through huggingface_hub.

The library downloads the files, continues after a lost connection, and keeps repositories in its own layout. This
module adds progress, errors of one line, and a limit on how long the hub may take for its first answer.
"""

from __future__ import annotations

import errno
import fnmatch
import glob
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from voxlane.engine.errors import FetchError
from voxlane.engine.weights.catalog import HubSource, ModelFile

Progress = Callable[[float], None]
T = TypeVar("T")

PATTERNS = ("*.json", "*.safetensors", "*.jinja", "merges.txt", "LICENSE*")
"""The files that a repository's model needs. Pickled weights are never fetched."""

COMPLETE = ".voxlane-complete"
"""Marks a snapshot that has all its files: a snapshot also exists after one file of it was fetched."""

ANSWER_S = 8.0
"""How long the hub may take for its first answer. The library by itself tries for half a minute."""

POLL_S = 0.2
"""How often the growing files are measured."""


class _Unreachable(Exception):
    """The hub did not answer."""


def fetch_hub(source: HubSource, cache: Path, progress: Progress = lambda done: None, *, local: bool = False) -> Path:
    """Return the file or directory of a Hugging Face source; `local` looks in the cache only.

    One process at a time may fetch a repository into a cache. A thread calls `progress`.
    """
    import httpx2  # here, like the library: only a pull needs it

    with _one_line_errors(source, "check your network, or give a path"):
        if local:
            return _cached(source, cache)
        blobs = _repository(cache, source.repo) / "blobs"
        _remove_unfinished(blobs)
        try:
            files = _ask(lambda: _list_files(source))
        except (OSError, ValueError, RuntimeError, httpx2.HTTPError, _Unreachable) as error:
            try:
                path = _cached(source, cache)
            except (OSError, FetchError):
                raise error from None
        else:
            with _watched(lambda: _share(blobs, files), progress):
                path = _download(source, cache)
        if source.file is None:
            (path / COMPLETE).touch()
        progress(1.0)
        return path


def fetch_hub_file(source: HubSource, file: ModelFile, downloads: Path, target: Path, progress: Progress) -> Path:
    """Return the file of a source in a folder under `downloads`, where it stays, or raise FetchError.

    The caller checks size and hash. `target` is for messages only.
    """
    assert source.file is not None  # the catalog names one
    folder = downloads / f"hf_{source.repo.replace('/', '--')}"
    path = folder / source.file
    if path.exists() and path.stat().st_size == file.size:
        return path
    path.unlink(missing_ok=True)
    _remove_unfinished(folder)
    with _one_line_errors(source, f"check your network, or copy the file to {target}"):
        hub = _library()
        url = hub.hf_hub_url(source.repo, source.file, revision=source.revision)
        # Without the person's token, unless the hub is another one: the file is public, and Hugging Face refuses even
        # public files to a token that has expired.
        token = None if os.environ.get("HF_ENDPOINT") else False
        metadata = _ask(lambda: hub.get_hf_file_metadata(url, timeout=ANSWER_S, token=token))
        # For a large file the hub tells the hash before the download. A file that was replaced is not fetched.
        if re.fullmatch(r"[0-9a-f]{64}", metadata.etag or "") and metadata.etag != file.sha256:
            raise FetchError(f"{source.repo} now has another {source.file}, with sha256 {metadata.etag}")
        with _watched(lambda: sum(map(_size, folder.rglob("*.incomplete"))) / file.size, progress):
            hub.hf_hub_download(source.repo, source.file, revision=source.revision, local_dir=folder, token=token)
    return path


def held(cache: Path) -> Iterator[tuple[str, Path]]:
    """Yield (OWNER/NAME, folder) of every complete repository."""
    for mark in sorted(cache.glob(f"models--*--*/snapshots/*/{COMPLETE}")):
        _, owner, name = mark.parents[2].name.split("--", 2)
        yield f"{owner}/{name}", mark.parent


def forget(cache: Path, repo: str) -> bool:
    """Delete the files of a repository; return whether there were any."""
    folder = _repository(cache, repo)
    found = folder.exists()
    shutil.rmtree(folder, ignore_errors=not found)
    shutil.rmtree(cache / ".locks" / folder.name, ignore_errors=True)
    return found


def _repository(cache: Path, repo: str) -> Path:
    return cache / f"models--{repo.replace('/', '--')}"


def _library() -> Any:
    """Return huggingface_hub, without its own progress bars and warnings. It is imported when it is needed."""
    import huggingface_hub.utils

    utils: Any = huggingface_hub.utils
    utils.disable_progress_bars()
    utils.logging.set_verbosity_error()
    return huggingface_hub


def _ask(question: Callable[[], T]) -> T:
    """Return the hub's answer, or raise _Unreachable after ANSWER_S.

    A thread asks: the time for a name lookup, and for a connection to each address in turn, has no other limit.
    """
    import httpx2

    answer: Future[T] = Future()

    def ask() -> None:
        try:
            answer.set_result(question())
        except (OSError, ValueError, RuntimeError, httpx2.HTTPError) as error:
            answer.set_exception(error)

    threading.Thread(target=ask, name="hub-answer", daemon=True).start()
    try:
        return answer.result(ANSWER_S)
    except (TimeoutError, httpx2.TransportError) as error:
        raise _Unreachable(str(error)) from error


def _list_files(source: HubSource) -> dict[str, int]:
    """Return the sizes of the files to fetch by their names in the library's cache."""
    info = _library().HfApi().model_info(source.repo, revision=source.revision, files_metadata=True, timeout=ANSWER_S)
    patterns = PATTERNS if source.file is None else (glob.escape(source.file),)
    return {
        one.lfs.sha256 if one.lfs is not None else str(one.blob_id): one.size or 0
        for one in info.siblings or ()
        if any(fnmatch.fnmatch(one.rfilename, pattern) for pattern in patterns)
    }


def _download(source: HubSource, cache: Path, *, local: bool = False) -> Path:
    hub = _library()
    options = {"revision": source.revision, "cache_dir": cache, "local_files_only": local}
    if source.file is not None:
        return Path(hub.hf_hub_download(source.repo, source.file, **options))
    return Path(hub.snapshot_download(source.repo, allow_patterns=list(PATTERNS), **options))


def _cached(source: HubSource, cache: Path) -> Path:
    """Return the path of a source that was fetched before, or raise FetchError or the library's error."""
    path = _download(source, cache, local=True)
    if source.file is None and not (path / COMPLETE).exists():
        raise FetchError(f"{source.repo} is incomplete")
    return path


@contextmanager
def _watched(measure: Callable[[], float], progress: Progress) -> Iterator[None]:
    """Report progress from a thread while the library downloads."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(POLL_S):
            progress(min(1.0, measure()))

    thread = threading.Thread(target=watch, name="hub-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _share(blobs: Path, files: dict[str, int]) -> float:
    here = (
        size if (blobs / name).exists() else sum(map(_size, blobs.glob(f"{name}*.incomplete")))
        for name, size in files.items()
    )
    return sum(here) / max(1, sum(files.values()))


def _size(path: Path) -> int:
    """Return the size of a file without its holes: a file that comes in pieces is written in any order."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return 0  # the library has just moved it
    return min(status.st_size, status.st_blocks * 512)


def _remove_unfinished(folder: Path) -> None:
    """Remove what a killed process left. The library does not use it again."""
    for left in folder.rglob("*.incomplete"):
        left.unlink(missing_ok=True)


@contextmanager
def _one_line_errors(source: HubSource, advice: str) -> Iterator[None]:
    """Raise FetchError for the library's errors; an error of a full disk passes, because the store reports it."""
    import httpx2
    from huggingface_hub import errors

    repo = source.repo
    try:
        yield
    except errors.GatedRepoError as error:
        raise FetchError(f"{repo} is gated", "accept its terms on its page and run `hf auth login`") from error
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        raise FetchError(f"Hugging Face has no repository {repo} with that revision, or it is private") from error
    except errors.OfflineModeIsEnabled as error:
        raise FetchError(f"HF_HUB_OFFLINE is set, which forbids Hugging Face for {repo}") from error
    except (errors.LocalEntryNotFoundError, _Unreachable) as error:
        raise FetchError(f"could not reach Hugging Face for {repo}", advice) from error
    except errors.EntryNotFoundError as error:
        raise FetchError(f"{repo} has no file {source.file}") from error
    except errors.HfHubHTTPError as error:
        raise FetchError(f"Hugging Face answered {error.response.status_code} for {repo}") from error
    except httpx2.HTTPError as error:
        raise FetchError(f"the connection to Hugging Face was lost for {repo}", "pull again") from error
    except (OSError, ValueError, RuntimeError) as error:
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise FetchError(f"could not fetch {repo}: {error}") from error
