"""Files of Hugging Face repositories, through huggingface_hub if it is installed.

The library decides what a repository holds and keeps it in its own layout; hub_parts.py adds progress, and goes on
where an earlier pull ended.
"""

from __future__ import annotations

import errno
import fnmatch
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from voxlane.engine.errors import StoreError
from voxlane.engine.weights.catalog import HubSource
from voxlane.engine.weights.hub_parts import Arrival, HubFile
from voxlane.engine.weights.resume import Cut, Route, answers

Progress = Callable[[float], None]

PATTERNS = ("*.json", "*.safetensors", "*.jinja", "merges.txt", "LICENSE*")
"""What it takes to run a repository's model; pickled weights stay where they are."""

COMPLETE = ".voxlane-complete"
"""Marks a snapshot whose files are all there: not every version of the library tells an interrupted one from it."""


class HubMissing(StoreError):
    """huggingface_hub is not installed."""

    def __init__(self) -> None:
        super().__init__("hf: models need huggingface_hub: pip install -e '.[hf]'")


class _Unreachable(Exception):
    """The hub takes no connections."""


def fetch_hub(source: HubSource, cache: Path, progress: Progress = lambda done: None, *, local: bool = False) -> Path:
    """Return the file or directory of a Hugging Face source; `local` looks in the cache only.

    One process at a time may fetch a repository into a cache; `progress` is called from a thread of its own.
    """
    try:
        import huggingface_hub
        from huggingface_hub import constants, errors
    except ImportError as error:
        raise HubMissing from error
    repo = source.repo
    try:
        if local:
            return _locate(huggingface_hub, source, cache)
        # The library would try for half a minute before it looks at what is here.
        if not constants.HF_HUB_OFFLINE and not answers(constants.ENDPOINT):
            return _fetch_nothing(huggingface_hub, source, cache, progress)
        return _fetch(huggingface_hub, source, cache, progress)
    except errors.GatedRepoError as error:
        raise StoreError(f"{repo} is gated: accept its terms on its page and run `hf auth login`") from error
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        raise StoreError(f"Hugging Face has no repository {repo} with that revision, or it is private") from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, _Unreachable) as error:
        raise StoreError(f"could not reach Hugging Face for {repo}; check your network, or give a path") from error
    except errors.EntryNotFoundError as error:
        raise StoreError(f"{repo} has no file {source.file}") from error
    except (errors.HfHubHTTPError, OSError, ValueError) as error:
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            raise  # the store says it
        raise StoreError(f"could not fetch {repo}: {error}") from error
    except _connection_errors() as error:
        raise StoreError(f"the connection to {repo} was lost ({error}); pull again to go on from there") from error


def held(cache: Path) -> Iterator[tuple[str, Path]]:
    """Yield (OWNER/NAME, folder) of every repository that is here whole."""
    for mark in sorted(cache.glob(f"models--*--*/snapshots/*/{COMPLETE}")):
        _, owner, name = mark.parents[2].name.split("--", 2)
        yield f"{owner}/{name}", mark.parent


def forget(cache: Path, repo: str) -> bool:
    """Delete all there is of a repository, and tell whether there was anything."""
    folders = [folder for folder in (_repository(cache, repo), _parts(cache, repo)) if folder.exists()]
    for folder in folders:
        shutil.rmtree(folder)
    shutil.rmtree(cache / ".locks" / _repository(cache, repo).name, ignore_errors=True)
    return bool(folders)


def _repository(cache: Path, repo: str) -> Path:
    return cache / f"models--{repo.replace('/', '--')}"


def _parts(cache: Path, repo: str) -> Path:
    return cache / ".parts" / _repository(cache, repo).name


def _locate(hub: Any, source: HubSource, cache: Path) -> Path:
    path = _call(hub, source, cache, local_files_only=True)
    if source.file is None and not (path / COMPLETE).exists():
        raise StoreError(f"{source.repo} is here in part only")
    return path


def _fetch_nothing(hub: Any, source: HubSource, cache: Path, progress: Progress) -> Path:
    """Return what is here of a source while the hub cannot be reached, if that is all of it."""
    try:
        path = _locate(hub, source, cache)
    except StoreError as error:
        raise _Unreachable from error
    progress(1.0)
    return path


def _fetch(hub: Any, source: HubSource, cache: Path, progress: Progress) -> Path:
    arrival = Arrival(_files(hub, source), _repository(cache, source.repo) / "blobs", _parts(cache, source.repo))
    headers = {name.lower(): value for name, value in hub.utils.build_hf_headers().items()}
    arrival.complete(Route(authorization=headers.pop("authorization", None), headers=headers), progress)
    with arrival.watched(progress), _no_bars(hub):
        path = _call(hub, source, cache)
    if source.file is None:
        (path / COMPLETE).touch()
    progress(1.0)
    return path


def _call(hub: Any, source: HubSource, cache: Path, **options: Any) -> Path:
    options |= {"revision": source.revision, "cache_dir": cache}
    if source.file is not None:
        return Path(str(hub.hf_hub_download(source.repo, source.file, **options)))
    return Path(str(hub.snapshot_download(source.repo, allow_patterns=list(PATTERNS), **options)))


def _files(hub: Any, source: HubSource) -> tuple[HubFile, ...]:
    """Return what the source takes; nothing if the hub does not say, which the library then reports or gets by with."""
    try:
        info = hub.HfApi().model_info(source.repo, revision=source.revision, files_metadata=True)
    except (OSError, ValueError):
        return ()
    except _connection_errors():
        return ()
    files = []
    for one in info.siblings or ():
        if source.file is not None:
            chosen = one.rfilename == source.file
        else:
            chosen = any(fnmatch.fnmatch(one.rfilename, pattern) for pattern in PATTERNS)
        if chosen and one.size is not None:
            sha256 = one.lfs.sha256 if one.lfs is not None else None
            url = hub.hf_hub_url(source.repo, one.rfilename, revision=info.sha)
            files.append(HubFile(one.size, sha256 or str(one.blob_id), sha256, url))
    return tuple(files)


def _connection_errors() -> tuple[type[BaseException], ...]:
    """Return what stands for a lost connection: the library lets its HTTP client's through, and has had several."""
    return (Cut, *(sys.modules[name].HTTPError for name in ("httpx", "httpx2") if name in sys.modules))


@contextmanager
def _no_bars(hub: Any) -> Iterator[None]:
    """Silence the library's own bars: they would fight ours for the terminal."""
    if hub.utils.are_progress_bars_disabled():
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns where the environment asks for its bars
        hub.utils.disable_progress_bars()
    try:
        yield
    finally:
        hub.utils.enable_progress_bars()
