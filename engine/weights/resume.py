"""Go on with a half-downloaded file over HTTP.

It knows neither pip nor Hugging Face: it is given an address, the bytes that are here, and how to connect. Whether old
and new bytes make the right file is for the caller to check; a server that sends the whole file gets its way.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import socket
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CHUNK_BYTES = 1 << 16
"""Small: what was read is on the disk, so a killed process loses at most this much."""
CONNECT_S, ADDRESS_S = 6.0, 2.0
"""How long a host may take to accept a connection, its name looked up and all its addresses tried, and each of them."""
_CONTENT_RANGE = re.compile(r"bytes (?P<first>\d+)-\d+/(?P<total>\d+)|bytes \*/(?P<whole>\d+)")


class CannotResume(Exception):
    """The file cannot be had this way; nothing is known about any other."""


class Cut(Exception):
    """The connection was lost with part of the file still to come; what came is kept."""


@dataclass(frozen=True, slots=True)
class Route:
    """How to connect."""

    opener: urllib.request.OpenerDirector = field(default_factory=urllib.request.build_opener)
    authorization: str | None = None  # sent to the first host only, never to one it redirects to
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 15.0


def answers(url: str) -> bool:
    """Tell whether the host of an address takes connections; one behind a proxy is taken to."""
    parts = urllib.parse.urlsplit(url)
    host = parts.hostname or ""
    if urllib.request.getproxies().get(parts.scheme) and not urllib.request.proxy_bypass(host):
        return True
    port = parts.port or (80 if parts.scheme == "http" else 443)
    reached = threading.Event()

    def connect() -> None:
        with contextlib.suppress(OSError), socket.create_connection((host, port), ADDRESS_S):
            reached.set()

    # In a thread: nothing bounds how long the lookup of a name takes.
    thread = threading.Thread(target=connect, name="answers", daemon=True)
    thread.start()
    thread.join(CONNECT_S)
    return reached.is_set()


def go_on(url: str, part: Path, route: Route, progress: Callable[[float], None]) -> None:
    """Append to `part` what is missing of the file at `url`, or raise Cut or CannotResume."""
    have = part.stat().st_size
    headers = {"User-Agent": "voxlane", **route.headers, "Accept-Encoding": "identity", "Range": f"bytes={have}-"}
    try:
        request = urllib.request.Request(url, headers=headers)
        if route.authorization is not None:
            request.add_unredirected_header("Authorization", route.authorization)
        response = route.opener.open(request, timeout=route.timeout_s)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and _total(error.headers) == have:
                return  # the process died between the last byte and the file's name
        raise CannotResume(str(error)) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise CannotResume(str(error)) from error
    with response:
        start = _start(response, have)
        with open(part, "r+b", buffering=0) as output:
            output.truncate(start)
            output.seek(0, os.SEEK_END)
            _append(response, output.write, start, progress)


def _append(response: Any, write: Callable[[bytes], object], start: int, progress: Callable[[float], None]) -> None:
    total, done = _total(response.headers), start
    if total is None and response.length is not None:
        total = start + response.length
    while True:
        try:
            chunk = response.read1(CHUNK_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise Cut(str(error)) from error
        if not chunk:
            break
        write(chunk)
        done += len(chunk)
        if total:
            progress(min(1.0, done / total))
    if total is not None and done < total:
        raise Cut(f"{total - done} bytes are missing")


def _start(response: Any, have: int) -> int:
    """Return where in the file the answer begins."""
    if response.status == http.HTTPStatus.OK:
        return 0
    match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    if response.status != http.HTTPStatus.PARTIAL_CONTENT or match is None or match["first"] != str(have):
        raise CannotResume(f"answered {response.status} {response.headers.get('Content-Range')}")
    return have


def _total(headers: Any) -> int | None:
    match = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
    return int(match["total"] or match["whole"]) if match else None
