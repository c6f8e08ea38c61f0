"""A true telephone call on one machine: baresip, a soft phone, rings voxlane through Asterisk, a telephone exchange.

`installed` fetches both programs, `Exchange` runs Asterisk, `Phone` runs baresip. SIP and RTP are real on both sides of
Asterisk. Between the phone and the exchange lies a relay in this process. It is the phone's microphone, so a test can
speak at a moment of its choice, and it writes down every packet of sound with its time.

The clock of all times here is `time.monotonic()`, in seconds:

- A packet that the phone sends at a moment holds the 20 ms before that moment, as with a microphone.
- A packet that arrives at a moment plays from that moment on. A phone's jitter buffer would come on top.
- An arriving packet has the kernel's time, so a busy test process does not spoil it.

`python tests/support/phone_exchange.py http://127.0.0.1:8000` rings a running server.
"""

from __future__ import annotations

import argparse
import fcntl
import glob
import json
import os
import random
import re
import secrets
import selectors
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self
from urllib.parse import urlencode, urlsplit, urlunsplit

import httpx
import numpy as np
import platformdirs
from numpy.typing import ArrayLike, NDArray

from voxlane.codecs.g711 import decode_mulaw, encode_mulaw
from voxlane.codecs.g722 import G722Decoder, G722Encoder
from voxlane.codecs.resample import resample
from voxlane.codecs.wav import decode_wav, encode_wav

Floats = NDArray[np.float32]
Say = Callable[[str], None]

FRAME_S = 0.02
"""Length of the sound in one packet."""

PACKAGES = ("asterisk", "asterisk-modules", "baresip-core")
SUITE = "sid"
"""Debian's only release with Asterisk 22."""

KEYRING = "/usr/share/keyrings/debian-archive-keyring.[gp][gp][gp]"
"""Debian's keys, where the package of that name is installed."""

MIRROR_VARIABLE, CACHE_VARIABLE = "VOXLANE_DEBIAN_MIRROR", "VOXLANE_CACHE"

MULAW, SLIN16, AUDIOSOCKET, SLIN24, AUDIOSOCKET16, ECHO = "100", "101", "102", "103", "104", "199"
"""Numbers to dial: WebSocket with μ-law, 16 kHz and 24 kHz; AudioSocket with 8 and 16 kHz; the exchange's own echo."""

CALLER = "+15550100"
LOUD = 0.01
"""Sound above this part of full scale is no silence."""

START_S, ANSWER_S = 60.0, 15.0


class ExchangeError(RuntimeError):
    """The exchange or the phone cannot be installed or started. The text is one line for a person."""


class CallRefused(RuntimeError):
    """The exchange ended the call before it was answered."""


# --- Installation ---------------------------------------------------------------------------------------------------


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


def bundled(tree: Path, program: str) -> list[str]:
    """Return the start of a command line that runs a program of `installed` with its own libraries."""
    (loader,) = tree.glob("usr/lib/*/ld-linux*.so.*")
    return [str(loader), "--library-path", str(loader.parent), str(tree / program)]


# --- The exchange ---------------------------------------------------------------------------------------------------

MODULES = """
app_audiosocket app_dial app_echo bridge_simple chan_audiosocket chan_pjsip chan_websocket codec_alaw codec_g722
codec_resample codec_ulaw func_callerid func_curl func_logic func_strings func_uri func_uuid pbx_config res_audiosocket
res_curl res_http_websocket
res_pjproject res_pjsip res_pjsip_authenticator_digest res_pjsip_caller_id res_pjsip_dtmf_info
res_pjsip_endpoint_identifier_user res_pjsip_nat res_pjsip_pubsub res_pjsip_registrar res_pjsip_sdp_rtp
res_pjsip_session res_rtp_asterisk res_sorcery_astdb res_sorcery_config res_sorcery_memory res_timing_timerfd
res_websocket_client
"""
"""Parts of Asterisk that a call needs. All others stay out: some listen on ports of their own."""

UNUSED = "acl ccss cdr cel chan_websocket features manager pjproject stasis udptl"
"""Settings files that Asterisk misses with an error in its log."""

DIRECTORIES = {
    "astetcdir": "etc", "astvarlibdir": "spool", "astdbdir": "spool", "astkeydir": "spool", "astspooldir": "spool",
    "astrundir": "run", "astlogdir": "log",
}  # fmt: skip


