"""A server process's side of the socket to its supervisor: news come in, questions to the other processes go out."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine
from typing import Protocol

from voxlane.server.cell.control import ControlSocket
from voxlane.server.cell.messages import (
    Answered,
    AskAll,
    Begin,
    CellEnds,
    CellMessage,
    EngineLink,
    EngineNews,
    LetGo,
    LinkLost,
    Listening,
    VoiceChange,
)
from voxlane.server.log import line

logger = logging.getLogger(__name__)

ASK_SECONDS = 1.0
"""Time for the other processes to answer a question: one that is stopped must not hold up the rest."""


class CellHandlers(Protocol):
    """What a server process does with its supervisor's messages."""

    def engine_news(self, news: EngineNews) -> None:
        """An engine has a new state."""

    def engine_link(self, engine: int, link: socket.socket) -> None:
        """There is a new link to an engine."""

    def told(self, what: VoiceChange | LetGo) -> Coroutine[None, None, None] | None:
        """Another process tells all; it is answered now, or when what is returned is done."""

    def cell_ends(self) -> None:
        """The whole cell goes down."""


class CellMember:
    """One server process as its supervisor sees it."""

    def __init__(self, sock: socket.socket, lost: Callable[[], None]) -> None:
        """Talk over this socket; `lost` is called when the supervisor is gone."""
        self._control = ControlSocket(sock, self._receive, lost)
        self._begin: asyncio.Future[Begin] = asyncio.get_running_loop().create_future()
        self._early: list[tuple[CellMessage, socket.socket | None]] = []
        self._handlers: CellHandlers | None = None
        self._questions: dict[int, asyncio.Future[None]] = {}
        self._asked = 0
        self._answering: set[asyncio.Task[None]] = set()

    async def begin(self) -> Begin:
        """Wait for the first message."""
        return await self._begin

    def serve(self, handlers: CellHandlers) -> None:
        """Handle messages from now on, and those that came before."""
        self._handlers = handlers
        early, self._early = self._early, []
        for message, link in early:
            self._handle(handlers, message, link)

    def listening(self) -> None:
        """Tell the supervisor that this process accepts connections."""
        self._control.send(Listening())

    def ask_link(self, engine: int) -> None:
        """Ask for another link to an engine."""
        self._control.send(LinkLost(engine))

    async def ask_all(self, what: VoiceChange | LetGo) -> None:
        """Tell all other processes something, and wait until they know, or for ASK_SECONDS."""
        self._asked += 1
        number, answer = self._asked, asyncio.get_running_loop().create_future()
        self._questions[number] = answer
        self._control.send(AskAll(number, what))
        try:
            async with asyncio.timeout(ASK_SECONDS):
                await answer
        except TimeoutError:
            logger.warning(line("a server process does not answer", question=type(what).__name__))
        finally:
            del self._questions[number]

    async def let_go(self, session: str) -> None:
        """Have the other processes release a conversation."""
        await self.ask_all(LetGo(session))

    def close(self) -> None:
        """Leave the supervisor."""
        self._control.close()

    def _receive(self, message: CellMessage, link: socket.socket | None) -> None:
        if isinstance(message, Begin):
            if not self._begin.done():
                self._begin.set_result(message)
        elif isinstance(message, Answered):
            question = self._questions.get(message.number)
            if question is not None and not question.done():
                question.set_result(None)
        elif self._handlers is None:
            self._early.append((message, link))
        else:
            self._handle(self._handlers, message, link)

    def _handle(self, handlers: CellHandlers, message: CellMessage, link: socket.socket | None) -> None:
        match message:
            case EngineNews():
                handlers.engine_news(message)
            case EngineLink(engine) if link is not None:
                handlers.engine_link(engine, link)
            case AskAll(number, what):
                work = handlers.told(what)
                if work is None:
                    self._control.send(Answered(number))
                else:
                    self._answer_after(number, work)
            case CellEnds():
                handlers.cell_ends()
            case _:
                pass

    def _answer_after(self, number: int, work: Coroutine[None, None, None]) -> None:
        """Answer a question when the work that it asks for is done, or has failed."""
        task = asyncio.create_task(work, name="cell question")
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)
        task.add_done_callback(lambda _: self._control.send(Answered(number)))
