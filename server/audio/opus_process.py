"""Opus from microphones is decoded in a child process (opus_child.py): what breaks a decoder does not break the server.

One process serves all microphones. It is started for the first of them, and again after it has died: the packet that
ended it is refused, which ends its connection, and the other packets on their way are sent again. A microphone has at
most one packet on its way, so nothing queues here.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
import sys
from collections import OrderedDict

from voxlane.codecs.errors import InvalidAudio
from voxlane.server import limits
from voxlane.server.audio.decoding import child_environment
from voxlane.server.audio.opus_child import DECODE, FORGET, HEAD, MESSAGE_BYTES, SAMPLES
from voxlane.server.errors import Overloaded
from voxlane.server.log import line

logger = logging.getLogger(__name__)

OPUS_CHILD = (sys.executable, "-P", "-m", "voxlane.server.audio.opus_child")
_BROKEN = "the Opus packet is broken"
_AGAIN_S = 0.001  # until a full socket is tried again


class OpusStream:
    """The decoder of one microphone."""

    def __init__(self, process: OpusProcess, number: int) -> None:
        self._process = process
        self._number = number

    async def decode(self, packet: bytes) -> bytes:
        """Return the packet's sound, 16-bit samples at 16 kHz, or raise InvalidAudio."""
        return await self._process.decode(self._number, packet)

    def close(self) -> None:
        """Forget the decoder's state."""
        self._process.forget(self._number)


class OpusProcess:
    """The process that decodes, as the server sees it."""

    def __init__(self, command: tuple[str, ...] = OPUS_CHILD) -> None:
        self._command = command
        self._numbers = itertools.count()
        self._line: socket.socket | None = None
        self._child: asyncio.subprocess.Process | None = None
        self._starting = asyncio.Lock()
        # Microphones whose packets are on their way, the oldest first; None: the packet must be sent again.
        self._waiting: OrderedDict[int, asyncio.Future[bytes | None]] = OrderedDict()
        self._due: asyncio.TimerHandle | None = None
        self._started_s = 0.0
        self._answered = False  # the present process has begun to work

    @property
    def pid(self) -> int | None:
        """The process's id while it runs."""
        return self._child.pid if self._child is not None else None

    def stream(self) -> OpusStream:
        """Return a decoder for one more microphone."""
        return OpusStream(self, next(self._numbers))

    async def decode(self, number: int, packet: bytes) -> bytes:
        """Return the sound of a microphone's next packet, or raise InvalidAudio."""
        while True:
            await self._send(HEAD.pack(number, DECODE) + packet)
            answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
            self._waiting[number] = answer
            self._watch()
            if (sound := await answer) is not None:
                return sound

    def forget(self, number: int) -> None:
        """Drop the state of a microphone."""
        if self._line is not None:
            with contextlib.suppress(OSError):  # a full or broken socket: the state is small
                self._line.send(HEAD.pack(number, FORGET))

    async def aclose(self) -> None:
        """End the process."""
        async with self._starting:
            await self._end()

    async def _send(self, message: bytes) -> None:
        while True:
            if self._line is None:
                await self._start()
                continue
            try:
                self._line.send(message)
            except BlockingIOError:
                await asyncio.sleep(_AGAIN_S)
            except OSError:
                self._dead(self._line)
            else:
                return

    def _dead(self, channel: socket.socket) -> None:
        """Take the answers that a dead process has left, then give it up."""
        for _ in range(0, len(self._waiting) + 1, limits.FRAMES_PER_TURN):
            self._read(channel)
        self._lost(channel)

    async def _start(self) -> None:
        async with self._starting:
            if self._line is not None:
                return
            await self._end()
            try:
                ours = await self._start_child()
            except OSError as error:  # no descriptors or no memory left for it
                raise Overloaded(detail="opus") from error
            self._started_s, self._answered = asyncio.get_running_loop().time(), False
            ours.setblocking(False)
            self._line = ours
            asyncio.get_running_loop().add_reader(ours, self._read, ours)

    async def _start_child(self) -> socket.socket:
        """Start the process; return our end of its socket."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.ExitStack() as on_error, theirs:
            on_error.enter_context(ours)
            self._child = await asyncio.create_subprocess_exec(
                *self._command,
                str(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                env=child_environment(),
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
            on_error.pop_all()
        return ours

    async def _end(self) -> None:
        """Close the socket, which ends the process; kill it if it does not go."""
        self._hang_up()
        child, self._child = self._child, None
        if child is None:
            return
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
        await child.wait()

    def _read(self, channel: socket.socket) -> None:
        for _ in range(limits.FRAMES_PER_TURN):
            if self._line is not channel:
                return
            try:
                message = channel.recv(MESSAGE_BYTES)
            except BlockingIOError:
                return
            except ConnectionResetError:  # told once, before the answers that wait and the end
                continue
            except OSError:
                message = b""
            if not self._take(message):
                self._lost(channel)
                return

    def _take(self, message: bytes) -> bool:
        """Give an answer to its microphone; return False if it is none: the process is dead, or not to be trusted."""
        if len(message) < HEAD.size or len(message) % 2 != HEAD.size % 2:
            return False
        number, told = HEAD.unpack_from(message)
        self._answered = True
        answer = self._waiting.pop(number, None)
        if answer is None:
            return False
        if answer.done():  # its connection is gone
            return True
        if told == SAMPLES:
            answer.set_result(message[HEAD.size :])
        else:
            answer.set_exception(InvalidAudio(_BROKEN))
        return True

    def _lost(self, gone: socket.socket) -> None:
        """Refuse the packet that ended the process and have the others sent again, to a new one."""
        if self._line is not gone:
            return
        logger.warning(line("opus decoder ended", packets=len(self._waiting)))
        self._hang_up()
        answers = list(self._waiting.values())
        self._waiting.clear()
        for place, answer in enumerate(answers):
            if answer.done():
                continue
            if place:
                answer.set_result(None)
            else:
                answer.set_exception(InvalidAudio(_BROKEN))

    def _hang_up(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None
        if self._line is not None:
            asyncio.get_running_loop().remove_reader(self._line)
            self._line.close()
            self._line = None

    def _watch(self) -> None:
        """Look at the oldest packet now and then while there are any: the same one twice is stuck."""
        if self._due is None:
            oldest = next(iter(self._waiting.values()))
            self._due = asyncio.get_running_loop().call_later(limits.OPUS_SECONDS, self._look, oldest)

    @property
    def _age_s(self) -> float:
        return asyncio.get_running_loop().time() - self._started_s

    def _look(self, before: asyncio.Future[bytes | None]) -> None:
        self._due = None
        if not self._waiting:
            return
        starts = not self._answered and self._age_s < limits.OPUS_START_SECONDS
        if next(iter(self._waiting.values())) is before and self._child is not None and not starts:
            with contextlib.suppress(ProcessLookupError):
                self._child.kill()
        self._watch()
