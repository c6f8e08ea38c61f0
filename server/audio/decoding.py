"""Decode audio files from strangers off the event loop: small WAVs in a thread, each other one in its own process."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import socket
import sys
import time
from typing import Self

from voxlane.codecs.errors import AudioError, InvalidAudio, TooMuchAudio
from voxlane.codecs.limits import AudioLimits
from voxlane.codecs.wav import is_wav
from voxlane.engine.api import LISTEN_RATE
from voxlane.server import limits
from voxlane.server.audio.clip import limits_for, to_listening
from voxlane.server.audio.decode_child import END, ERRORS, PID_BYTES
from voxlane.server.errors import BadAudio, Overloaded, TooLarge, VoxlaneError

PIECE_BYTES = 256 * 1024
"""Bytes written to or read from a decoder at once: copying them takes a tenth of a millisecond."""

CHILD = (sys.executable, "-P", "-m", "voxlane.server.audio.decode_child")

_BROKEN = "the audio file is broken"

# One thread: more threads in numpy's libraries would only take address space.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
# The child gets only these variables of our environment: no API keys.
_KEPT = ("PATH", "PYTHONPATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "VIRTUAL_ENV")


def child_environment() -> dict[str, str]:
    """Return the environment of a process that decodes: nothing secret is in it."""
    return {name: os.environ[name] for name in _KEPT if name in os.environ} | _ENVIRONMENT


class AudioDecoder:
    """Turns files into 16-bit mono samples, at most `at_once` files at a time in other processes.

    The process that forks for each file is started for the first of them, and again after it has died.
    """

    def __init__(self, seconds: float, at_once: int, decode_s: float = limits.DECODE_SECONDS) -> None:
        self._limits = limits_for(seconds)
        self._slots = asyncio.Semaphore(at_once)
        self._decode_s = decode_s
        self._starting = asyncio.Lock()
        self._parent: _DecoderProcess | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the process that forks."""
        async with self._starting:
            if self._parent is not None:
                await self._parent.aclose()
                self._parent = None

    async def decode(
        self, data: bytes | bytearray, rate: int = LISTEN_RATE, seconds: float | None = None, param: str = "file"
    ) -> bytes | bytearray:
        """Return the samples of a file at `rate`; raise BadAudio or TooLarge, which name `param`.

        The longest recording allowed is `seconds`, or the decoder's own limit.
        """
        most = self._limits if seconds is None else limits_for(seconds)
        try:
            if is_wav(data) and len(data) <= limits.SMALL_WAV_BYTES:
                return await asyncio.to_thread(_decode_here, data, most, rate)
            async with self._slots:
                return await self._decode_in_fork(data, most, rate)
        except AudioError as error:
            raise audio_refusal(error, param) from error

    async def _decode_in_fork(self, data: bytes | bytearray, most: AudioLimits, rate: int) -> bytearray:
        """Decode a file; if the process that forks dies before it has forked, once more with another one."""
        try:
            return await self._decode_once(data, most, rate)
        except _NoForkError:
            pass
        try:
            return await self._decode_once(data, most, rate)
        except _NoForkError as error:
            raise Overloaded(detail="decoder") from error

    async def _decode_once(self, data: bytes | bytearray, most: AudioLimits, rate: int) -> bytearray:
        request = f"{most.seconds} {most.decoded_bytes} {math.ceil(self._decode_s)} {rate}".encode()
        peer = await self._ask(request)
        reader, writer = await asyncio.open_unix_connection(sock=peer)
        giver, fork = None, None
        try:
            async with asyncio.timeout(self._decode_s):
                fork = _Fork(int.from_bytes(await reader.readexactly(PID_BYTES)))
                # The fork waits for its file, so that the id is certainly still its own.
                giver = asyncio.create_task(_give(writer, data), name="give to decoder")
                output = await _take(reader, int(most.seconds * rate + rate) * 2)
        except TimeoutError as error:
            if fork is None:
                await self.aclose()  # the process that forks hangs: the next file gets another one
            raise InvalidAudio("the audio takes too long to decode") from error
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            if fork is None:
                raise _NoForkError from error
            raise InvalidAudio(_BROKEN) from error
        finally:
            if fork is not None:
                fork.kill()
            if giver is not None:
                giver.cancel()
                await asyncio.gather(giver, return_exceptions=True)
            writer.transport.abort()
        return _result(output)

    async def _ask(self, request: bytes) -> socket.socket:
        """Return our end of a connection to a new fork."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                await self._send(request, theirs)
        except BaseException:
            ours.close()
            raise
        ours.setblocking(False)
        return ours

    async def _send(self, request: bytes, theirs: socket.socket) -> None:
        async with self._starting:
            if self._parent is not None and self._parent.send(request, theirs):
                return
            if self._parent is not None:  # it has died
                await self._parent.aclose()
            self._parent = await _DecoderProcess.start()
            if not self._parent.send(request, theirs):
                raise _NoForkError


class _NoForkError(Exception):
    """The process that forks has died: this says nothing about the file."""


class _DecoderProcess:
    """The process that forks for each file, as the server sees it."""

    def __init__(self, process: asyncio.subprocess.Process, line: socket.socket) -> None:
        self._process = process
        self._line = line

    @classmethod
    async def start(cls) -> Self:
        """Start one; it takes requests at once, and answers when it has loaded what it needs."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *CHILD,
                str(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=child_environment(),
                start_new_session=True,
            )
        return cls(process, ours)

    def send(self, request: bytes, theirs: socket.socket) -> bool:
        """Ask for a fork that serves this socket; return False if the process has died."""
        try:
            socket.send_fds(self._line, [request], [theirs.fileno()])
        except OSError:
            return False
        return True

    async def aclose(self) -> None:
        """End it; forks that still decode go on."""
        self._line.close()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()


