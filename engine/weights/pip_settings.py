"""What the user told pip: where a file lies, and how to get there.

It asks pip itself (`pip index`, `pip config`), so that mirrors, proxies, certificates and credentials are set in one
place. What it cannot honour (a keyring, trusted hosts) makes a request fail, and the caller leaves the file to pip.
"""

from __future__ import annotations

import ast
import base64
import netrc
import os
import re
import ssl
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from voxlane.engine.weights.resume import CannotResume, Route, answers

_LINK = re.compile(r"\s*Found link (\S+)")
_SETTING = re.compile(r"(?P<section>[^.=]+)\.(?P<name>[^=]+)=(?P<value>.*)")
_SECTIONS = ("global", "install", "download", ":env:")  # the later wins
_DEFAULT_INDEX = "https://pypi.org/simple"
_IMPATIENT = ("--retries", "0", "--timeout", "2")


def pip_command(*words: str) -> list[str]:
    """Return the command line of a pip that asks nothing."""
    return [sys.executable, "-m", "pip", *words, "--no-input", "--disable-pip-version-check"]


def pip_patience() -> tuple[str, ...]:
    """Return the options with which pip gives up at once if none of its indexes can be reached; none if one can be.

    By itself pip tries each address of each host for 15 s, six times over. Indexes on this machine's disk work with the
    options too.
    """
    settings = _settings()
    if settings.get("proxy") or settings.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        return ()
    places = [settings.get("index-url", _DEFAULT_INDEX), *settings.get("extra-index-url", "").split()]
    remote = [place for place in places if place.startswith(("http://", "https://"))]
    return () if any(map(answers, remote)) else _IMPATIENT


def find_link(requirement: str, file: str, *, binary: bool) -> str | None:
    """Return the address of a file of a release on the user's indexes, without credentials; None if it has no URL."""
    # `pip install --dry-run --report` says it too, but fetches the whole file unless the index serves its metadata
    # apart. This never does; the text is pip's own log, and where it should change there is no link and no resuming.
    choice = ("--only-binary", ":all:") if binary else ("--no-binary", ":all:", "--ignore-requires-python")
    for line in _ask("index", "versions", requirement.split("==")[0], "-vv", *choice):
        if match := _LINK.match(line):
            parts = urllib.parse.urlsplit(match[1])
            name = urllib.parse.unquote(parts.path.rpartition("/")[2])
            if name == file and parts.scheme in ("http", "https"):
                return parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment="").geturl()
    return None


def route_to(url: str) -> Route:
    """Return how pip would connect to `url`, or raise CannotResume."""
    settings = _settings()
    handlers: list[urllib.request.BaseHandler] = []
    if proxy := settings.get("proxy"):
        proxy = proxy if "://" in proxy else f"http://{proxy}"
        handlers.append(urllib.request.ProxyHandler({"http": proxy, "https": proxy}))
    try:
        handlers.append(urllib.request.HTTPSHandler(context=_context(settings)))
        timeout_s = float(settings.get("timeout") or settings.get("default-timeout") or Route().timeout_s)
    except (OSError, ValueError) as error:
        raise CannotResume(f"pip's settings: {error}") from error
    return Route(urllib.request.build_opener(*handlers), _authorization(url, settings), timeout_s=timeout_s)


def _ask(*words: str) -> list[str]:
    answer = subprocess.run(
        pip_command(*words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False
    )
    return answer.stdout.decode("utf-8", "replace").splitlines()


def _settings() -> dict[str, str]:
    found = [match for line in _ask("config", "list") if (match := _SETTING.fullmatch(line))]
    settings = {}
    for section in _SECTIONS:
        for match in found:
            if match["section"] == section:
                settings[match["name"]] = str(ast.literal_eval(match["value"]))
    return settings


def _context(settings: Mapping[str, str]) -> ssl.SSLContext:
    # In this order: for the library that pip uses these variables go before what pip tells it.
    bundle = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or settings.get("cert")
    if bundle and Path(bundle).is_dir():
        context = ssl.create_default_context(capath=bundle)
    else:
        context = ssl.create_default_context(cafile=bundle or None)
    if certificate := settings.get("client-cert"):
        context.load_cert_chain(certificate)
    return context


def _authorization(url: str, settings: Mapping[str, str]) -> str | None:
    """Return the credentials for `url`: those of an index on the same host, else those in .netrc."""
    target = urllib.parse.urlsplit(url)
    for name in ("index-url", "extra-index-url", "find-links"):
        for place in map(urllib.parse.urlsplit, settings.get(name, "").split()):
            if place.username and (place.scheme, _host(place)) == (target.scheme, _host(target)):
                return _basic(urllib.parse.unquote(place.username), urllib.parse.unquote(place.password or ""))
    try:
        entry = netrc.netrc(os.environ.get("NETRC")).authenticators(target.hostname or "")
    except (OSError, netrc.NetrcParseError):
        return None
    return _basic(entry[0], entry[2] or "") if entry else None


def _host(parts: urllib.parse.SplitResult) -> str:
    return parts.netloc.rpartition("@")[2].lower()


def _basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode("ascii")