class Exchange:
    """Asterisk in a process of its own, as long as the context lasts. It keeps all its files in one temporary folder.

    `websocket` is the address of voxlane's telephone route, `token` its key (VOXLANE_PHONE_KEY). Asterisk sends the key
    as the password of HTTP Basic authentication, with the user name "voxlane". `audiosocket` is host and port of
    voxlane's AudioSocket listener. `uuid` is the call's name there; by default each call has a new one. Up to `calls`
    calls can run at once.
    """

    user = "phone"

    def __init__(
        self,
        websocket: str = "",
        *,
        token: str = "",
        audiosocket: tuple[str, int] | None = None,
        uuid: str = "${UUID()}",
        address: str = "127.0.0.1",
        calls: int = 8,
        folder: Path | None = None,
    ) -> None:
        self.tree = installed(folder)
        self.address = address
        self.password = secrets.token_urlsafe(12)
        self.port, (self._first, self._last) = _free_ports(1)[0], _free_ports(4 * calls)
        self._server = (websocket, token, audiosocket, uuid)
        self._stack = ExitStack()

    @property
    def host(self) -> str:
        """The address at which programs on this machine reach the exchange."""
        return "127.0.0.1" if self.address == "0.0.0.0" else self.address

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            # A short path: the name of Asterisk's control socket has at most 107 bytes.
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="voxlane-exchange-")))
            self._configure()
            output = stack.enter_context((self.folder / "log/output").open("wb"))
            command = [*self._asterisk(), "-f"]
            self.process = stack.enter_context(_running(command, stdout=output, stderr=subprocess.STDOUT))
            self._wait_booted()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def console(self, command: str) -> str:
        """Return what Asterisk's console answers to a command, such as `core show channels`."""
        done = subprocess.run([*self._asterisk(), "-rx", command], capture_output=True, text=True, timeout=ANSWER_S)
        return done.stdout if done.returncode == 0 else ""

    def log(self) -> str:
        """Return Asterisk's log: the steps of the dialplan, warnings and errors."""
        path = self.folder / "log/full"
        return path.read_text(errors="replace") if path.exists() else ""

    def _asterisk(self) -> list[str]:
        return [*bundled(self.tree, "usr/sbin/asterisk"), "-C", str(self.folder / "etc/asterisk.conf")]

    def _wait_booted(self) -> None:
        deadline = time.monotonic() + START_S
        while "fully booted" not in self.console("core waitfullybooted"):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise ExchangeError(f"Asterisk does not start: {_last_line(self.folder / 'log/output')}")
            time.sleep(0.05)
        if failed := re.search(r"ERROR.*?: (.*)\n.* (\w+) declined to load", self.log()):
            raise ExchangeError(f"Asterisk cannot load {failed[2]}: {failed[1]}")

    def _configure(self) -> None:
        for name in ("etc", "spool", "run", "log"):
            (self.folder / name).mkdir()
        (modules,) = self.tree.glob("usr/lib/*/asterisk/modules")
        places = {"astmoddir": modules, "astdatadir": self.tree / "usr/share/asterisk"}
        places |= {name: self.folder / part for name, part in DIRECTORIES.items()}
        websocket, token, audiosocket, uuid = self._server
        self._write("asterisk", directories=places, options={"verbose": 3, "nocolor": "yes"})
        self._write("modules", modules=[("autoload", "no"), *(("load", f"{name}.so") for name in MODULES.split())])
        self._write("logger", general={}, logfiles={"full": "notice,warning,error,verbose"})
        self._write("rtp", general={"rtpstart": self._first, "rtpend": self._last, "strictrtp": "no"})
        for name in UNUSED.split():
            self._write(name)
        self._write_pjsip()
        clients = {"voxlane": _websocket_client(websocket, token)} if websocket else {}
        self._write("websocket_client", **clients)
        (self.folder / "etc/extensions.conf").write_text(_dialplan(_follow_up(websocket, token), audiosocket, uuid))

    def _write_pjsip(self) -> None:
        self._write(
            "pjsip",
            ("global", {"type": "global", "endpoint_identifier_order": "auth_username,username"}),
            ("udp", {"type": "transport", "protocol": "udp", "bind": f"{self.address}:{self.port}"}),
            (
                self.user,
                {
                    "type": "endpoint",
                    "transport": "udp",
                    "context": "calls",
                    "disallow": "all",
                    "allow": "ulaw,g722,alaw",
                    "auth": self.user,
                    "aors": self.user,
                    "identify_by": "auth_username,username",
                    "direct_media": "no",
                    "rtp_symmetric": "yes",
                    "force_rport": "yes",
                    "rewrite_contact": "yes",
                },
            ),
            (
                self.user,
                {"type": "auth", "auth_type": "userpass", "username": self.user, "password": self.password},
            ),
            (self.user, {"type": "aor", "max_contacts": 8}),
        )

    def _write(self, name: str, *more: tuple[str, Mapping[str, object]], **sections: Any) -> None:
        lines: list[str] = []
        for title, entries in [*more, *sections.items()]:
            pairs = entries.items() if isinstance(entries, Mapping) else entries
            lines += [f"[{title}]", *(f"{key} = {_escaped(str(value))}" for key, value in pairs)]
        path = self.folder / f"etc/{name}.conf"
        path.touch(mode=0o600)  # some hold secrets
        path.write_text("\n".join(lines) + "\n")


def _escaped(value: str) -> str:
    """Return a value for an Asterisk settings file, where a semicolon begins a comment."""
    if not value.isprintable():
        raise ExchangeError("a setting of the exchange holds a line break")
    return value.replace(";", r"\;")


