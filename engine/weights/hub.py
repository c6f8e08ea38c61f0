"""Files of Hugging Face repositories, through huggingface_hub if it is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from voxlane.engine.weights.catalog import HubSource
from voxlane.engine.weights.errors import StoreError

PATTERNS = ("*.json", "*.safetensors", "*.jinja", "LICENSE*")
"""What it takes to run a repository's model; pickled weights stay where they are."""

COMPLETE = ".voxlane-complete"
"""Marks a snapshot whose files are all there: the library does not tell an interrupted one from a whole one."""


class HubMissing(StoreError):
    """huggingface_hub is not installed."""

    def __init__(self) -> None:
        super().__init__("hf: models need huggingface_hub: pip install 'voxlane[hf]'")


def fetch_hub(source: HubSource, cache: Path, *, local: bool = False) -> Path:
    """Return the file or directory of a Hugging Face source; `local` looks in the cache only."""
    try:
        import huggingface_hub
        from huggingface_hub import errors
    except ImportError as error:
        raise HubMissing from error
    options: dict[str, Any] = {"revision": source.revision, "cache_dir": cache, "local_files_only": local}
    repo = source.repo
    try:
        if source.file is not None:
            return Path(str(huggingface_hub.hf_hub_download(repo, source.file, **options)))
        folder = Path(str(huggingface_hub.snapshot_download(repo, allow_patterns=list(PATTERNS), **options)))
        if not local:
            (folder / COMPLETE).touch()
        elif not (folder / COMPLETE).exists():
            raise StoreError(f"{repo} is here in part only")
        return folder
    except errors.GatedRepoError as error:
        raise StoreError(f"{repo} is gated: accept its terms on its page and run `hf auth login`") from error
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        raise StoreError(f"Hugging Face has no repository {repo} with that revision, or it is private") from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        raise StoreError(f"could not reach Hugging Face for {repo}; check your network, or give a path") from error
    except errors.EntryNotFoundError as error:
        raise StoreError(f"{repo} has no file {source.file}") from error
    except (errors.HfHubHTTPError, OSError, ValueError) as error:
        raise StoreError(f"could not fetch {repo}: {error}") from error
