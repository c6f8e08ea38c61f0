"""An engine that computes nothing: fixed words for speech, a fixed answer for a question, silence for a clause.

It speaks the real messages on the real socket, so that a server can be measured without the models' share of the
processor. support/crowd/server.py starts it as the engine's child process.
"""

from __future__ import annotations

import socket
from contextlib import suppress

from support.command_line import command_line

from voxlane.engine.api import (
    Append,
    Configure,
    EndInput,
    Finished,
    FromEngine,
    Probability,
    Ready,
    RequestStats,
    Samples,
    Submit,
    Text,
    Words,
)
from voxlane.engine.links import Gone, Links

RATE = 24_000
STATS = RequestStats(0, 0, 0, 0.0, 0.0, 0.0, 0.0, 0)
WORDS = "tell me something about the sea"
ANSWER = ("The sea is deep ", "and full of salt. ", "Many ships sail on it.")
CLAUSE_SAMPLES = RATE


class Engine:
    """The open requests, and the answer to each message."""

    def __init__(self) -> None:
        self._tasks: dict[str, Submit] = {}
        self._said: dict[str, int] = {}

    def take(self, message: object) -> list[FromEngine]:
        """Return the whole answer to a message."""
        match message:
            case Configure():
                numbers = (1, 1024, "none", "none", 1, 1, 1, "none")
                return [Ready("fake", "fake", *numbers, "fake-asr", ("en",), "fake-tts", RATE, ("nobody",))]
            case Submit(request_id=name):
                return self._submit(name, message)
            case Append(request_id=name, text=text) if text and name in self._tasks:
                offset = self._said.get(name, 0)
                self._said[name] = offset + CLAUSE_SAMPLES
                return [Samples(name, self._tasks[name].epoch, offset, bytes(2 * CLAUSE_SAMPLES), ())]
            case Append(request_id=name) if name in self._tasks and name not in self._said:
                self._said[name] = 0
                return [Words(name, 0, "", WORDS, 0.0)]
            case EndInput(request_id=name) if name in self._tasks:
                submit = self._tasks.pop(name)
                words: list[FromEngine] = [Words(name, 0, WORDS, "", 0.0)] if submit.task == "asr" else []
                return [*words, Finished(name, submit.epoch, "eos", STATS)]
            case _:
                return []

    def _submit(self, name: str, submit: Submit) -> list[FromEngine]:
        if submit.task in ("asr", "tts"):
            self._tasks[name] = submit
            return []
        end = Finished(name, submit.epoch, "eos", STATS)
        if submit.task == "probe":
            return [Probability(name, submit.epoch, 0.9), end]
        return [*(Text(name, submit.epoch, text) for text in ANSWER), end]


def main(engine: Engine) -> None:
    """Answer until the server has gone."""
    parser = command_line(__doc__)
    parser.add_argument("fd", type=int, metavar="FD", help="the socket to the server")
    parser.add_argument("rest", type=int, nargs="*", help="the page of progress and the control socket: not used")
    with socket.socket(fileno=parser.parse_args().fd) as sock, suppress(Gone):
        links = Links(sock)
        while True:
            for message in links.receive(wait=True):
                links.send(engine.take(message))


if __name__ == "__main__":
    main(Engine())