def _websocket_client(url: str, token: str) -> dict[str, str]:
    settings = {
        "type": "websocket_client",
        "connection_type": "per_call_config",
        "uri": url,
        "protocols": "media",
        "connection_timeout": "2000",
        "reconnect_attempts": "1",
        "tls_enabled": "yes" if url.startswith("wss:") else "no",
    }
    return settings | ({"username": "voxlane", "password": token} if token else {})


def _follow_up(websocket: str, token: str) -> str:
    """Return the address where the server says what follows after a call, up to the name of the call."""
    if not websocket:
        return ""
    parts = urlsplit(websocket)
    query = urlencode({"token": token} if token else {})
    scheme = parts.scheme.replace("ws", "http")
    return urlunsplit((scheme, parts.netloc, f"{parts.path}/next", f"{query}&call=" if query else "call=", ""))


def _dialplan(follow_up: str, audiosocket: tuple[str, int] | None, uuid: str) -> str:
    """Return what Asterisk does with each number.

    The server gets caller and callee twice: in the address's query, and as variables in its first message. After a
    call Asterisk asks it for the number to go on with.
    """
    facts = ["Set(_VOXLANE_FROM=${CALLERID(num)})", "Set(_VOXLANE_TO=${EXTEN})"]
    steps = {ECHO: ["Answer()", "Echo()"]}
    if follow_up:
        query = "v(from=${URIENCODE(${CALLERID(num)})},to=${URIENCODE(${EXTEN})},call=${UNIQUEID})"
        after = [f"Set(NEXT=${{CURL({follow_up}${{UNIQUEID}})}})", "GotoIf($[${LEN(${NEXT})}]?calls,${NEXT},1)"]
        for number, codec in ((MULAW, "ulaw"), (SLIN16, "slin16"), (SLIN24, "slin24")):
            steps[number] = [*facts, f"Dial(WebSocket/voxlane/c({codec})f(json){query},30,g)", *after]
    if audiosocket:
        where = f"{audiosocket[0]}:{audiosocket[1]}"
        steps[AUDIOSOCKET] = ["Answer()", f"AudioSocket({uuid},{where})"]
        steps[AUDIOSOCKET16] = [f"Dial(AudioSocket/{where}/{uuid}/c(slin16),30)"]
    lines = ["[calls]"]
    for number, applications in steps.items():
        for place, application in enumerate([*applications, "Hangup()"], 1):
            lines.append(f"exten => {number},{place},{_escaped(application)}")
    return "\n".join(lines) + "\n"


def _free_ports(count: int) -> tuple[int, int]:
    """Return the first and last of adjacent free UDP ports, outside the range from which the kernel gives ports."""
    for _ in range(100):
        first = random.randrange(20_000, 32_000 - count, 2)
        with ExitStack() as stack, suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)).bind(("0.0.0.0", port))
            return first, first + count - 1
    raise ExchangeError("this machine has no free ports for telephone calls")


