"""The phone: baresip, whose microphone and loudspeaker are a relay in this process."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from voxlane.codecs.resample import resample
from voxlane.codecs.wav import encode_wav
from voxlane.server.exchange.asterisk import TelephoneExchange
from voxlane.server.exchange.call_sound import (
    FRAME_S,
    LOUD,
    PCMU,
    CallSound,
    PhoneCode,
    SoundPacket,
    SpokenSound,
    timeline,
)
from voxlane.server.exchange.errors import CallRefused, CallSilent, ExchangeError
from voxlane.server.exchange.programs import ANSWER_S, START_S, bundled, free_ports, last_line, running
from voxlane.server.exchange.relay import CallRelay, port_of

CALLER = "+15550100"

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
        exchange: TelephoneExchange,
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
                running(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
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

    def say(self, samples: ArrayLike, rate: int) -> SpokenSound:
        """Speak into the microphone from the next packet on, or after what is being spoken."""
        sound = np.asarray(samples, dtype=np.float32)
        code = self._relay.code
        return self._relay.say(sound if rate == code.rate else resample(sound, rate, code.rate))

    def hush(self) -> None:
        """Stop speaking."""
        self._relay.hush()

    def heard(self) -> CallSound:
        """Return what the loudspeaker has played, from the start of the call until now or the call's end."""
        return self._recording(self._relay.heard)

    def spoken(self) -> CallSound:
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
                if self.closed is not None:
                    raise CallSilent(f"the call ended before there was sound: {self.reason}")
                if remaining <= 0:
                    raise CallSilent(f"the phone heard nothing within {timeout_s:g} s")
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
            if now >= deadline:
                raise CallSilent(f"the phone was never silent for {lasting_s:g} s")
            time.sleep(min(0.05, begun + lasting_s - now))

    def output(self) -> str:
        """Return baresip's own messages."""
        return self._output.read_text(errors="replace")

    def _recording(self, packets: list[SoundPacket]) -> CallSound:
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
            control = port_of(free)
        modules = self._exchange.tree / "usr/lib/baresip/modules"
        first, last = free_ports(4)
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
                    raise ExchangeError(f"baresip does not start: {last_line(self._output)}") from None
                time.sleep(0.05)

    def _shut(self) -> None:
        if self.established and self.closed is None:
            with suppress(CallSilent):
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
        if not answer["ok"]:
            raise CallSilent(f"baresip refuses {command}: {answer.get('data')}")

    def _wait(self, condition: Callable[[], object], trouble: str, timeout_s: float) -> None:
        with self._arrived:
            if not self._arrived.wait_for(condition, timeout_s):
                raise CallSilent(f"{trouble} within {timeout_s:g} s")

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
