"""Files of Hugging Face repositories, through huggingface_hub.

The library downloads the files, continues after a lost connection, and keeps repositories in its own layout. This
module adds progress, errors of one line, a limit on how long the hub may take for its first answer, and a check of the
hashes: the library takes any bytes of the right number, even those of two files. hub_parts.py continues what an earlier
pull left unfinished.
"""

from __future__ import annotations

import errno
import fnmatch
import glob
import hashlib
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from voxlane.engine.errors import FetchError, WeightsError
from voxlane.engine.weights.catalog import HubSource, ModelFile
from voxlane.engine.weights.hub_parts import Part, bytes_of, remove_parts, side_by_side

Progress = Callable[[float], None]
Check = Callable[[Path], None]
T = TypeVar("T")

PATTERNS = ("*.json", "*.safetensors", "*.jinja", "merges.txt", "LICENSE*")
"""The files that a repository's model needs. Pickled weights are never fetched."""

COMPLETE = ".voxlane-complete"
"""Marks a snapshot that has all its files: a snapshot also exists after one file of it was fetched."""

ANSWER_S = 8.0
"""How long the hub may take for its first answer. The library by itself tries for half a minute."""

POLL_S = 0.2
"""How often the growing files are measured."""

TRIES = 2
"""How often a download is begun whose bytes are not those that the hub announced."""

XET_SETTINGS = {"HF_XET_CLIENT_RETRY_MAX_ATTEMPTS": "3", "HF_XET_CLIENT_RETRY_MAX_DURATION": "30s"}
"""Without these the library tries for six minutes to reach the hub's other storage, and says nothing meanwhile."""

_RANGE_NOT_SATISFIABLE = 416


class _Unreachable(Exception):
    """The hub did not answer."""


@dataclass(frozen=True, slots=True)
class _HubFile:
    """A file of a repository that is to be fetched."""

    name: str
    blob: str  # its name in the library's cache: a large file's hash
    size: int
    large: bool


def fetch_hub(
    source: HubSource,
    cache: Path,
    progress: Progress = lambda done: None,
    *,
    local: bool = False,
    check: Check = lambda path: None,
) -> Path:
    """Return the file or directory of a Hugging Face source; `local` looks in the cache only.

    One process at a time may fetch a repository into a cache. A thread calls `progress`. `check` raises WeightsError
    for a large file whose hash is not the one in its name.
    """
    import httpx2  # here, like the library: only a pull needs it

    with _one_line_errors(source, "check your network, or give a path"):
        if local:
            return _cached(source, cache)
        blobs = _repository(cache, source.repo) / "blobs"
        _remove_unfinished(blobs)
        try:
            there = _ask(lambda: _list_files(source))
        except (OSError, ValueError, RuntimeError, httpx2.HTTPError, _Unreachable) as error:
            try:
                path = _cached(source, cache)
            except (OSError, FetchError):
                raise error from None
        else:
            files = _wanted(source, there)
            remove_parts(blobs, but=[one.lfs.sha256 for one in there if one.lfs is not None])
            _check_space(cache, blobs, files)
            with _watched(lambda: _share(blobs, files), progress):
                path = _download_checked(source, cache, blobs, files, check)
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
    part = Part(folder, file.sha256, file.size)

    def measure() -> float:
        growing = list(folder.rglob("*.incomplete"))
        part.keep(growing)
        return max(map(bytes_of, (part.path, *growing))) / file.size

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
        with _watched(measure, progress):
            if not part.complete(url, hub.utils.build_hf_headers(token=token), path):
                options = {"revision": source.revision, "local_dir": folder, "token": token}
                _or_over_http(lambda: hub.hf_hub_download(source.repo, source.file, **options))
                part.remove()
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
    for name, value in XET_SETTINGS.items():
        os.environ.setdefault(name, value)
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


def _list_files(source: HubSource) -> list[Any]:
    """Return what the hub tells about each file of a repository: its name, its size, and the hash."""
    info = _library().HfApi().model_info(source.repo, revision=source.revision, files_metadata=True, timeout=ANSWER_S)
    return list(info.siblings or ())