@contextmanager
def _running(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program as long as the context lasts."""
    # The program ends with this process, also where this process is killed.
    guard = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
    process = subprocess.Popen([*guard, *command], stdin=subprocess.DEVNULL, **options)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it says nothing"


# --- Sound on a clock -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Recording:
    """Sound of one direction of a call: `samples` begin at `start`. Nothing arrived where there is silence."""

    start: float
    rate: int
    samples: Floats

    def between(self, begin: float, end: float) -> Floats:
        """Return the samples between two moments."""
        first, last = (max(0, round((moment - self.start) * self.rate)) for moment in (begin, end))
        return self.samples[first:last]

    def stretches(self, level: float = LOUD, pause_s: float = 0.2) -> list[tuple[float, float]]:
        """Return begin and end of every stretch of sound. Silence shorter than `pause_s` belongs to the stretch."""
        width = self.rate // 200  # 5 ms
        count = len(self.samples) // width
        peaks = np.abs(self.samples[: count * width]).reshape(count, width).max(axis=1, initial=0.0)
        found: list[tuple[float, float]] = []
        for place in np.flatnonzero(peaks > level):
            begin = self.start + float(place) * width / self.rate
            end = begin + width / self.rate
            if found and begin - found[-1][1] < pause_s:
                found[-1] = (found[-1][0], end)
            else:
                found.append((begin, end))
        return found

    def sound_from(self, moment: float, level: float = LOUD) -> float | None:
        """Return when sound is first heard at or after a moment."""
        return next((max(begin, moment) for begin, end in self.stretches(level) if end > moment), None)

    def silent_from(self, moment: float, level: float = LOUD, pause_s: float = 0.2) -> float:
        """Return when silence of at least `pause_s` begins, at or after a moment."""
        covering = (end for begin, end in self.stretches(level, pause_s) if begin <= moment < end)
        return next(covering, moment)

    def wav(self) -> bytes:
        """Return the recording as a WAV file."""
        return encode_wav(self.samples, self.rate)


@dataclass(frozen=True, slots=True)
class Packet:
    """Sound of one RTP packet. `moment` is when its first sample is spoken or played."""

    moment: float
    timestamp: int
    samples: Floats


def timeline(packets: Sequence[Packet], start: float, end: float, rate: int) -> Recording:
    """Return packets as one recording from `start` to `end`.

    Packets whose RTP timestamps follow each other lie side by side, as a phone plays them. The first packet of a
    stretch lies where it arrived, and so does one that is more than 60 ms from its place.
    """
    samples = np.zeros(max(0, round((end - start) * rate)), dtype=np.float32)
    expected, place = -1, 0.0
    for packet in packets:
        if packet.timestamp != expected or abs(packet.moment - place) > 3 * FRAME_S:
            place = packet.moment
        first = round((place - start) * rate)
        piece = packet.samples[max(0, -first) : max(0, len(samples) - first)]
        samples[max(0, first) : max(0, first) + len(piece)] = piece
        expected = packet.timestamp + 160  # both codes count 8,000 a second
        place += len(packet.samples) / rate
    return Recording(start, rate, samples)


class _Coder(Protocol):
    """Both directions of a telephone code; each keeps its state between packets."""

    def encode(self, samples: Floats) -> bytes: ...
    def decode(self, data: bytes) -> Floats: ...


class _Mulaw:
    def encode(self, samples: Floats) -> bytes:
        return encode_mulaw(samples)

    def decode(self, data: bytes) -> Floats:
        return decode_mulaw(data)


class _Wideband:
    def __init__(self) -> None:
        self._encoder, self._decoder = G722Encoder(), G722Decoder()

    def encode(self, samples: Floats) -> bytes:
        return self._encoder.push(samples)

    def decode(self, data: bytes) -> Floats:
        return self._decoder.decode(data)


@dataclass(frozen=True, slots=True)
class PhoneCode:
    """A code of the telephone network: its name in SDP, its RTP payload type, and its sample rate."""

    name: str
    payload_type: int
    rate: int
    coder: Callable[[], _Coder]


PCMU = PhoneCode("PCMU/8000", 0, 8_000, _Mulaw)
G722 = PhoneCode("G722/16000", 9, 16_000, _Wideband)


@dataclass(slots=True)
class Utterance:
    """Sound that was given to the microphone."""

    frames: deque[Floats]
    began: float | None = None
    ended: float | None = None
    over: threading.Event = field(default_factory=threading.Event)

    def wait(self, timeout_s: float = 60.0) -> tuple[float, float]:
        """Wait until all of it was spoken. Return when its first sample began and its last one ended."""
        assert self.over.wait(timeout_s), f"the phone did not speak within {timeout_s:g} s"
        assert self.began is not None
        assert self.ended is not None
        return self.began, self.ended


# --- The relay between phone and exchange ---------------------------------------------------------------------------


class CallRelay:
    """Relays one phone's SIP and RTP. It swaps the microphone's sound and writes down both directions.

    It changes the addresses in SDP, as a session border controller does, so that all sound passes here. `loss` is the
    share of packets that it drops in each direction.
    """

    def __init__(self, exchange: tuple[str, int], code: PhoneCode, loss: float = 0.0, seed: int = 0) -> None:
        self.code = code
        self.changed = threading.Condition()
        self.spoken: list[Packet] = []
        self.heard: list[Packet] = []
        self._speaking: deque[Utterance] = deque()
        self._coder = code.coder()
        self._loss, self._random = loss, random.Random(seed)
        self._exchange = exchange
        self._sip = _udp_socket()
        self._phone_sip: tuple[str, int] | None = None
        # Side 0 faces the phone, side 1 the exchange; of each pair the first is RTP and the second RTCP.
        self._media = [_udp_pair(), _udp_pair()]
        self._peers: list[tuple[str, int] | None] = [None, None]
        self._wake, self._stop = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="call relay")

    @property
    def port(self) -> int:
        """The SIP port that the phone takes for the exchange's."""
        return _port(self._sip)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.send(b"x")
        self._thread.join()
        for each in (self._sip, *self._media[0], *self._media[1], self._wake, self._stop):
            each.close()

    def say(self, samples: Floats) -> Utterance:
        """Queue sound at the code's rate behind what is being spoken."""
        width = round(self.code.rate * FRAME_S)
        padded = np.concatenate((samples, np.zeros(-len(samples) % width, dtype=np.float32)))
        utterance = Utterance(deque(padded.reshape(-1, width)))
        with self.changed:
            self._speaking.append(utterance)
        return utterance

    def hush(self) -> None:
        """Drop what was not spoken yet."""
        with self.changed:
            while self._speaking:
                utterance = self._speaking.popleft()
                now = time.monotonic()
                utterance.began, utterance.ended = utterance.began or now, utterance.ended or now
                utterance.over.set()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake, selectors.EVENT_READ)
            selector.register(self._sip, selectors.EVENT_READ, (self._relay_sip, 0))
            for side, (rtp, rtcp) in enumerate(self._media):
                selector.register(rtp, selectors.EVENT_READ, (self._relay_rtp, side))
                selector.register(rtcp, selectors.EVENT_READ, (self._relay_rtcp, side))
            while True:
                for key, _ in selector.select():
                    if key.data is None:
                        return
                    relay, side = key.data
                    with suppress(OSError):  # the other side has closed its port
                        relay(side)

    def _relay_sip(self, _: int) -> None:
        data, sender = self._sip.recvfrom(65_536)
        if sender == self._exchange:
            if self._phone_sip:
                self._sip.sendto(self._through(data, 1), self._phone_sip)
        else:
            self._phone_sip = sender
            self._sip.sendto(self._through(data, 0), self._exchange)

    def _through(self, message: bytes, side: int) -> bytes:
        """Return a SIP message from one side with this relay's ports in its SDP; remember the sender's ports."""
        head, separator, body = message.partition(b"\r\n\r\n")
        host = re.search(rb"(?m)^c=IN IP4 (\S+)", body)
        media = re.search(rb"(?m)^m=audio (\d+) ", body)
        if not host or not media:
            return message
        self._peers[side] = (host[1].decode(), int(media[1]))
        port = _port(self._media[1 - side][0])
        body = re.sub(rb"(?m)^c=IN IP4 \S+", b"c=IN IP4 127.0.0.1", body)
        body = re.sub(rb"(?m)^m=audio \d+ ", b"m=audio %d " % port, body)
        body = re.sub(rb"(?m)^a=rtcp:\d+", b"a=rtcp:%d" % (port + 1), body)
        head = re.sub(rb"(?mi)^(Content-Length|l)([ \t]*:[ \t]*)\d+", rb"\g<1>\g<2>%d" % len(body), head)
        return head + separator + body

    def _relay_rtcp(self, side: int) -> None:
        data = self._media[side][1].recv(2048)
        if peer := self._peers[1 - side]:
            self._media[1 - side][1].sendto(data, (peer[0], peer[1] + 1))

    def _relay_rtp(self, side: int) -> None:
        data, arrived = _receive(self._media[side][0])
        if len(data) < 12:
            return
        sound = data[1] & 0x7F == self.code.payload_type  # the others are keys
        if sound and side == 0:
            data = self._speak(data)
        if sound and self._random.random() < self._loss:
            return
        if sound and side == 1:
            self._hear(data, arrived)
        if peer := self._peers[1 - side]:
            self._media[1 - side][0].sendto(data, peer)

    def _speak(self, data: bytes) -> bytes:
        """Return the phone's packet with the microphone's sound."""
        header = 12 + 4 * (data[0] & 0x0F)
        width = round(self.code.rate * FRAME_S)
        with self.changed:
            begin = time.monotonic() - FRAME_S
            samples = np.zeros(width, dtype=np.float32)
            if self._speaking:
                utterance = self._speaking[0]
                utterance.began = utterance.began or begin
                if utterance.frames:
                    samples = utterance.frames.popleft()
                utterance.ended = begin + FRAME_S
                if not utterance.frames:
                    self._speaking.popleft().over.set()
            self.spoken.append(Packet(begin, struct.unpack_from("!I", data, 4)[0], samples))
        return data[:header] + self._coder.encode(samples)

    def _hear(self, data: bytes, arrived: float) -> None:
        samples = self._coder.decode(data[12 + 4 * (data[0] & 0x0F) :])
        with self.changed:
            self.heard.append(Packet(arrived, struct.unpack_from("!I", data, 4)[0], samples))
            self.changed.notify_all()


