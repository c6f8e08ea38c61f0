"""One file of a Hugging Face repository over plain HTTP, for files whose hash is known. It needs no library.

It fetches what the catalog names; the models that a person names with hf: are hub.py's. What is here of a file when the
connection breaks stays here, and the next pull goes on from there.
"""

from __future__ import annotations

import http
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from voxlane.engine.errors import FetchError
from voxlane.engine.weights.catalog import HubSource, ModelFile
from voxlane.engine.weights.pip_settings import route_to
from voxlane.engine.weights.resume import CannotResume, Cut, answers, go_on

Progress = Callable[[float], None]

ENDPOINT = "https://huggingface.co"
TIMEOUT_S = 15.0
"""How long the server may send nothing."""
ATTEMPTS = 4
"""How often a connection may break, each time further on, before another origin is tried."""


class _OtherFile(Exception):
    """The file there has another hash."""


class _HashInRedirect(urllib.request.BaseHandler):
    """Looks at the hash that the hub tells when it redirects to a large file, so that a wrong one is not fetched."""

    handler_order = 400  # before the handler that follows the redirect

    def __init__(self, sha256: str) -> None:
        self._sha256 = sha256

    def http_error_302(self, request: Any, response: Any, code: int, message: str, headers: Any) -> None:
        """Raise _OtherFile, or return None, which leaves the answer to the next handler."""
        told = headers.get("X-Linked-Etag", "").strip('"')
        if re.fullmatch(r"[0-9a-f]{64}", told) and told != self._sha256:
            response.close()
            raise _OtherFile(told)

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def fetch_hub_file(source: HubSource, file: ModelFile, downloads: Path, target: Path, progress: Progress) -> Path:
    """Return what a source holds as a file under `downloads`, where it stays, or raise FetchError.

    Whether it is the `file` of the catalog is for the caller to check; `target` is for messages only.
    """
    folder = downloads / f"hf_{source.repo.replace('/', '--')}"
    folder.mkdir(exist_ok=True)
    part = folder / file.name
    part.touch()
    if part.stat().st_size == file.size:
        return part
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        raise FetchError(f"HF_HUB_OFFLINE is set, which forbids Hugging Face for {source.repo}")
    try:
        _complete(_address(source), part, file.sha256, progress)
    except _OtherFile as error:
        raise FetchError(f"{source.repo} now has another {source.file}, with sha256 {error}") from error
    except Cut as error:
        here = f"{part.stat().st_size / 1e6:.1f} MB from {source.repo}"
        raise FetchError(f"the connection was lost with {here} here", "pull again to go on from there") from error
    except CannotResume as error:
        if isinstance(error.__cause__, urllib.error.HTTPError):
            raise FetchError(f"Hugging Face answered {error.__cause__.code} for {source.repo}") from error
        advice = f"check your network, or copy the file to {target}"
        raise FetchError(f"could not reach Hugging Face for {source.repo}", advice) from error
    return part


def _address(source: HubSource) -> str:
    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or ENDPOINT
    return f"{endpoint}/{source.repo}/resolve/{source.revision or 'main'}/{urllib.parse.quote(source.file or '')}"


def _complete(url: str, part: Path, sha256: str, progress: Progress) -> None:
    """Fetch what is missing of a file, over several connections if they break, or raise Cut or CannotResume."""
    if not answers(url):
        raise CannotResume("no connection")
    route = route_to(url)
    route.opener.add_handler(_HashInRedirect(sha256))
    token = os.environ.get("HF_TOKEN", "").strip()
    route = replace(route, timeout_s=TIMEOUT_S, authorization=f"Bearer {token}" if token else route.authorization)
    for left in reversed(range(ATTEMPTS)):
        before = part.stat().st_size
        try:
            go_on(url, part, route, progress)
        except Cut:
            if not left or part.stat().st_size <= before:
                raise
        except CannotResume as error:
            if not left or not before or not _misfits(error):
                raise
            os.truncate(part, 0)
        else:
            return


def _misfits(error: CannotResume) -> bool:
    """Tell whether what is here cannot be the beginning of the file there."""
    cause = error.__cause__
    return isinstance(cause, urllib.error.HTTPError) and cause.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