class _Fork:
    """The process of one file. It is no child of ours, so that its id alone would not be a safe name for it."""

    def __init__(self, pid: int) -> None:
        self._handle: int | None
        try:
            self._handle = os.pidfd_open(pid)
        except OSError:  # it has died
            self._handle = None

    def kill(self) -> None:
        """End it if it has not ended."""
        if self._handle is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)
            os.close(self._handle)
            self._handle = None


def audio_refusal(error: AudioError, param: str = "file") -> VoxlaneError:
    """Return the error that the sender of such audio gets."""
    reason = str(error)
    kind = TooLarge if isinstance(error, TooMuchAudio) else BadAudio
    return kind(f"{reason[:1].upper()}{reason[1:]}.", param=param)


def _decode_here(data: bytes | bytearray, most: AudioLimits, rate: int) -> bytes:
    pieces = []
    for piece in to_listening(data, most, rate):
        pieces.append(piece)
        time.sleep(0)  # gives the interpreter to the event loop, which would otherwise wait 5 ms for it
    return b"".join(pieces)


def _result(output: bytearray) -> bytearray:
    if not output.endswith(END):
        # The fork was killed: it ran out of memory or time, or the file crashed it.
        raise InvalidAudio(_BROKEN)
    if output[0]:
        raise ERRORS[output[0] - 1](output[1 : -len(END)].decode())
    del output[-len(END) :]
    del output[0]
    return output


async def _give(writer: asyncio.StreamWriter, data: bytes | bytearray) -> None:
    with contextlib.suppress(ConnectionError):  # the fork is gone
        for start in range(0, len(data), PIECE_BYTES):
            writer.write(data[start : start + PIECE_BYTES])
            await writer.drain()
        writer.write_eof()


async def _take(reader: asyncio.StreamReader, most: int) -> bytearray:
    output = bytearray()
    while piece := await reader.read(PIECE_BYTES):
        output += piece
        if len(output) > most:
            raise InvalidAudio(_BROKEN)
    return output
