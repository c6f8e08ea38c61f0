"""A process that decodes audio files for the server: it has loaded all that it needs, and forks for each file.

libav reads files from strangers. Each file has a process of its own with limited memory and time, which can open no
file; if it crashes, the server and this process go on. A fork takes milliseconds, where a new interpreter takes 0.3 s
or more.

The server sends a request and one end of a socket pair. The fork writes its process id there, reads the file to its
end, and writes a code: 0, then samples; or the number of an error, then its reason. Last comes END: without it the fork
has died under way.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
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

END = b"\x00the end"
"""The last bytes of an output that is whole."""

PID_BYTES = 8
REQUEST_BYTES = 256
READ_BYTES = 1024 * 1024

SPARE_BYTES = 512 * 1024 * 1024
"""Address space for everything but the file and its samples: libav's buffers and the stacks of its threads."""


def main() -> None:
    """Fork for every request on the socket whose number is the argument, until the server closes it."""
    line = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forks that have ended leave nothing behind
    warm_up()
    while True:
        request, files, _, _ = socket.recv_fds(line, REQUEST_BYTES, 1)
        if not request:
            return
        if not os.fork():
            line.close()
            run_fork(request, files[0])
        os.close(files[0])


def run_fork(request: bytes, file: int) -> None:
    """Serve one request, and end this process without going back into its caller."""
    status = 1
    try:
        with socket.socket(fileno=file) as peer:
            peer.sendall(os.getpid().to_bytes(PID_BYTES))
            serve(request, peer)
        status = 0
    finally:
        os._exit(status)


def serve(request: bytes, peer: socket.socket) -> None:
    """Read limits from the request and a file from the server; send samples or a reason."""
    seconds, decoded_bytes, cpu_s, rate = request.split()
    data = bytearray()
    while piece := peer.recv(READ_BYTES):
        data += piece
    most = AudioLimits(float(seconds), int(decoded_bytes))
    confine(len(data) + 3 * most.decoded_bytes + SPARE_BYTES, int(cpu_s))
    pieces = to_listening(data, most, int(rate))
    try:
        peer.sendall(b"\x00" + next(pieces))
    except AudioError as error:
        peer.sendall(bytes([ERRORS.index(type(error)) + 1]) + str(error).encode())
    except MemoryError:
        peer.sendall(bytes([ERRORS.index(TooMuchAudio) + 1]) + b"decoding it needs too much memory")
    # Samples are already sent: from here on only a missing END can tell of a failure.
    for piece in pieces:
        peer.sendall(piece)
    peer.sendall(END)


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
