"""Servers around the scripted engine as processes of their own, and clients that check what outlives them."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from pathlib import Path
from typing import Any

from house import ENGINE_COMMAND
from peer import Peer, speech
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage, InvalidStatus

RETRY_S = 0.02
"""Wait before a connection is tried again: the next server is still starting."""

HELLO = {"config": {"voice": "two", "turns": {"mode": "manual", "pre_roll_s": 0}, "buffer_s": 0.5}}

HANDED_OVER = 1012
"""The close code of a server that leaves the conversation to another one."""

BROKEN = (OSError, EOFError, InvalidHandshake, InvalidMessage, ConnectionClosed)
"""What a client may meet while there is no server."""


class ServerProcess:
    """One `voxlane serve` with a store in a file."""

    def __init__(self, store: Path, log: Path, port: int = 0, drain_s: float = 60.0) -> None:
        code = (
            "import asyncio, uvloop\n"
            "from voxlane.engine.api import EngineConfig\n"
            "from voxlane.server import log\n"
            "from voxlane.server.config import Config, RoomConfig, ServerConfig, StoreConfig\n"
            "from voxlane.server.commands.serve import serve\n"
            "log.set_up('info')\n"
            f"server = ServerConfig(port={port}, drain_s={drain_s}, reuse_port=True)\n"
            f"store = StoreConfig('sqlite', {str(store)!r}, wait_s=10.0)\n"
            "engine = EngineConfig('scripted', 'moonshine-tiny-en', 'hibari')\n"
            "config = Config(server, engine, store=store, room=RoomConfig(measured=False))\n"
            "with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:\n"
            f"    runner.run(serve(config, '', engine_command={ENGINE_COMMAND!r}))\n"
        )
        with log.open("a") as errors:
            command = [sys.executable, "-c", code]
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert self.process.stdout is not None
        first = self.process.stdout.readline()
        assert first.startswith("voxlane "), f"the server did not start: {log.read_text()}"
        self.url = first.split()[-1]
        self.port = int(self.url.rpartition(":")[2])

    def kill(self) -> None:
        """Kill it; its engine notices by itself."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Stop it as an operator would; return its exit status."""
        return self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> int:
        self.process.send_signal(how)
        self.process.communicate(timeout=120)
        return int(self.process.returncode)


class MessageCount:
    """The messages that all clients have got."""

    def __init__(self) -> None:
        self._count = 0
        self._changed = asyncio.Event()

    def add(self) -> None:
        """Count one."""
        self._count += 1
        self._changed.set()

    async def wait_more(self, number: int) -> None:
        """Wait until so many more have come."""
        wanted = self._count + number
        while self._count < wanted:
            self._changed.clear()
            await self._changed.wait()


