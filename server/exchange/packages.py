"""Asterisk and baresip from Debian's packages, in a folder of their own."""

from __future__ import annotations

import fcntl
import glob
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import platformdirs

from voxlane.server.exchange.errors import ExchangeError

Say = Callable[[str], None]

PACKAGES = ("asterisk", "asterisk-modules", "baresip-core")
SUITE = "sid"
"""Debian's only release with Asterisk 22."""

KEYRING = "/usr/share/keyrings/debian-archive-keyring.[gp][gp][gp]"
"""Debian's keys, where the package of that name is installed."""

MIRROR_VARIABLE, CACHE_VARIABLE = "VOXLANE_DEBIAN_MIRROR", "VOXLANE_CACHE"


def installed(folder: Path | None = None, say: Say = print) -> Path:
    """Return the folder with Asterisk and baresip, installed now if they are not there.

    They are Debian's packages for this machine's processor, unpacked into a folder, with their own C library. Nothing
    else on the machine changes, so no rights of root are needed. An interrupted installation leaves no folder.
    """
    cache = Path(os.environ.get(CACHE_VARIABLE) or platformdirs.user_cache_dir("voxlane"))
    folder = folder or cache / "exchange"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test processes may come at once
        if not folder.exists():
            for left in folder.parent.glob(f"{folder.name}.new-*"):
                shutil.rmtree(left)
            building = Path(tempfile.mkdtemp(prefix=f"{folder.name}.new-", dir=folder.parent))
            try:
                _fetch(building / "apt", say)
                _unpack(building / "apt", building / "tree", say)
                (building / "tree").rename(folder)
            finally:
                shutil.rmtree(building, ignore_errors=True)
            say(f"Asterisk and baresip are in {folder}")
    return folder


@dataclass(frozen=True, slots=True)
class AptSource:
    """A Debian mirror that apt is set up with, and the key or key file that apt checks it with."""

    uri: str
    signed_by: str = ""


def debian_source(folder: Path = Path("/etc/apt"), release: Path = Path("/etc/os-release")) -> AptSource | None:
    """Return the mirror of Debian's main archive in apt's settings."""
    values = dict(line.split("=", 1) for line in release.read_text().splitlines() if "=" in line)
    suites = {"stable", "testing", "unstable", SUITE}
    if values.get("ID") == "debian":
        suites.add(values.get("VERSION_CODENAME", SUITE).strip('"'))
    for uri, signed_by, names in _apt_entries(folder):
        if suites & set(names):
            return AptSource(uri, signed_by)
    return None


def _apt_entries(folder: Path) -> Iterator[tuple[str, str, list[str]]]:
    """Yield address, key and suites of every entry, from both of apt's formats."""
    for path in sorted((folder / "sources.list.d").glob("*.sources")):
        text = re.sub(r"(?m)^#.*\n", "", path.read_text())
        for paragraph in re.split(r"\n\s*\n", text):
            found = re.findall(r"(?m)^([\w-]+):[ \t]*((?:.*)(?:\n[ \t].*)*)", paragraph)
            fields = {name.lower(): value for name, value in found}
            if "deb" in fields.get("types", "").split() and fields.get("enabled", "yes").strip() != "no":
                for uri in fields.get("uris", "").split():
                    yield uri, fields.get("signed-by", ""), fields.get("suites", "").split()
    for path in [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*.list"))]:
        for line in path.read_text().splitlines() if path.exists() else []:
            if match := re.match(r"deb\s+(?:\[(.*?)\]\s+)?(\S+)\s+(\S+)", line):
                options, uri, suite = match.groups()
                signed = re.search(r"signed-by=(\S+)", options or "")
                yield uri, signed[1] if signed else "", [suite]


def _fetch(folder: Path, say: Say) -> None:
    """Let apt download the packages into a folder of its own; apt checks their signatures."""
    missing = [name for name in ("apt-get", "dpkg-deb") if shutil.which(name) is None]
    if missing:
        raise ExchangeError(f"a true call needs Debian's packages, and this machine has no {missing[0]}")
    mirror = os.environ.get(MIRROR_VARIABLE)
    source = AptSource(mirror, next(iter(glob.glob(KEYRING)), "")) if mirror else debian_source()
    if source is None:
        raise ExchangeError(f"a true call needs a Debian mirror: apt's sources name none; {MIRROR_VARIABLE} can")
    _write_apt_settings(folder, source)
    say(f"fetching the list of Debian {SUITE}'s packages from {urlsplit(source.uri).hostname or source.uri}")
    fresh: list[str] = []
    status, text = _apt(folder, "update")
    if status and "is expired" in text:
        say("the mirror's copy is out of date; it is signed, and is used all the same")
        fresh = ["-o", "Acquire::Check-Valid-Until=false"]
        status, text = _apt(folder, *fresh, "update")
    if status == 0:
        say("fetching Asterisk, baresip and their libraries (about 85 MB)")
        status, text = _apt(folder, *fresh, "--yes", "--download-only", "install", *PACKAGES)
    if status:
        errors = [line[2:].strip() for line in text.splitlines() if line.startswith("E:")]
        raise ExchangeError(f"Debian's packages cannot be fetched: {errors[0] if errors else text.strip()[-200:]}")


def _write_apt_settings(folder: Path, source: AptSource) -> None:
    for part in ("state/lists/partial", "cache/archives/partial"):
        (folder / part).mkdir(parents=True)
    (folder / "status").touch()  # no package counts as installed: all libraries are fetched
    entry = f"Types: deb\nURIs: {source.uri}\nSuites: {SUITE}\nComponents: main\n"
    (folder / "debian.sources").write_text(entry + (f"Signed-By: {source.signed_by}\n" if source.signed_by else ""))
    dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True).stdout
    kept = [line for line in dump.splitlines() if re.match(r"Acquire::(http|https|ftp)\b|Acquire::.*Proxy", line)]
    settings = {
        "Dir::State": folder / "state",
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder / "cache",
        "Dir::Etc::main": "/dev/null",  # without the machine's hooks
        "Dir::Etc::parts": "/dev/null",
        "Dir::Etc::sourcelist": folder / "debian.sources",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "",
        "APT::Get::List-Cleanup": "false",
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
        "APT::Update::Error-Mode": "any",  # a mirror that cannot be reached is an error
    }
    lines = [*kept, *(f'{name} "{value}";' for name, value in settings.items())]
    (folder / "apt.conf").write_text("\n".join(lines) + "\n")


def _apt(folder: Path, *arguments: str) -> tuple[int, str]:
    environment = {**os.environ, "APT_CONFIG": str(folder / "apt.conf"), "LC_ALL": "C"}
    done = subprocess.run(
        ["apt-get", "-q", *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


def _unpack(apt: Path, tree: Path, say: Say) -> None:
    """Unpack the downloaded packages; their installation scripts do not run."""
    archives = sorted((apt / "cache/archives").glob("*.deb"))
    say(f"unpacking {len(archives)} packages")
    for archive in archives:
        done = subprocess.run(["dpkg-deb", "--extract", archive, tree], capture_output=True, text=True)
        if done.returncode:
            raise ExchangeError(f"{archive.name} cannot be unpacked: {done.stderr.strip()[-200:]}")
    keep = {"asterisk", "baresip", "alsa"}
    unused = [path for path in (tree / "usr/share").iterdir() if path.name not in keep]
    for path in [tree / "etc", tree / "var", *unused, *tree.glob("usr/lib/*/perl*"), *tree.glob("usr/lib/*/gconv")]:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
