"""The page over https and wss, in a browser: with a certificate that is renewed while the visitor stays."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
from certificates import Authority, write_pair
from chromium import Visitor, browser
from house import ENGINE_COMMAND
from playwright.sync_api import Playwright

SERVER = """
import asyncio, sys, uvloop
from voxlane.engine.api import EngineConfig
from voxlane.server.config import Config, ServerConfig
from voxlane.server.commands.serve import serve
config = Config(ServerConfig(port=0, tls_cert=sys.argv[1], tls_key=sys.argv[2]), EngineConfig("scripted"))
with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(serve(config, "", engine_command=sys.argv[3:]))
"""


@contextlib.contextmanager
def serving(cert: str, key: str) -> Iterator[str]:
    """Run a server around the scripted engine; give its address."""
    command = [sys.executable, "-c", SERVER, cert, key, *ENGINE_COMMAND]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first.startswith("voxlane "), first
        yield first.split()[-1]
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_a_visitor_over_tls(playwright: Playwright, tmp_path: Path) -> None:
    authority = Authority()
    cert, key = write_pair(tmp_path, authority.pair("first"))
    with (
        serving(cert, key) as url,
        contextlib.ExitStack() as opened,
        # The authority is not the browser's; that the certificate is right is checked by other clients.
        browser(playwright, ignore_https_errors=True) as context,
    ):
        assert url.startswith("https://")
        visitor = Visitor(context.new_page(), opened)
        sockets: list[str] = []
        visitor.page.on("websocket", lambda one: sockets.append(one.url))
        visitor.page.goto(f"{url}/?processing=off")
        visitor.type("hello")
        visitor.await_lines("assistant", "done")
        write_pair(tmp_path, authority.pair("second"))
        visitor.type("still here")
        visitor.await_lines("assistant", "done", 2)
        assert [one.partition("/v1/")[0] for one in sockets] == [url.replace("https", "wss", 1)]
        assert visitor.page.evaluate("window.isSecureContext")
        with httpx.Client(verify=authority.client()) as client:
            assert client.get(f"{url}/healthz").status_code == httpx.codes.OK
