"""The exchange: Asterisk with a dialplan that leads to voxlane."""

from __future__ import annotations

import re
import secrets
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode, urlsplit, urlunsplit

from voxlane.server.exchange.errors import ExchangeError
from voxlane.server.exchange.packages import installed
from voxlane.server.exchange.programs import ANSWER_S, START_S, bundled, free_ports, last_line, running

MULAW, SLIN16, AUDIOSOCKET, SLIN24, AUDIOSOCKET16, ECHO = "100", "101", "102", "103", "104", "199"
"""Numbers to dial: WebSocket with μ-law, 16 kHz and 24 kHz; AudioSocket with 8 and 16 kHz; the exchange's own echo."""

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


class TelephoneExchange:
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
        self.port, (self._first, self._last) = free_ports(1)[0], free_ports(4 * calls)
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
            self.process = stack.enter_context(running(command, stdout=output, stderr=subprocess.STDOUT))
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
                raise ExchangeError(f"Asterisk does not start: {last_line(self.folder / 'log/output')}")
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
