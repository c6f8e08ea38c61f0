"""An engine child without a model: the real protocol on a real socket, and misbehaviour on demand.

The last user message says what to do:
    crash             die at once                      wait            one word, then nothing until cancelled
    crash later       one word, then die               hold            one word and our pid; the rest at SIGUSR1
    refuse CODE       refuse                           stall           not even Started
    fail              finish with `failed`             garbage         a packet of no protocol
    fail later        one word, then `failed`          lookup          a word, guessed: 5 of 8 right
    count N           N words                          size            how many characters arrived
    big N             one piece of N characters        sampling        the parameters that arrived, as text
    logprobs          a word with log-probabilities    emoji           log-probabilities of half characters
    submission        priority, deadline and tenant    anything else   is echoed word by word
The model's name says how to start: start-failed, die-at-start, never-ready, crash-every-time (once ready), or
any other for an ordinary start.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import sys

from voxlane.engine.api import (
    Assembler,
    Cancel,
    Configure,
    EngineConfig,
    Finished,
    Loading,
    Message,
    Ready,
    Refused,
    RequestStats,
    Shutdown,
    Started,
    StartFailed,
    StepStats,
    Submit,
    Text,
    TokenLogprob,
    encode,
    fragments,
)

CONTEXT_TOKENS = 4096
EMOJI = "🎉"


class ScriptedEngine:
    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._assembler = Assembler()
        self._open: dict[str, Submit] = {}
        self._held: list[Submit] = []

    def run(self) -> None:
        signal.signal(signal.SIGUSR1, lambda *_: self._release())
        configure = self._next()
        assert isinstance(configure, Configure)
        self._start(configure.config)
        while True:
            match self._next():
                case Submit() as submit:
                    self._open[submit.request_id] = submit
                    self._serve(submit)
                case Cancel(request_id):
                    if request_id in self._open:
                        self._finish(self._open[request_id], "cancelled", 1)
                case Shutdown():
                    return
                case _:
                    pass

    def _start(self, config: EngineConfig) -> None:
        self._send(Loading("reading nothing", 0.5))
        match config.model:
            case "start-failed":
                self._send(StartFailed("there is no such model, and never was"))
                sys.exit(1)
            case "die-at-start":
                os.kill(os.getpid(), signal.SIGKILL)
            case "never-ready":
                while self._next():
                    pass
        context = config.context_tokens or CONTEXT_TOKENS
        self._send(Ready(config.model, "scripted", 1_000_000, context, "none", "none", 8, 16, 4, "cpu"))
        if config.model == "crash-every-time":
            os.kill(os.getpid(), signal.SIGKILL)

    def _serve(self, submit: Submit) -> None:
        said = submit.messages[-1].content if submit.messages else submit.text
        command, _, rest = said.partition(" ")
        if said == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        if said == "stall":
            return
        if command == "refuse":
            del self._open[submit.request_id]
            self._send(Refused(submit.request_id, submit.epoch, rest, "the prompt has 9 tokens"))  # type: ignore[arg-type]
            return
        self._send(Started(submit.request_id, submit.epoch, 7, 3))
        match command:
            case "crash":
                self._say(submit, "one ")
                os.kill(os.getpid(), signal.SIGKILL)
            case "wait":
                self._say(submit, "one ")
                self._report(running=1)
            case "hold":
                self._say(submit, "one ")
                self._say(submit, f"pid {os.getpid()}")
                self._held.append(submit)
            case "garbage":
                self._sock.send(b"\x07 not a packet")
            case "fail":
                if rest:
                    self._say(submit, "one ")
                self._finish(submit, "failed", 1 if rest else 0)
            case "lookup":
                self._say(submit, "guessed")
                self._finish(submit, "eos", 1, lookup=(8, 5))
            case "count":
                self._finish_with(submit, [f"w{index} " for index in range(int(rest))])
            case "size":
                self._finish_with(submit, [str(sum(len(message.content) for message in submit.messages))])
            case "big":
                self._finish_with(submit, ["x" * int(rest)])
            case "sampling":
                self._finish_with(submit, [repr(submit.sampling)])
            case "submission":
                self._finish_with(submit, [f"{submit.priority!r} {submit.deadline_s} {submit.tenant}"])
            case "logprobs":
                scores = (TokenLogprob("é".encode(), -0.5, (("é".encode(), -0.5), (b"e", float("-inf")))),)
                self._send(Text(submit.request_id, submit.epoch, "é", scores))
                self._finish(submit, "length", 1)
            case "emoji":
                self._tell_emoji(submit)
            case _:
                self._finish_with(submit, re.findall(r"\S+\s*", said))

    def _tell_emoji(self, submit: Submit) -> None:
        """Say an emoji whose tokens hold two of its four bytes each, then a letter."""
        data = EMOJI.encode()
        for text, pieces in ((EMOJI, (data[:2], data[2:])), ("!", (b"!",))):
            scores = tuple(TokenLogprob(piece, -0.1, ((piece, -0.1), (b"\xf0", -3.0))) for piece in pieces)
            self._send(Text(submit.request_id, submit.epoch, text, scores))
        self._finish(submit, "eos", 3)

    def _release(self) -> None:
        for held in self._held:
            self._finish_with(held, [" two"])
        self._held.clear()

    def _finish_with(self, submit: Submit, words: list[str]) -> None:
        for word in words:
            self._say(submit, word)
        self._finish(submit, "eos", len(words))

    def _say(self, submit: Submit, text: str) -> None:
        self._send(Text(submit.request_id, submit.epoch, text))

    def _finish(self, submit: Submit, reason: str, words: int, *, lookup: tuple[int, int] = (0, 0)) -> None:
        del self._open[submit.request_id]
        stats = RequestStats(7, words, 3, 0.001, 0.002, 0.003, 0.004, 1, *lookup, -2.0 * words, words)
        self._send(Finished(submit.request_id, submit.epoch, reason, stats))  # type: ignore[arg-type]
        self._report(running=len(self._open))

    def _report(self, *, running: int) -> None:
        self._send(
            StepStats(
                steps=2,
                rows=6,
                prefill_tokens=7,
                decode_tokens=1,
                busy_s=0.01,
                longest_step_s=0.01,
                schedule_s=0.001,
                move_s=0.002,
                forward_s=0.003,
                sample_s=0.004,
                lookup_proposed=8,
                lookup_accepted=5,
                running=running,
                waiting=0,
                paused=0,
                blocks_free=8 - running,
                blocks_cached=0,
                blocks_used=running,
                preemptions=0,
                lane_wait_s=0.002,
            )
        )

    def _next(self) -> Message:
        while True:
            packet = self._sock.recv(1 << 20)
            if not packet:
                sys.exit(0)
            message = self._assembler.feed(packet)
            if message is not None:
                return message

    def _send(self, message: Message) -> None:
        for packet in fragments(encode(message)):
            self._sock.send(packet)


if __name__ == "__main__":
    ScriptedEngine(socket.socket(fileno=int(sys.argv[1]))).run()
