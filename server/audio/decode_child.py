"""A process that decodes one audio file from stdin to stdout and ends; its arguments are the limits and the rate.

libav reads files from strangers. In this process it has limited memory and time and can open no file, and if it crashes
the server goes on. The first byte of the output is a code: 0, then samples; or the number of an error, then its reason.
"""

from __future__ import annotations

import contextlib
import resource
import sys
from pathlib import Path

import numpy as np

from voxlane.codecs.encode import encoder
from voxlane.codecs.errors import AudioError, CodecMissing, InvalidAudio, TooMuchAudio, UnsupportedAudio
from voxlane.codecs.limits import AudioLimits
from voxlane.engine.api import LISTEN_RATE
from voxlane.server.audio.clip import to_listening

ERRORS: tuple[type[AudioError], ...] = (InvalidAudio, UnsupportedAudio, TooMuchAudio, CodecMissing)
"""Code n of the output is ERRORS[n - 1]."""

SPARE_BYTES = 512 * 1024 * 1024
"""Address space for everything but the file and its samples: libav's buffers and the stacks of its threads."""


def main() -> None:
    """Read limits from the command line and a file from stdin; write samples or a reason to stdout."""
    seconds, decoded_bytes, cpu_s, rate = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    data = sys.stdin.buffer.read()
    warm_up()
    confine(len(data) + 3 * decoded_bytes + SPARE_BYTES, cpu_s)
    out = sys.stdout.buffer
    pieces = to_listening(data, AudioLimits(seconds, decoded_bytes), rate)
    try:
        out.write(b"\x00" + next(pieces))
    except AudioError as error:
        out.write(bytes([ERRORS.index(type(error)) + 1]) + str(error).encode())
    except MemoryError:
        out.write(bytes([ERRORS.index(TooMuchAudio) + 1]) + b"decoding it needs too much memory")
    # Samples are already written: from here on only the exit status can tell of a failure.
    for piece in pieces:
        out.write(piece)
    out.flush()


def warm_up() -> None:
    """Decode a file of our own, so that PyAV opens what it needs before confine() forbids opening files."""
    with contextlib.suppress(CodecMissing):  # decoding raises it again if the file needs PyAV
        own = encoder("flac", LISTEN_RATE)
        tiny = own.push(np.zeros(LISTEN_RATE // 100, dtype=np.float32)) + own.finish()
        for _ in to_listening(tiny, AudioLimits()):
            pass


def confine(more_bytes: int, cpu_s: int | None) -> None:
    """Limit this process to `more_bytes` more memory and `cpu_s` of CPU time, if any; forbid it to open files."""
    statm = Path("/proc/self/statm")
    if statm.exists():  # without it the process's size is unknown, and only the time limit holds
        size = int(statm.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + more_bytes, size + more_bytes))
    if cpu_s is not None:
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))


if __name__ == "__main__":
    main()
