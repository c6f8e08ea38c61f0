"""Decode audio files from strangers off the event loop: small WAVs in a thread, all others in a child process."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import sys
import time

from voxlane.codecs.errors import AudioError, InvalidAudio, TooMuchAudio
from voxlane.codecs.limits import AudioLimits
from voxlane.codecs.wav import is_wav
from voxlane.engine.api import LISTEN_RATE
from voxlane.server import limits
from voxlane.server.audio.clip import limits_for, to_listening
from voxlane.server.audio.decode_child import ERRORS
from voxlane.server.errors import BadAudio, TooLarge, VoxlaneError

PIECE_BYTES = 256 * 1024
"""Bytes written to or read from a decoder at once: copying them takes a tenth of a millisecond."""

CHILD = (sys.executable, "-P", "-m", "voxlane.server.audio.decode_child")

# One thread: more threads in numpy's libraries would only take address space.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
# The child gets only these variables of our environment: no API keys.
_KEPT = ("PATH", "PYTHONPATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "VIRTUAL_ENV")


def child_environment() -> dict[str, str]:
    """Return the environment of a process that decodes: nothing secret is in it."""
    return {name: os.environ[name] for name in _KEPT if name in os.environ} | _ENVIRONMENT


class AudioDecoder:
    """Turns files into 16-bit mono samples, at most `at_once` files at a time in child processes."""

    def __init__(self, seconds: float, at_once: int, decode_s: float = limits.DECODE_SECONDS) -> None:
        self._limits = limits_for(seconds)
        self._slots = asyncio.Semaphore(at_once)
        self._decode_s = decode_s

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
                return await self._decode_in_child(data, most, rate)
        except AudioError as error:
            raise audio_refusal(error, param) from error

    async def _decode_in_child(self, data: bytes | bytearray, limits: AudioLimits, rate: int) -> bytearray:
        process = await asyncio.create_subprocess_exec(
            *CHILD,
            str(limits.seconds),
            str(limits.decoded_bytes),
            str(math.ceil(self._decode_s)),
            str(rate),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=child_environment(),
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        most = int(limits.seconds * rate + rate) * 2
        writer = asyncio.create_task(_give(process.stdin, data), name="give to decoder")
        try:
            async with asyncio.timeout(self._decode_s):
                output = await _take(process.stdout, most)
                await process.wait()
        except TimeoutError as error:
            raise InvalidAudio("the audio takes too long to decode") from error
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
            await _discard(process.stdout)
            await process.wait()
        return _result(output, process.returncode)


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


def _result(output: bytearray, status: int | None) -> bytearray:
    if status != 0 or not output:
        # The child was killed: it ran out of memory or time, or the file crashed it.
        raise InvalidAudio("the audio file is broken")
    if output[0]:
        raise ERRORS[output[0] - 1](output[1:].decode())
    del output[0]
    return output


async def _give(stdin: asyncio.StreamWriter, data: bytes | bytearray) -> None:
    try:
        with contextlib.suppress(ConnectionError):  # the child is gone
            for start in range(0, len(data), PIECE_BYTES):
                stdin.write(data[start : start + PIECE_BYTES])
                await stdin.drain()
    finally:
        stdin.close()


async def _take(stdout: asyncio.StreamReader, most: int) -> bytearray:
    output = bytearray()
    while piece := await stdout.read(PIECE_BYTES):
        output += piece
        if len(output) > most:
            raise InvalidAudio("the audio file is broken")
    return output


async def _discard(stdout: asyncio.StreamReader) -> None:
    """Read what a killed decoder had written: asyncio's wait for a process ends only when its pipes are empty."""
    while await stdout.read(PIECE_BYTES):
        pass