def _wanted(source: HubSource, there: list[Any]) -> list[_HubFile]:
    """Return the files to fetch, or raise FetchError."""
    patterns = PATTERNS if source.file is None else (glob.escape(source.file),)
    wanted = [one for one in there if any(fnmatch.fnmatch(one.rfilename, pattern) for pattern in patterns)]
    _check_choice(source, [one.rfilename for one in there], [one.rfilename for one in wanted])
    return [
        _HubFile(one.rfilename, str(one.blob_id), one.size or 0, large=False)
        if one.lfs is None
        else _HubFile(one.rfilename, one.lfs.sha256, one.size or 0, large=True)
        for one in wanted
    ]


def _check_choice(source: HubSource, there: list[str], wanted: list[str]) -> None:
    """Raise FetchError if a repository has no such file, or if the files for a whole model are not among its files."""
    packed = [name for name in there if name.endswith(".gguf")]
    some = "; it has " + ", ".join(packed[:3]) + (" and others" if packed[3:] else "") if packed else ""
    if source.file is not None and not wanted:
        raise FetchError(f"{source.repo} has no file {source.file}{some}")
    if source.file is None and not any(name.endswith(".safetensors") for name in wanted):
        advice = (
            f"name one of its files: hf:{source.repo}#{packed[0]}" if packed else "pickled weights are never fetched"
        )
        raise FetchError(f"{source.repo} has no safetensors", advice)


def _check_space(cache: Path, blobs: Path, files: list[_HubFile]) -> None:
    """Raise OSError if the disk has no room for what is not here yet."""
    cache.mkdir(parents=True, exist_ok=True)
    needed = sum(file.size - _bytes_here(blobs, file) for file in files)
    free = shutil.disk_usage(cache).free
    if free < needed:
        raise OSError(errno.ENOSPC, f"{needed >> 20} MiB are needed and {free >> 20} MiB are free", str(cache))


def _download_checked(source: HubSource, cache: Path, blobs: Path, files: list[_HubFile], check: Check) -> Path:
    """Download what is missing until every new file has the hash that the hub announced, or raise FetchError.

    A file can change between two parts of its download. Then its bytes are wrong, or the server refuses the range. A
    download that is begun again takes the new file.
    """
    from huggingface_hub import errors

    before = {path.name for path in blobs.glob("*")}
    for last in (False,) * (TRIES - 1) + (True,):
        try:
            path = _or_over_http(lambda: _download_all(source, cache, blobs, files))
        except errors.HfHubHTTPError as error:
            if last or error.response.status_code != _RANGE_NOT_SATISFIABLE:
                raise
            remove_parts(blobs)
            continue
        if not _remove_damaged(path, [blob for blob in blobs.glob("*") if blob.name not in before], check):
            return path
    raise FetchError(
        f"{source.repo} sent other bytes than the hash that it announced; they were removed", "try again later"
    )


def _remove_damaged(path: Path, new: list[Path], check: Check) -> bool:
    """Remove the files whose hashes are wrong; return whether there were any."""
    damaged = [blob for blob in new if not _announced(blob)]
    for blob in damaged:
        blob.unlink()
    while True:
        try:
            check(path)
        except WeightsError as error:
            damaged.append(Path(error.path))
            damaged[-1].unlink()
        else:
            return bool(damaged)


def _announced(blob: Path) -> bool:
    """Return whether a small file has the hash in its name: the hub names it by git's, other servers by its own."""
    if not re.fullmatch(r"[0-9a-f]{40}", blob.name):
        return True  # a large file, which the caller checks, or a server's own way to name files
    content = blob.read_bytes()
    hashes = (hashlib.sha1(b"blob %d\0" % len(content) + content), hashlib.sha1(content))
    return blob.name in (one.hexdigest() for one in hashes)


def _or_over_http(download: Callable[[], T]) -> T:
    """Return what a download returns. If the hub's newer storage cannot serve, it is begun again over HTTP."""
    constants = _library().constants
    try:
        return download()
    except RuntimeError:
        if constants.HF_HUB_DISABLE_XET:
            raise
        constants.HF_HUB_DISABLE_XET = True
        return download()


