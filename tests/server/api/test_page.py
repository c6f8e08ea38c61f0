"""The page at / and the files it is made of: all there, all our own, and nothing else of the disk."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import pytest

from voxlane.server.api.assets import FOLDER, TYPES, read_assets
from voxlane.server.api.page import POLICY

BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}

_REFERENCES = {
    ".html": re.compile(r'(?:href|src)="([^"#]+)"'),
    ".css": re.compile(r'(?:url\(|@import )["\']?([^"\')]+)'),
    ".js": re.compile(r'^\s*(?:import|export)\b[^"\n]*?["\'](\.[^"\']+)["\']|new URL\("(\./[^"]+\.js)"', re.MULTILINE),
    ".webmanifest": re.compile(r'"(?:src|start_url)": "([^"]+)"'),
}


def references(address: str, text: str) -> set[str]:
    pattern = _REFERENCES.get(Path(address).suffix or ".html")
    if pattern is None:
        return set()  # a picture refers to nothing
    found = {next(filter(None, match.groups())) for match in pattern.finditer(text)}
    return {urljoin(address, one) for one in found if not one.startswith("data:")}


async def test_everything_that_the_page_refers_to_is_served(serving: Any) -> None:
    async with serving() as server:
        seen: dict[str, str] = {}
        waiting = ["/"]
        while waiting:
            address = waiting.pop()
            answer = await server.client.get(address, headers=BROWSER)
            assert answer.status_code == 200, address
            seen[address] = answer.headers["content-type"]
            waiting += references(address, answer.text) - seen.keys() - {"/docs"} - set(waiting)
    assert seen.pop("/") == "text/html; charset=utf-8"
    assert {"/client/voice-client.js", "/client/capture-worklet.js", "/client/playback-worklet.js"} <= seen.keys()
    assert {"/client/demo/manifest.webmanifest", "/client/demo/icon-512.png"} <= seen.keys()
    for address, kind in seen.items():
        assert address.startswith("/client/"), "a request that leaves our own files"
        assert kind.partition(";")[0] == TYPES[Path(address).suffix], address


async def test_a_browser_gets_the_page_under_a_strict_policy(serving: Any) -> None:
    async with serving() as server:
        answer = await server.client.get("/", headers=BROWSER)
        assert answer.headers["content-security-policy"] == POLICY
        assert "unsafe" not in POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "microphone=(self)" in answer.headers["permissions-policy"]
        assert not re.search(r"<style|<script(?![^>]*\bsrc=)[^>]*>|\sstyle=|\son[a-z]+=", answer.text)


async def test_the_page_can_be_installed(serving: Any) -> None:
    async with serving() as server:
        answer = await server.client.get("/client/demo/manifest.webmanifest")
        assert answer.headers["content-type"] == "application/manifest+json"
        manifest = answer.json()
        assert (manifest["start_url"], manifest["display"]) == ("/", "standalone")
        sizes = {icon["sizes"] for icon in manifest["icons"] if icon["type"] == "image/png"}
        assert {"192x192", "512x512"} <= sizes, "Chromium asks for these two"
        page = await server.client.get("/", headers=BROWSER)
        assert '<link rel="manifest" href="/client/demo/manifest.webmanifest"' in page.text
        assert "manifest-src 'self'" in page.headers["content-security-policy"]


async def test_a_program_gets_the_list(serving: Any) -> None:
    async with serving() as server:
        for accept in ("*/*", "application/json"):
            answer = await server.client.get("/", headers={"accept": accept})
            assert answer.json()["name"] == "voxlane"
            assert answer.headers["vary"] == "accept"


async def test_the_page_needs_no_key(serving: Any) -> None:
    async with serving(api_key="secret") as server:
        client = server.client
        client.headers.pop("authorization", None)
        assert (await client.get("/", headers=BROWSER)).status_code == 200
        assert (await client.get("/client/index.js")).status_code == 200
        assert (await client.get("/v1/models")).status_code == 401


async def test_what_a_browser_has_is_not_sent_again(serving: Any) -> None:
    async with serving() as server:
        first = await server.client.get("/client/index.js")
        again = await server.client.get("/client/index.js", headers={"if-none-match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        other = await server.client.get("/client/index.js", headers={"if-none-match": '"other"'})
        assert other.content == first.content


@pytest.mark.parametrize(
    "name",
    [
        "",
        "nothing.js",
        "package.json",
        "test/fakes.js",
        "../pyproject.toml",
        "..%2f..%2fpyproject.toml",
        "demo",
        "/etc/passwd",
    ],
)
async def test_nothing_else_of_the_disk_is_served(serving: Any, name: str) -> None:
    async with serving() as server:
        answer = await server.client.get(f"/client/{name}")
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "not_found"


def test_files_are_read_once(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "index.html").write_text("before")
    assets = read_assets(tmp_path)
    (tmp_path / "demo" / "index.html").write_text("after")
    assert assets["demo/index.html"].body == b"before"


def test_all_of_the_library_is_among_them() -> None:
    modules = {path.name for path in FOLDER.glob("*.js")}
    assert modules <= read_assets().keys()
