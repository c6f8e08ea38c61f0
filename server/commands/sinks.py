"""Where `voxlane say` puts sound: a file, stdout, or a program that plays it. It knows processes and files."""

from __future__ import annotations

import asyncio
import os
import shutil
import struct
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from voxlane.codecs.encode import SpeechFormat
from voxlane.server.errors import ConfigError, PlayerFailed

PLAYERS: tuple[tuple[str, ...], ...] = (
    ("aplay", "-q", "-"),
    ("ffplay", "-nodisp", "-autoexit", "-loglevel", "error", "-i", "-"),
    ("play", "-q", "-t", "wav", "-"),
)
"""Programs that play a WAV file from stdin while it comes; the first that is installed is used."""

FILE_PLAYERS = ("afplay", "paplay")
"""Programs that need a file's name: they start when the whole text is spoken."""

WAV_HEADER_BYTES = 44

Give = Callable[[bytes], Awaitable[None]]
SinkOpener = Callable[[], AbstractAsyncContextManager[Give]]


def find_sink(output: str, kind: SpeechFormat) -> SinkOpener:
    """Return how the output is opened: a path, "-" for stdout, "" for a player. Raise ConfigError if none is found."""
    if output == "-":
        if sys.stdout.isatty():
            raise ConfigError("a terminal cannot play sound: redirect stdout, or use -o FILE")
        return lambda: _to_file(sys.stdout.buffer)
    if output:
        return lambda: _to_path(Path(output), kind)
    for command in PLAYERS:
        if shutil.which(command[0]):
            return lambda: _to_player(command)
    for name in FILE_PLAYERS:
        if shutil.which(name):
            return lambda: _to_file_player(name)
    players = ", ".join([*(command[0] for command in PLAYERS), *FILE_PLAYERS])
    raise ConfigError(f"no player was found ({players}): use -o FILE to keep the sound")


@asynccontextmanager
async def _to_file(file: BinaryIO) -> AsyncIterator[Give]:
    async def give(data: bytes) -> None:
        file.write(data)
        file.flush()

    yield give


@asynccontextmanager
async def _to_path(path: Path, kind: SpeechFormat) -> AsyncIterator[Give]:
    """Write a file; one that could not be completed is removed."""
    try:
        file = path.open("wb")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    with file:
        try:
            async with _to_file(file) as give:
                yield give
            if kind == "wav" and file.seekable():
                _complete_header(file)
        except BaseException:  # Ctrl-C too: half a file looks like a whole one
            _discard(path)
            raise


def _discard(path: Path) -> None:
    if path.is_file():  # not a device or a pipe
        path.unlink()


def _complete_header(file: BinaryIO) -> None:
    """Write the lengths into a WAV's header, if there is one: they were unknown at its start."""
    size = file.tell()
    if size < WAV_HEADER_BYTES:
        return
    file.seek(4)
    file.write(struct.pack("<I", size - 8))
    file.seek(40)
    file.write(struct.pack("<I", size - WAV_HEADER_BYTES))


@asynccontextmanager
async def _to_player(command: Sequence[str]) -> AsyncIterator[Give]:
    process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE)
    stdin = process.stdin
    assert stdin is not None

    async def give(data: bytes) -> None:
        try:
            stdin.write(data)
            await stdin.drain()
        except ConnectionError:
            raise _failed(command[0]) from None  # it has printed the reason itself

    try:
        yield give
        stdin.close()
        if await process.wait():
            raise _failed(command[0])
    finally:
        stdin.close()
        await _end(process)


@asynccontextmanager
async def _to_file_player(name: str) -> AsyncIterator[Give]:
    handle, path = tempfile.mkstemp(suffix=".wav")
    os.close(handle)
    try:
        async with _to_path(Path(path), "wav") as give:
            yield give
        process = await asyncio.create_subprocess_exec(name, path)
        try:
            if await process.wait():
                raise _failed(name)
        finally:
            await _end(process)
    finally:
        _discard(Path(path))


async def _end(process: asyncio.subprocess.Process) -> None:
    """Stop a player: the person has pressed Ctrl-C, or there is nothing to play."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


def _failed(player: str) -> PlayerFailed:
    return PlayerFailed(f"{player} failed: use -o FILE to keep the sound.")
