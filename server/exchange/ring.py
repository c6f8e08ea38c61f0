"""Ring a running server: `make phone`, or `python -m voxlane.server.exchange.ring http://127.0.0.1:8000`."""

from __future__ import annotations

import argparse
import glob
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import httpx

from voxlane.codecs.wav import decode_wav
from voxlane.server.exchange.asterisk import ECHO, MULAW, SLIN16, SLIN24, TelephoneExchange
from voxlane.server.exchange.call_sound import G722, PCMU, CallSound, Floats, PhoneCode
from voxlane.server.exchange.errors import CallRefused, CallSilent, ExchangeError
from voxlane.server.exchange.packages import Say
from voxlane.server.exchange.programs import bundled
from voxlane.server.exchange.soft_phone import CALLER, Phone

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
    with TelephoneExchange(url, token=token, address=address) as exchange:
        if stay or glob.glob(MICROPHONES):
            _stay(exchange, say)
        else:
            base = urlunsplit((scheme.replace("ws", "http"), parts.netloc, "", "", ""))
            sound = decode_wav(question.read_bytes()) if question else _spoken_question(base, api_key)
            reply = _ask(exchange, sound, G722 if wideband else PCMU, heard, say)
            if text := _transcript(base, api_key, reply):
                say(f"the phone has heard: {text}")


def _stay(exchange: TelephoneExchange, say: Say) -> None:
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


def _terminal_phone(exchange: TelephoneExchange, folder: Path, sound: str = "alsa") -> list[str]:
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


def _transcript(base: str, api_key: str, recording: CallSound) -> str:
    """Return the words of a recording, as the server hears them; "" if it cannot."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    files = {"file": ("reply.wav", recording.wav())}
    try:
        answer = httpx.post(f"{base}/v1/audio/transcriptions", files=files, headers=headers, timeout=60.0)
        text: str = answer.raise_for_status().json()["text"]
    except (httpx.HTTPError, ValueError, KeyError):
        return ""
    return text


def _ask(exchange: TelephoneExchange, sound: tuple[Floats, int], code: PhoneCode, path: Path, say: Say) -> CallSound:
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
            return CallSound(begun, heard.rate, heard.between(begun, heard.start + len(heard.samples) / heard.rate))
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
    except (ExchangeError, CallRefused, CallSilent) as error:
        print(f"no call: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