class Talker:
    """One client that types, speaks, listens, and takes up its conversation whenever its connection breaks."""

    def __init__(self, name: str, url: str, chance: random.Random, count: MessageCount, *other_urls: str) -> None:
        """Talk at `url`, and at the others in turn while it cannot be reached."""
        self.name = name
        self.at = ""  # the server that has the conversation
        self.refused = 0  # how often a connection was refused before its upgrade
        self.resumed = 0
        self.gaps_s: list[float] = []  # from the end of a connection to `ready` on the next one
        self.waits_s: list[float] = []  # from the beginning of an utterance to the message that tells its turn
        self.resumable = True  # as the server has told last
        self.faults: list[str] = []  # what should never happen
        self.options: dict[str, Any] = {"open_timeout": 60}  # of its connections
        self.rest_s = 0.0  # after each turn: a history remembers 500
        self._urls = deque((url, *other_urls))
        self._chance = chance
        self._count = count
        self._peer: Peer | None = None
        self._token, self._last, self._mark = "", 0, 0
        self._lost_s: float | None = None
        self._pending = ""  # the text that was sent and not yet seen as a turn
        self._users: list[tuple[int, str]] = []  # turns as they were told
        self._begun: set[int] = set()
        self._ended: Counter[int] = Counter()
        self._failed: set[int] = set()
        self._heard: dict[int, str] = {}  # by epoch, what was told to be remembered
        self._texts: dict[int, str] = {}
        self._words: dict[int, list[list[int]]] = {}
        self._played = (0, 0)
        self._turns: dict[int, int] = {}  # by epoch
        self._cut: set[int] = set()  # turns whose answer we have cut into
        self._exact: str | None = None  # what must be remembered of the reply that a dead server left

    # ---- the talk

    async def talk(self, turns: int) -> None:
        """Type so many turns; some of them cut into the answer to the one before."""
        for number in range(turns):
            await self._say(f"{self.name} says number {len(self._users)} of many")
            turn, cuts_in = self._users[-1][0], self._chance.random() < 0.3 and number < turns - 1
            patience = self._chance.randrange(12) if cuts_in else 1_000_000
            while not self._ended[turn] and patience:
                await self._receive()
                patience -= 1
            await asyncio.sleep(self.rest_s)

    async def finish(self) -> None:
        """Take the conversation up once more, and compare its history with what was told and heard."""
        if self._peer is not None:
            self._peer.drop()
        peer, ready = await self._connect()
        self._compare("users", _joined(ready, "user"), self._told_users(), exact=True)
        self._compare("replies", _joined(ready, "assistant"), self._told_replies(), exact=True)
        self._expect(self._begun <= set(self._ended), f"turns {self._begun - set(self._ended)} never ended")
        self._expect(self._begun >= set(self._ended), f"turns {set(self._ended) - self._begun} never began")
        self._expect(set(self._ended.values()) <= {1}, f"turns ended twice: {self._ended.most_common(3)}")
        await peer.bye()

    async def _say(self, text: str) -> None:
        self._pending = text
        if self._users and not self._ended[self._users[-1][0]]:
            self._cut.add(self._users[-1][0])
        began_s = time.perf_counter()
        await self._utter(text)
        sent_to = self._peer
        while self._pending:
            message = await self._receive()
            if message[0] == "pong" and message[2] == self._mark and self._pending and self._peer is not sent_to:
                # On a new connection the server has repeated all that it knew of: the text has never arrived.
                await self._utter(text)
                sent_to = self._peer
        self.waits_s.append(time.perf_counter() - began_s)

    async def _utter(self, text: str) -> None:
        """Type a text, or speak it with a button held."""
        if self._chance.random() < 0.5:
            return await self._send("text", text)
        await self._send("start")
        await self._send("audio", speech(text))
        await self._send("end")
        return None

    # ---- the connection

    async def _send(self, *message: object) -> None:
        if self._peer is not None:
            with contextlib.suppress(*BROKEN):
                await self._peer.send(*message)

    async def _receive(self) -> list[Any]:
        while True:
            try:
                peer = self._peer
                if peer is None:
                    peer, _ = await self._connect()
                    await self._ping()
                message = await peer.next()
            except BROKEN as error:
                if isinstance(error, ConnectionClosed) and error.rcvd is not None and error.rcvd.code == HANDED_OVER:
                    self.at = ""
                self._peer = None
                self._lost_s = time.perf_counter()
                continue
            self._count.add()
            await self._note(message)
            return message

    async def _connect(self) -> tuple[Peer, dict[str, Any]]:
        """Begin or resume; return the connection and the server's `ready`."""
        hello: dict[str, Any] = HELLO
        if self._token:
            hello = {"resume": self._token, "last_seq": self._last}
            if self._played[0]:
                hello["played"] = list(self._played)
        while True:
            try:
                peer = await Peer.open(self._urls[0], at=self.at if self._token else None, **self.options)
                await peer.send("hello", hello)
                message = await peer.next()
            except BROKEN as error:
                self.refused += isinstance(error, InvalidStatus)
                self._urls.rotate()
                await asyncio.sleep(RETRY_S)
                continue
            if message[0] == "ready":
                break
            await peer.closed()
            assert message[4], f"{self.name} was refused: {message[2:]}"
            await asyncio.sleep(RETRY_S)
        self._peer = peer
        ready: dict[str, Any] = message[2]
        if self._token:
            self._take_up(ready)
        self._token, self.at, self.resumable = ready["token"], ready["at"], ready["resumable"]
        return peer, ready

    async def _ping(self) -> None:
        self._mark += 1
        await self._send("ping", self._mark)

    def _take_up(self, ready: dict[str, Any]) -> None:
        self.resumed += 1
        if self._lost_s is not None:
            self.gaps_s.append(time.perf_counter() - self._lost_s)
            self._lost_s = None
        self._compare("users", _joined(ready, "user"), self._told_users(ended=True), exact=False)
        self._compare("replies", _joined(ready, "assistant"), self._told_replies(), exact=False)
        epoch, position = self._played
        self._exact = None
        if epoch in self._texts and epoch not in self._heard and self._turns[epoch] not in self._cut:
            heard = [end for _, end, start, stop in self._words.get(epoch, []) if (start + stop + 1) // 2 <= position]
            self._exact = self._texts[epoch][: max(heard, default=0)].strip()

    # ---- what is told

    async def _note(self, message: list[Any]) -> None:
        name, sequence, *fields = message
        if name != "audio":
            self._expect(sequence > self._last, f"{name} has the number {sequence} after {self._last}")
        self._last = max(self._last, sequence)
        match name:
            case "user_turn":
                turn, text = fields
                self._expect(text not in [said for _, said in self._users], f"turn {turn} came twice")
                self._expect(text == self._pending, f"{text!r} was told, {self._pending!r} was typed")
                self._users.append((turn, text))
                self._begun.add(turn)
                self._pending = ""
            case "speech_started":
                self._begun.add(fields[0])
            case "reply":
                epoch, turn = fields
                self._expect(epoch not in self._texts, f"reply {epoch} began twice")
                self._texts[epoch] = ""
                self._begun.add(turn)
                self._turns[epoch] = turn
                self._played = (epoch, 0)
            case "reply_text":
                self._texts[fields[0]] += fields[1]
            case "audio":
                await self._hear(*fields)
            case "interrupted" | "reply_done":
                epoch, heard = fields[:2]
                self._expect(epoch not in self._heard, f"reply {epoch} ended twice")
                told = self._texts.get(epoch, "")
                self._expect(name == "reply_done" or told.startswith(heard), f"{heard!r} was never told: {told!r}")
                if name == "interrupted" and self._exact is not None and epoch == self._played[0]:
                    self._expect(heard == self._exact, f"{heard!r} is remembered, {self._exact!r} was heard")
                self._exact = None  # it was that reply's alone
                self._heard[epoch] = heard
            case "turn_done":
                self._ended[fields[0]] += 1
                if fields[1] == "failed":  # to be said again
                    self._failed.add(fields[0])
            case "resumable":
                (self.resumable,) = fields

    async def _hear(self, epoch: int, offset: int, data: bytes, words: list[list[int]]) -> None:
        self._expect(epoch not in self._heard, f"sound of reply {epoch} after its end")
        self._words.setdefault(epoch, []).extend(words)
        if (epoch, offset) > self._played:  # what came before this piece is played
            self._played = (epoch, offset)
            if self._chance.random() < 0.3:
                await self._send("played", epoch, offset, len(data) // 2)

    def _told_users(self, *, ended: bool = False) -> str:
        """Return what should be remembered of the person, or of the turns alone that have ended."""
        return " ".join(
            text for turn, text in self._users if turn not in self._failed and (self._ended[turn] or not ended)
        )

    def _told_replies(self) -> str:
        return " ".join(text.strip() for _, text in sorted(self._heard.items()) if text.strip())

    def _compare(self, what: str, kept: str, told: str, *, exact: bool) -> None:
        same = kept == told if exact else kept.startswith(told)
        self._expect(same, f"{what}: {told!r} was told, {kept!r} is remembered")

    def _expect(self, condition: bool, fault: str) -> None:
        if not condition:
            self.faults.append(f"{self.name}: {fault}")


def _joined(ready: dict[str, Any], role: str) -> str:
    return " ".join(message["content"] for message in ready["history"] if message["role"] == role)
