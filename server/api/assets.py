"""The browser client's files: the library and the page made of it.

All files are read once, at start: they cannot change under a visitor, and no address can lead to another file.
page.py sends them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "client_js"
"""Beside the server's package, in the repository and in the wheel alike."""

TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".webmanifest": "application/manifest+json",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file as it is sent."""

    body: bytes
    media_type: str
    tag: str

    @classmethod
    def read(cls, path: Path) -> Asset:
        """Read a file of a type that we serve."""
        body = path.read_bytes()
        return cls(body, TYPES[path.suffix], f'"{hashlib.sha256(body).hexdigest()[:32]}"')


def read_assets(folder: Path = FOLDER) -> dict[str, Asset]:
    """Return what is served, by its path in the folder: the library's modules and the page's files."""
    paths = [path for pattern in ("*", "demo/*") for path in sorted(folder.glob(pattern)) if path.suffix in TYPES]
    return {path.relative_to(folder).as_posix(): Asset.read(path) for path in paths}
