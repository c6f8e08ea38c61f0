"""Shared by the commands: text without control sequences, an engine of the command's own, input from a pipe."""

from __future__ import annotations

import asyncio
import io
import os
import select
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TextIO

from voxlane.engine.api import EngineConfig
from voxlane.server.commands.progress import Progress
from voxlane.server.engine_client.engine_process import EngineProcess

PIPE_BYTES = 64 * 1024
"""Bytes taken from a pipe at once: all that it holds."""


def escape_unknown_characters(stream: TextIO) -> None:
    """Let a stream write a character that its encoding lacks as an escape such as \\u2192; by default it raises."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")


def write_text(stream: TextIO, text: str) -> None:
    """Write a model's text at once; a terminal gets it without control sequences."""
    if stream.isatty():
        text = "".join(character for character in text if character.isprintable() or character in "\n\t")
    stream.write(text)
    stream.flush()


async def write_when_taken(stream: TextIO, text: str) -> None:
    """Write a few words when the pipe has room; the wait can be cancelled."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    with suppress(PermissionError):  # a plain file is always ready
        loop.add_writer(stream.fileno(), ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_writer(stream.fileno())
    write_text(stream, text)


def takes_text(stream: TextIO) -> bool:
    """Return whether a few words can be written; Ctrl-C wakes a stopped terminal."""
    return stream.isatty() or bool(select.select([], [stream.fileno()], [], 0)[1])


@asynccontextmanager
async def own_engine(config: EngineConfig, command: Sequence[str]) -> AsyncIterator[EngineProcess]:
    """Start an engine, show its progress, and give its link once it is ready."""
    with Progress(sys.stderr) as progress:
        async with EngineProcess(config, command=command, observers=(progress,)) as link:
            await link.wait_ready()
            progress.close()
            yield link


async def read_pipe(descriptor: int, stop: asyncio.Event | None = None) -> AsyncIterator[bytes]:
    """Yield what arrives until the other side is done, or until `stop` is set."""
    while await _readable(descriptor, stop) and (data := os.read(descriptor, PIPE_BYTES)):
        yield data


async def _readable(descriptor: int, stop: asyncio.Event | None) -> bool:
    """Wait until there is something to read; return False if told to stop before that."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        loop.add_reader(descriptor, ready.set)
    except PermissionError:  # a plain file is always ready, and cannot be waited for
        return stop is None or not stop.is_set()
    waits = [asyncio.create_task(event.wait()) for event in (ready, stop) if event is not None]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        loop.remove_reader(descriptor)
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
    return stop is None or not stop.is_set()