def _udp_socket(port: int = 0) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        made.bind(("127.0.0.1", port))
        made.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    except OSError:
        made.close()
        raise
    return made


def _udp_pair() -> tuple[socket.socket, socket.socket]:
    """Return two sockets on adjacent ports, the first one even."""
    for _ in range(100):
        first = _udp_socket()
        with suppress(OSError):
            if _port(first) % 2 == 0:
                return first, _udp_socket(_port(first) + 1)
        first.close()
    raise ExchangeError("this machine has no free ports for telephone calls")


_SO_TIMESTAMPNS = 35
"""Linux: the kernel tells when a packet arrived. Python's socket module has no name for it."""


def _receive(source: socket.socket) -> tuple[bytes, float]:
    """Return a packet, and when the kernel got it."""
    data, extra, _, _ = source.recvmsg(2048, 64)
    arrived = time.monotonic()
    for level, kind, value in extra:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS:
            seconds, nanoseconds = struct.unpack("@ll", value[: struct.calcsize("@ll")])
            arrived -= max(0.0, time.time() - (seconds + nanoseconds / 1e9))
    return data, arrived


def _port(bound: socket.socket) -> int:
    return int(bound.getsockname()[1])


# --- The phone ------------------------------------------------------------------------------------------------------

BARESIP_CONFIG = """\
poll_method epoll
sip_listen 127.0.0.1:0
rtp_ports {first}-{last}
audio_source aubridge,phone
audio_player aubridge,phone
audio_alert aubridge,alert
audio_level no
module_path {modules}
module g711.so
module g722.so
module aubridge.so
module_tmp account.so
module_app ctrl_tcp.so
module_app menu.so
ctrl_tcp_listen 127.0.0.1:{control}
"""


