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
    submission        priority, deadline and tenant    tools           the tools, the choice and the messages' calls
    call TEXT         TEXT, then call every tool       … history       the roles and texts of the messages
    anything else     is echoed word by word
A probe finds every sentence complete. In a session the voice "two" takes 50 ms for a character.
A request to listen hears text: each sample that is not zero is a character (conftest's `recording` makes such audio). A
request to speak answers each clause with one sample a character. Both obey, as their text's first words:
    crash             die                              wait            go on for ever
    fail              finish with `failed`             params          tell the parameters that arrived
    refuse CODE       refuse (listening only)          lag             hear nothing until 60 s wait, tell the most
    flood N           N clauses of 100 kB, as long as not paused (speaking only)
The listening model "loudness" hears "hello to you all" in any loud sound: what a codec leaves of samples is enough.
A recording for a new voice becomes a profile that holds its length and text; speech in such a voice says the profile
instead of its own text. The text of a recording may be crash, fail or refuse CODE. The model "fixed-voices" makes no
voices.
The model's name says how to start: start-failed, die-at-start, never-ready, crash-every-time (once ready),
stop-at-start (SIGSTOP), or any other for an ordinary start. The model "counting" shows its progress as the real engine
does, and obeys:
    hang              the step blocks for ever         spin            the step runs for ever
    long N            a step of N seconds that counts  silent N        one that cannot count, and says so
The model "forking" becomes a template, and its forks serve. The model "once:PATH" starts as long as there is no file
PATH, and makes it.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import socket
import sys
import threading
import time
from array import array
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxlane.engine import progress
from voxlane.engine.api import (
    CLIP_RATE,
    LISTEN_RATE,
    Append,
    Cancel,
    Configure,
    EndInput,
    EngineConfig,
    Finished,
    ForgetVoice,
    Forked,
    FromEngine,
    KeepVoice,
    Loading,
    Pause,
    Probability,
    ProgressPage,
    Ready,
    Refused,
    RequestStats,
    Resume,
    Samples,
    Segment,
    SpokenWord,
    Started,
    StartFailed,
    StepStats,
    Submit,
    Text,
    ToEngine,
    TokenLogprob,
    ToolCall,
    VoiceMade,
    Word,
    Words,
    encode_forked,
)
from voxlane.engine.links import Gone, Links

CONTEXT_TOKENS = 4096
EMOJI = "🎉"
SPEAK_RATE = 24_000
LOUD = 2_000
VOICES = ("one", "two", "af_alloy")


@dataclass(slots=True)
class Speech:
    """An ASR or TTS request."""

    submit: Submit
    text: str = ""  # transcribed, or to be spoken
    told: int = 0  # characters of it that were sent
    seconds: float = 0.0
    acknowledged: float = 0.0
    most: float = 0.0  # the most audio that waited
    offset: int = 0
    flood: int = 0
    paused: bool = False


class Crash(Exception):
    """Ends an engine that runs in a thread, where a signal would end the tests."""


class ScriptedEngine:
    def __init__(self, sock: socket.socket, *, in_thread: bool = False) -> None:
        self._in_thread = in_thread
        self._sock = sock
        self._links = Links(sock)
        self._commands: deque[ToEngine] = deque()
        self._open: dict[str, Submit] = {}
        self._held: list[Submit] = []
        self._speech: dict[str, Speech] = {}
        self._voices: dict[str, bytes] = {}
        self._page: ProgressPage | None = None
        self._asr_model = ""

    def run(self) -> None:
        if not self._in_thread:
            signal.signal(signal.SIGUSR1, lambda *_: self._release())
        configure = self._next()
        assert isinstance(configure, Configure)
        self._start(configure.config)
        while True:
            match self._next():
                case Submit() as submit:
                    self._open[submit.request_id] = submit
                    if submit.task == "voice":
                        self._speech[submit.request_id] = Speech(submit)
                    elif submit.task == "tts" and submit.speak.voice not in ("", *VOICES, *self._voices):
                        del self._open[submit.request_id]
                        self._send(Refused(submit.request_id, submit.epoch, "bad_request", "there is no such voice"))
                    elif submit.task in ("asr", "tts"):
                        self._speech[submit.request_id] = Speech(submit)
                        self._send(Started(submit.request_id, submit.epoch, 0, 0))
                    else:
                        self._serve(submit)
                case KeepVoice(name, profile):
                    self._voices[name] = profile
                case ForgetVoice(name):
                    self._voices.pop(name, None)
                case Append() as append if append.request_id in self._speech:
                    speech = self._speech[append.request_id]
                    if speech.submit.task == "voice":
                        speech.seconds += len(append.audio) / 2 / CLIP_RATE
                        continue
                    self._hear(speech, append.audio) if speech.submit.task == "asr" else self._utter(
                        speech, append.text
                    )
                case EndInput(request_id) if request_id in self._speech:
                    speech = self._speech[request_id]
                    if speech.submit.task == "voice":
                        self._make_voice(speech)
                        continue
                    self._end_hearing(speech) if speech.submit.task == "asr" else self._end_uttering(speech)
                case Pause((request_id,)) if request_id in self._speech:
                    self._speech[request_id].paused = True
                    self._report(running=1, paused=1)
                case Resume(request_id) if request_id in self._speech:
                    self._speech[request_id].paused = False
                    self._report(running=1, paused=0)
                case Cancel(request_id):
                    if request_id in self._open:
                        self._finish(self._open[request_id], "cancelled", 1)
                case _:
                    pass

    def _start(self, config: EngineConfig) -> None:
        self._asr_model = config.asr_model
        self._send(Loading("reading nothing", 0.5))
        if config.model.startswith("once:"):
            path = Path(config.model.removeprefix("once:"))
            if path.exists():
                self._send(StartFailed("the weights are gone"))
                sys.exit(1)
            path.touch()
        match config.model:
            case "start-failed":
                self._send(StartFailed("there is no such model, and never was"))
                sys.exit(1)
            case "die-at-start":
                self._crash()
            case "never-ready":
                while self._next():
                    pass
            case "stop-at-start":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "counting":
                self._page = ProgressPage(int(sys.argv[2]))
                self._page.advance()
                progress.show_on(self._page)  # the links count while they wait
            case "forking":
                self._fork()
        context = config.context_tokens or CONTEXT_TOKENS
        chat = (config.model, "scripted", 1_000_000, context, "none", "none", 8, 16, 4, "cpu")
        voices = VOICES if config.tts_model else ()
        rate, clones = SPEAK_RATE if voices else 0, bool(voices) and config.tts_model != "fixed-voices"
        codec = config.tts_model == "one-pace"
        talker: dict[str, Any] = {
            "asr_translates": config.asr_model not in ("", "english-only"),
            "adapter": config.adapter,
            "clones": clones,
            "one_pace": codec,
            "respells_only": codec,
        }
        if config.tts_model == "instructed":
            talker |= {"speak_languages": ("english", "german"), "instructed": True}
        self._send(Ready(*chat, config.asr_model, ("en", "de"), config.tts_model, rate, voices, **talker))
        if config.model == "crash-every-time":
            self._crash()

    def _serve(self, submit: Submit) -> None:
        if submit.task == "probe":
            self._send(Probability(submit.request_id, submit.epoch, 1.0))
            self._finish(submit, "eos", 0)
            return
        said = submit.messages[-1].content if submit.messages else submit.text
        command, _, rest = said.partition(" ")
        if said.endswith("history"):
            command = "history"  # the words before may be an unanswered turn
        if said == "crash":
            self._crash()
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
                self._crash()
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
            case "hang" | "spin" | "long" | "silent" if self._page is not None:
                self._stay_in_step(command, float(rest or 0.0))
                self._finish_with(submit, ["done"])
            case "lookup":
                self._say(submit, "guessed")
                self._finish(submit, "eos", 1, lookup=(8, 5))
            case "count":
                self._finish_with(submit, [f"w{index} " for index in range(int(rest))])
            case "size":
                self._finish_with(submit, [str(sum(len(message.content) for message in submit.messages))])
            case "big":
                self._finish_with(submit, ["x" * int(rest)])
            case "history":
                self._finish_with(submit, [f"{one.role}={one.content};" for one in submit.messages])
            case "sampling":
                self._finish_with(submit, [repr(submit.sampling)])
            case "submission":
                self._finish_with(submit, [f"{submit.priority!r} {submit.deadline_s} {submit.tenant}"])
            case "tools":
                calls = [(message.tool_calls, message.call_id) for message in submit.messages]
                self._finish_with(submit, [repr((submit.tools, submit.tool_choice, calls))])
            case "call":
                if rest:
                    self._say(submit, rest)
                for tool in submit.tools:
                    call_id = f"call_{tool.name}"
                    self._send(ToolCall(submit.request_id, submit.epoch, call_id, tool.name, '{"city": "Paris"}'))
                self._finish(submit, "eos", 3)
            case "logprobs":
                scores = (TokenLogprob("é".encode(), -0.5, (("é".encode(), -0.5), (b"e", float("-inf")))),)
                self._send(Text(submit.request_id, submit.epoch, "é", scores))
                self._finish(submit, "length", 1)
            case "emoji":
                self._tell_emoji(submit)
            case _:
                self._finish_with(submit, re.findall(r"\S+\s*", said))

    def _hear(self, speech: Speech, audio: bytes) -> None:
        samples = array("h", audio)
        if self._asr_model == "loudness":
            speech.text = speech.text or ("hello to you all" if samples and max(samples) > LOUD else "")
        else:
            speech.text += "".join(chr(sample) for sample in samples if sample > 0)
        speech.seconds += len(samples) / LISTEN_RATE
        waiting = speech.seconds - speech.acknowledged
        speech.most = max(speech.most, waiting)
        if speech.text.startswith("lag") and waiting < 60:
            return
        speech.acknowledged = speech.seconds
        settled, tail = "", speech.text[speech.told :]
        if speech.submit.listen.partials:
            settled, _, tail = tail.rpartition(" ")
            speech.told += len(settled)
            tail = speech.text[speech.told :]
        name, epoch = speech.submit.request_id, speech.submit.epoch
        self._send(Words(name, epoch, settled, tail, speech.seconds, covered_s=speech.seconds))

    def _end_hearing(self, speech: Speech) -> None:
        submit = speech.submit
        command, _, rest = speech.text.partition(" ")
        if not self._obey(speech, command, rest):
            return
        if command == "params":
            speech.text = repr(submit.listen)
        if command == "lag":
            speech.text = f"most {speech.most:g}"
        times = [(0.5 * index, 0.5 * index + 0.4) for index in range(len(speech.text.split()))]
        words = tuple(Word(word, *time) for word, time in zip(speech.text.split(), times, strict=True))
        segments: tuple[Segment, ...] = ()
        if speech.text:
            asked = words if submit.listen.word_times else ()
            language = submit.listen.language or "en"
            segments = (Segment(speech.text, 0.0, words[-1].end_s, -0.25, len(words), 0.01, language, asked),)
        settled = speech.text[speech.told :]
        self._send(Words(submit.request_id, submit.epoch, settled, "", speech.seconds, segments, speech.seconds))
        self._finish(submit, "eos", len(words))

    def _make_voice(self, speech: Speech) -> None:
        submit = speech.submit
        command, _, rest = submit.text.partition(" ")
        if self._obey(speech, command, rest):
            profile = f"{speech.seconds:.2f} s, {submit.text!r}, {submit.clone!r}".encode()
            self._send(VoiceMade(submit.request_id, submit.epoch, profile))
            self._finish(submit, "eos", 0)

    def _utter(self, speech: Speech, text: str) -> None:
        submit = speech.submit
        command, _, rest = text.strip().partition(" ")
        start, said = len(speech.text), text
        speech.text += text
        if start == 0 and not self._obey(speech, command, rest):
            return
        if start == 0 and command == "flood":
            speech.flood = int(rest)
            return
        if start == 0 and command == "params":
            said = repr(submit.speak)
        if submit.speak.voice in self._voices:
            said = self._voices[submit.speak.voice].decode()
        if not re.search(r"\w", said):
            return
        slow = submit.session and submit.speak.voice == "two"
        each, base = SPEAK_RATE // 20 if slow else 1, speech.offset
        words = tuple(
            SpokenWord(start + word.start(), start + word.end(), base + word.start() * each, base + word.end() * each)
            for word in re.finditer(r"\S+", said)
        )
        self._give(speech, array("h", (min(ord(one), 0x7FFF) for one in said for _ in range(each))).tobytes(), words)
        if start == 0 and command == "wait":
            self._report(running=1)
            del self._speech[submit.request_id]

    def _end_uttering(self, speech: Speech) -> None:
        if not speech.flood:
            reason = "length" if speech.text.startswith("limit ") else "eos"
            self._finish(speech.submit, reason, len(speech.text))

    def _give(self, speech: Speech, pcm: bytes, words: tuple[SpokenWord, ...] = ()) -> None:
        self._send(Samples(speech.submit.request_id, speech.submit.epoch, speech.offset, pcm, words))
        speech.offset += len(pcm) // 2

    def _obey(self, speech: Speech, command: str, rest: str) -> bool:
        """Obey a command; return whether the request goes on."""
        submit = speech.submit
        match command:
            case "crash":
                self._crash()
            case "fail":
                self._finish(submit, "failed", 0)
            case "refuse":
                del self._speech[submit.request_id], self._open[submit.request_id]
                self._send(Refused(submit.request_id, submit.epoch, rest, "the audio is too long"))  # type: ignore[arg-type]
            case "wait" if submit.task == "asr":
                self._report(running=1)
                del self._speech[submit.request_id]
            case _:
                return True
        return False

    def _work(self) -> bool:
        """Do a piece of the endless work; return whether there is more."""
        for speech in list(self._speech.values()):
            if speech.flood and not speech.paused:
                if not select.select([], [self._sock], [], 0.01)[1]:
                    return True  # the server is behind: a pause must reach the flood before its end
                self._give(speech, bytes(100_000))
                speech.flood -= 1
                if not speech.flood:
                    self._finish(speech.submit, "eos", 1)
                return True
        return False

    def _tell_emoji(self, submit: Submit) -> None:
        """Send an emoji as two tokens of two bytes each, then a letter."""
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
        self._speech.pop(submit.request_id, None)
        stats = RequestStats(7, words, 3, 0.001, 0.002, 0.003, 0.004, 1, *lookup, -2.0 * words, words)
        self._send(Finished(submit.request_id, submit.epoch, reason, stats))  # type: ignore[arg-type]
        self._report(running=len(self._open))

    def _report(self, *, running: int, paused: int = 0) -> None:
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
                paused=paused,
                blocks_free=8 - running,
                blocks_cached=0,
                blocks_used=running,
                preemptions=0,
                lane_wait_s=0.002,
            )
        )

    def _next(self) -> ToEngine:
        while not self._commands:
            try:  # `receive` answers a Ping itself, and then waits for a command: not while there is work
                self._commands.extend(self._links.receive(wait=not self._work()))
            except Gone:
                sys.exit(0)
        return self._commands.popleft()

    def _crash(self) -> None:
        if self._in_thread:
            raise Crash
        os.kill(os.getpid(), signal.SIGKILL)

    def _fork(self) -> None:
        """Return in each fork; the template itself ends here."""
        control = socket.socket(fileno=int(sys.argv[3]))
        while (pid := os.fork()) != 0:
            self._sock.close()
            packet, descriptors, _, _ = socket.recv_fds(control, 1, 1)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            if not packet:
                os._exit(0)
            self._sock = socket.socket(fileno=descriptors[0])
            self._links = Links(self._sock)
        control.send(encode_forked(Forked(os.getpid())))
        control.close()

    def _stay_in_step(self, command: str, seconds: float) -> None:
        assert self._page is not None, "for the model that counts"
        if command == "hang":
            threading.Event().wait()
        self._page.allowed_s = seconds + 60.0 if command == "silent" else 0.0
        until_s = time.monotonic() + seconds
        while command == "spin" or time.monotonic() < until_s:
            if command == "long":
                time.sleep(0.05)
                self._page.advance()
            elif command == "silent":
                time.sleep(0.05)
        self._page.allowed_s = 0.0

    def _send(self, message: FromEngine) -> None:
        self._links.send([message])


if __name__ == "__main__":
    ScriptedEngine(socket.socket(fileno=int(sys.argv[1]))).run()
