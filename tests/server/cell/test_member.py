"""A server process answers a question of another one when it has done what it was asked for."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine

from voxlane.server.cell.control import ControlSocket
from voxlane.server.cell.member import CellMember
from voxlane.server.cell.messages import Answered, AskAll, CellMessage, EngineNews, LetGo, VoiceChange


class Handlers:
    """Lets go of a conversation when it may."""

    def __init__(self) -> None:
        self.may = asyncio.Event()

    def engine_news(self, news: EngineNews) -> None: ...

    def engine_link(self, engine: int, link: socket.socket) -> None: ...

    def cell_ends(self) -> None: ...

    def told(self, what: VoiceChange | LetGo) -> Coroutine[None, None, None] | None:
        return self._let_go() if isinstance(what, LetGo) else None

    async def _let_go(self) -> None:
        await self.may.wait()


async def test_a_question_is_answered_when_its_work_is_done() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    answers: asyncio.Queue[CellMessage] = asyncio.Queue()
    supervisor = ControlSocket(ours, lambda message, _: answers.put_nowait(message), lambda: None)
    member, handlers = CellMember(theirs, lambda: None), Handlers()
    member.serve(handlers)
    supervisor.send(AskAll(1, LetGo("voice-1")))
    supervisor.send(AskAll(2, VoiceChange("anna")))
    async with asyncio.timeout(10):
        assert await answers.get() == Answered(2)  # the first one is not done yet
        handlers.may.set()
        assert await answers.get() == Answered(1)
    member.close()
    assert ours.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b"", "a closed end is seen at once"
    supervisor.close()