class Phone:
    """baresip in its own process, as long as the context lasts. A `CallRelay` is its microphone and loudspeaker."""

    def __init__(
        self,
        exchange: Exchange,
        *,
        caller: str = CALLER,
        code: PhoneCode = PCMU,
        loss: float = 0.0,
        seed: int = 0,
    ) -> None:
        self._exchange = exchange
        self._caller = caller
        self._relay = CallRelay((exchange.host, exchange.port), code, loss, seed)
        self._arrived = threading.Condition()
        self._answers: deque[dict[str, Any]] = deque()
        self.events: list[tuple[float, str, str]] = []
        self.established: float | None = None
        self.closed: float | None = None
        self.reason = ""
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._relay)
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="voxlane-phone-")))
            self._output = folder / "output"
            control = self._configure(folder)
            output = stack.enter_context(self._output.open("wb"))
            command = [*bundled(self._exchange.tree, "usr/bin/baresip"), "-f", str(folder)]
            environment = {**os.environ, "HOME": str(folder)}
            self._process = stack.enter_context(
                _running(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
            )
            self._control = stack.enter_context(self._connect(control))
            reader = threading.Thread(target=self._read, name="phone events")
            reader.start()
            stack.callback(reader.join)
            stack.callback(self._shut)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def dial(self, number: str, timeout_s: float = ANSWER_S) -> float:
        """Ring a number of the exchange and wait until it answers. Return when it did."""
        self._forget_call()
        self._command("dial", f"sip:{number}@127.0.0.1:{self._relay.port}")
        self._wait(lambda: self.established or self.closed, f"{number} does not answer", timeout_s)
        if self.established is None:
            raise CallRefused(self.reason)
        return self.established

    def hang_up(self) -> None:
        """End the call."""
        self._command("hangup")
        self.wait_closed()

    def wait_closed(self, timeout_s: float = ANSWER_S) -> float:
        """Wait until the call is over. Return when it ended; `reason` says how."""
        self._wait(lambda: self.closed, "the call does not end", timeout_s)
        assert self.closed is not None
        return self.closed

    def press(self, keys: str) -> None:
        """Press keys, one after the other; each sounds for about 0.2 s."""
        for key in keys:
            self._command("sndcode", key)
            time.sleep(0.3)

    def say(self, samples: ArrayLike, rate: int) -> Utterance:
        """Speak into the microphone from the next packet on, or after what is being spoken."""
        sound = np.asarray(samples, dtype=np.float32)
        code = self._relay.code
        return self._relay.say(sound if rate == code.rate else resample(sound, rate, code.rate))

    def hush(self) -> None:
        """Stop speaking."""
        self._relay.hush()

    def heard(self) -> Recording:
        """Return what the loudspeaker has played, from the start of the call until now or the call's end."""
        return self._recording(self._relay.heard)

    def spoken(self) -> Recording:
        """Return what the microphone has taken, from the start of the call until now or the call's end."""
        return self._recording(self._relay.spoken)

    def save(self, path: Path) -> None:
        """Write both directions to a stereo WAV file, the microphone on the left."""
        both = (self.spoken(), self.heard())
        length = min(len(each.samples) for each in both)
        path.write_bytes(encode_wav(np.stack([each.samples[:length] for each in both], axis=1), both[0].rate))

    def wait_for_sound(self, after: float | None = None, timeout_s: float = ANSWER_S, level: float = LOUD) -> float:
        """Wait until the loudspeaker plays sound, now or after a moment. Return when the sound began."""
        since = time.monotonic() if after is None else after
        deadline, place = time.monotonic() + timeout_s, 0
        with self._relay.changed:
            while True:
                for packet in self._relay.heard[place:]:
                    loud = np.flatnonzero(np.abs(packet.samples) > level)
                    if packet.moment >= since and len(loud):
                        return packet.moment + float(loud[0]) / self._relay.code.rate
                place = len(self._relay.heard)
                remaining = deadline - time.monotonic()
                assert self.closed is None, f"the call ended before there was sound: {self.reason}"
                assert remaining > 0, f"the phone heard nothing within {timeout_s:g} s"
                self._relay.changed.wait(min(remaining, 0.2))

    def wait_for_silence(self, lasting_s: float = 1.0, timeout_s: float = 60.0, level: float = LOUD) -> float:
        """Wait until the loudspeaker has been silent so long. Return when the silence began."""
        begun = time.monotonic()
        deadline, place = begun + timeout_s, 0
        while True:
            with self._relay.changed:
                packets, place = self._relay.heard[place:], len(self._relay.heard)
            for packet in packets:
                if np.abs(packet.samples).max(initial=0.0) > level:
                    begun = max(begun, packet.moment + FRAME_S)
            now = time.monotonic()
            if now >= begun + lasting_s or self.closed is not None:
                return begun
            assert now < deadline, f"the phone was never silent for {lasting_s:g} s"
            time.sleep(min(0.05, begun + lasting_s - now))

    def output(self) -> str:
        """Return baresip's own messages."""
        return self._output.read_text(errors="replace")

    def _recording(self, packets: list[Packet]) -> Recording:
        assert self.established is not None, "there was no call"
        with self._relay.changed:
            packets = [packet for packet in packets if packet.moment >= self.established - FRAME_S]
        return timeline(packets, self.established, self.closed or time.monotonic(), self._relay.code.rate)

    def _forget_call(self) -> None:
        with self._arrived:
            self.established = self.closed = None
            self.reason = ""

    def _configure(self, folder: Path) -> int:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            control = _port(free)
        modules = self._exchange.tree / "usr/lib/baresip/modules"
        first, last = _free_ports(4)
        settings = BARESIP_CONFIG.format(first=first, last=last, modules=modules, control=control)
        (folder / "config").write_text(settings)
        account = folder / "accounts"
        account.touch(mode=0o600)
        account.write_text(
            f"<sip:{self._caller}@127.0.0.1:{self._relay.port};transport=udp>;auth_user={self._exchange.user}"
            f";auth_pass={self._exchange.password};regint=0;audio_codecs={self._relay.code.name};answermode=manual\n"
        )
        (folder / "contacts").touch()
        return control

    def _connect(self, port: int) -> socket.socket:
        deadline = time.monotonic() + START_S
        while True:
            try:
                return socket.create_connection(("127.0.0.1", port))
            except ConnectionRefusedError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise ExchangeError(f"baresip does not start: {_last_line(self._output)}") from None
                time.sleep(0.05)

    def _shut(self) -> None:
        if self.established and self.closed is None:
            with suppress(AssertionError):
                self.hang_up()
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)

    def _command(self, command: str, parameters: str = "") -> None:
        body = json.dumps({"command": command, "params": parameters}).encode()
        with self._arrived:
            self._answers.clear()
        self._control.sendall(b"%d:%b," % (len(body), body))
        self._wait(lambda: self._answers, f"baresip does not answer to {command}", ANSWER_S)
        answer = self._answers.popleft()
        if "Cannot assign requested address" in answer.get("data", ""):
            raise ExchangeError("baresip needs a network interface besides the loopback interface")
        assert answer["ok"], f"baresip refuses {command}: {answer.get('data')}"

    def _wait(self, condition: Callable[[], object], trouble: str, timeout_s: float) -> None:
        with self._arrived:
            assert self._arrived.wait_for(condition, timeout_s), f"{trouble} within {timeout_s:g} s"

    def _read(self) -> None:
        """Take baresip's netstrings, each a JSON object, until the connection ends."""
        buffer = b""
        with suppress(OSError):
            while data := self._control.recv(65_536):
                buffer += data
                while (match := re.match(rb"(\d+):", buffer)) and len(buffer) > match.end() + int(match[1]):
                    end = match.end() + int(match[1])
                    self._take(json.loads(buffer[match.end() : end]))
                    buffer = buffer[end + 1 :]

    def _take(self, message: dict[str, Any]) -> None:
        now = time.monotonic()
        with self._arrived:
            if "response" in message:
                self._answers.append(message)
            else:
                self.events.append((now, message["type"], message.get("param", "")))
                if message["type"] == "CALL_ESTABLISHED":
                    self.established = now
                elif message["type"] == "CALL_CLOSED":
                    self.closed, self.reason = now, message.get("param", "")
            self._arrived.notify_all()