def _download_all(source: HubSource, cache: Path, blobs: Path, files: list[_HubFile]) -> Path:
    """Download the large files, then let the library fetch the others and lay all of them out."""
    # Two files with the same content are one blob.
    missing = {file.blob: file for file in files if file.large and not (blobs / file.blob).exists()}
    side_by_side([partial(_download_large, source, cache, blobs, file) for file in missing.values()])
    return _download(source, cache)


def _download_large(source: HubSource, cache: Path, blobs: Path, file: _HubFile) -> None:
    hub = _library()
    part = Part(blobs, file.blob, file.size)
    url = hub.hf_hub_url(source.repo, file.name, revision=source.revision)
    part.complete(url, hub.utils.build_hf_headers(), blobs / file.blob)
    _download(replace(source, file=file.name), cache)
    part.remove()


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


def _share(blobs: Path, files: list[_HubFile]) -> float:
    """Return the share of the files that is here; keep parts of those that grow."""
    for file in files:
        if file.large:
            Part(blobs, file.blob, file.size).keep(_growing(blobs, file))
    return sum(_bytes_here(blobs, file) for file in files) / max(1, sum(file.size for file in files))


def _bytes_here(blobs: Path, file: _HubFile) -> int:
    if (blobs / file.blob).exists():
        return file.size
    part = Part(blobs, file.blob, file.size).path
    return min(file.size, max(map(bytes_of, (part, *_growing(blobs, file)))))


def _growing(blobs: Path, file: _HubFile) -> list[Path]:
    return list(blobs.glob(f"{file.blob}*.incomplete"))


def _remove_unfinished(folder: Path) -> None:
    """Remove what a killed process left. The library does not use it again; a part is another name of it."""
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
        raise FetchError(f"{repo} is gated", _gated_advice(repo)) from error
    except errors.RevisionNotFoundError as error:
        raise FetchError(f"{repo} has no revision {source.revision or 'main'}") from error
    except errors.RepositoryNotFoundError as error:
        advice = "check its name; for a private one run `hf auth login` or set HF_TOKEN"
        raise FetchError(f"Hugging Face has no repository {repo}, or it is private", advice) from error
    except errors.OfflineModeIsEnabled as error:
        raise FetchError(f"HF_HUB_OFFLINE is set, which forbids Hugging Face for {repo}") from error
    except (errors.LocalEntryNotFoundError, _Unreachable) as error:
        if isinstance(error.__cause__, errors.HfHubHTTPError):  # the hub answered, but not with the file
            raise _refused(repo, error.__cause__.response) from error
        raise FetchError(f"could not reach Hugging Face for {repo}", advice) from error
    except errors.EntryNotFoundError as error:
        raise FetchError(f"{repo} has no file {source.file}") from error
    except errors.HfHubHTTPError as error:
        raise _refused(repo, error.response) from error
    except httpx2.HTTPError as error:
        raise FetchError(f"the connection to Hugging Face was lost for {repo}", "pull again") from error
    except (OSError, ValueError, RuntimeError) as error:
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise FetchError(f"could not fetch {repo}: {error}") from error


def _gated_advice(repo: str) -> str:
    accept = f"accept its terms on https://huggingface.co/{repo}"
    if _library().get_token() is None:
        return f"{accept}, then run `hf auth login` or set HF_TOKEN"
    return f"{accept} with the account of your token"


def _refused(repo: str, response: Any) -> FetchError:
    """Return the error for an answer of the hub that is no file, with what to do about it."""
    status: int = response.status_code
    if status == 401:
        advice = "your token is not valid" if _library().get_token() else "it asks for a token"
        return FetchError(f"Hugging Face answered 401 for {repo}", f"{advice}: run `hf auth login`, or set HF_TOKEN")
    if status == 429:
        wait = response.headers.get("Retry-After", "")
        when = f"pull again in {wait} s" if wait.isdecimal() else "pull again in a few minutes"
        return FetchError(f"Hugging Face allows no more requests for now, asked for {repo}", when)
    if status >= 500:
        return FetchError(f"Hugging Face answered {status} for {repo}", "it has a problem of its own: pull again later")
    return FetchError(f"Hugging Face answered {status} for {repo}")