# --- A newcomer's call ----------------------------------------------------------------------------------------------


MICROPHONES = "/dev/snd/pcmC*D*c"
"""Linux's devices that record."""


def ring(
    server: str,
    *,
    token: str = "",
    api_key: str = "",
    question: Path | None = None,
    heard: Path = Path("call.wav"),
    wideband: bool = False,
    address: str = "127.0.0.1",
    stay: bool = False,
    say: Say = print,
) -> None:
    """Ring a running server.

    On a machine with a microphone, or with `stay`, the exchange stays until Ctrl-C, and a person can ring it with any
    SIP phone or with baresip in the terminal. Elsewhere the phone asks a question, from a WAV file or spoken by the
    server's own voice, and writes both directions of the call to a stereo WAV file. `token` is the key of the
    telephone route, `api_key` that of the speech route.
    """
    parts = urlsplit(server if "//" in server else f"http://{server}")
    scheme = "wss" if parts.scheme in ("https", "wss") else "ws"
    path = parts.path if parts.path.strip("/") else "/v1/phone"
    url = urlunsplit((scheme, parts.netloc, path, parts.query, ""))
    with Exchange(url, token=token, address=address) as exchange:
        if stay or glob.glob(MICROPHONES):
            _stay(exchange, say)
        else:
            base = urlunsplit((scheme.replace("ws", "http"), parts.netloc, "", "", ""))
            sound = decode_wav(question.read_bytes()) if question else _spoken_question(base, api_key)
            reply = _ask(exchange, sound, G722 if wideband else PCMU, heard, say)
            if text := _transcript(base, api_key, reply):
                say(f"the phone has heard: {text}")


def _stay(exchange: Exchange, say: Say) -> None:
    """Let a person ring, with baresip here where there is a microphone, until Ctrl-C or baresip's end."""
    say(f"SIP phones can ring {exchange.host}:{exchange.port} as user {exchange.user}, password {exchange.password}")
    say(f"numbers: {MULAW} narrowband, {SLIN16} and {SLIN24} wideband, {ECHO} echo; Ctrl-C ends")
    with tempfile.TemporaryDirectory(prefix="voxlane-phone-") as folder, suppress(KeyboardInterrupt):
        if glob.glob(MICROPHONES):
            subprocess.run(
                _terminal_phone(exchange, Path(folder)),
                env={**os.environ, "ALSA_CONFIG_DIR": str(exchange.tree / "usr/share/alsa")},
            )
        else:
            exchange.process.wait()


def _terminal_phone(exchange: Exchange, folder: Path, sound: str = "alsa") -> list[str]:
    """Return the command of a baresip that uses the machine's sound device and the terminal's keys."""
    parts = [f"module {name}.so" for name in ("stdio", "g711", "g722", sound)]
    device = [f"audio_{use} {sound},default" for use in ("source", "player", "alert")]
    modules = f"module_path {exchange.tree / 'usr/lib/baresip/modules'}"
    lines = ["poll_method epoll", modules, *parts, "module_tmp account.so", "module_app menu.so", *device]
    (folder / "config").write_text("\n".join(lines) + "\n")
    (folder / "accounts").touch(mode=0o600)
    login = f"auth_user={exchange.user};auth_pass={exchange.password};regint=0"
    (folder / "accounts").write_text(f"<sip:{CALLER}@{exchange.host}:{exchange.port};transport=udp>;{login}\n")
    (folder / "contacts").touch()
    number = f"sip:{SLIN16}@{exchange.host}:{exchange.port}"
    return [*bundled(exchange.tree, "usr/bin/baresip"), "-f", str(folder), "-e", f"/dial {number}"]


def _spoken_question(base: str, api_key: str) -> tuple[Floats, int]:
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    body = {"model": "tts-1", "voice": "alloy", "input": "What is the capital of France?", "response_format": "wav"}
    try:
        answer = httpx.post(f"{base}/v1/audio/speech", json=body, headers=headers, timeout=60.0).raise_for_status()
    except httpx.HTTPError as error:
        raise ExchangeError(f"the server at {base} does not speak: {error}") from error
    return decode_wav(answer.content)


def _transcript(base: str, api_key: str, recording: Recording) -> str:
    """Return the words of a recording, as the server hears them; "" if it cannot."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    files = {"file": ("reply.wav", recording.wav())}
    try:
        answer = httpx.post(f"{base}/v1/audio/transcriptions", files=files, headers=headers, timeout=60.0)
        text: str = answer.raise_for_status().json()["text"]
    except (httpx.HTTPError, ValueError, KeyError):
        return ""
    return text


def _ask(exchange: Exchange, sound: tuple[Floats, int], code: PhoneCode, path: Path, say: Say) -> Recording:
    """Ring, wait for a greeting to end, ask, wait for the reply to end, and hang up. Return the reply."""
    with Phone(exchange, code=code) as phone:
        answered = phone.dial(MULAW if code is PCMU else SLIN16)
        say("the server has answered")
        try:
            phone.wait_for_silence(lasting_s=2.0)
            phone.say(*sound).wait()
            asked = phone.spoken().stretches()[-1][1]  # without silence at the file's end
            say(f"asked, {asked - answered:.1f} s after the answer")
            begun = phone.wait_for_sound(after=asked, timeout_s=60.0)
            say(f"the reply began {1000 * (begun - asked):.0f} ms after the question's end")
            phone.wait_for_silence(lasting_s=2.0)
            if phone.closed is None:
                phone.hang_up()
            heard = phone.heard()
            return Recording(begun, heard.rate, heard.between(begun, heard.start + len(heard.samples) / heard.rate))
        finally:
            phone.save(path)
            say(f"the call is in {path}: the caller on the left, the server on the right")


def main(arguments: Sequence[str] | None = None) -> int:
    """Ring the server that the command line names."""
    parser = argparse.ArgumentParser(description="Ring a running voxlane through a real telephone exchange.")
    parser.add_argument("server", nargs="?", default="http://127.0.0.1:8000", help="the server's address")
    parser.add_argument("--token", default=os.environ.get("VOXLANE_PHONE_KEY", ""), help="the key of its phone route")
    parser.add_argument("--api-key", default=os.environ.get("VOXLANE_API_KEY", ""), help="the key of its other routes")
    parser.add_argument("--question", type=Path, help="a WAV file to say; by default the server's own voice asks")
    parser.add_argument("--heard", type=Path, default=Path("call.wav"), help="the WAV file to write")
    parser.add_argument("--wideband", action="store_true", help="ring with G.722 instead of μ-law")
    parser.add_argument("--stay", action="store_true", help="keep the exchange for a SIP phone of your own")
    parser.add_argument("--address", default="127.0.0.1", help="where the exchange listens: 0.0.0.0 for other machines")
    options = parser.parse_args(arguments)
    try:
        ring(**vars(options))
    except (ExchangeError, CallRefused, AssertionError) as error:
        print(f"no call: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
