"""Write data/exchange.json: every frame of a conversation with the server around the scripted engine, as hex.

Run it from the repository's root, in its environment: `python client_js/test/record_exchange.py`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import msgpack
from websockets.asyncio.client import ClientConnection, connect

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from house import start  # noqa: E402
from peer import speech  # noqa: E402

TOOLS = [{"name": "weather", "description": "Tell the weather.", "parameters": '{"type": "object", "properties": {}}'}]
OUTPUT = {"codec": "pcm16", "rate": 8000}  # the smallest recording
HELLO = {"output": OUTPUT, "config": {"turns": {"mode": "manual"}, "voice": "two", "tools": TOOLS}}


class Recorder:
    """A client that plays at once whatever comes, and keeps every frame."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.server: list[str] = []
        self.client: list[str] = []

    async def send(self, *message: object) -> None:
        data: bytes = msgpack.packb(message)
        self.client.append(data.hex())
        await self.socket.send(data)

    async def until(self, name: str, *, plays: bool = True) -> list[Any]:
        while True:
            data = await self.socket.recv()
            assert isinstance(data, bytes)
            self.server.append(data.hex())
            message: list[Any] = msgpack.unpackb(data)
            if message[0] == "audio" and plays:
                await self.send("played", message[2], message[3] + len(message[4]) // 2, 0)
            if message[0] == name:
                return message


async def converse(recorder: Recorder) -> None:
    await recorder.send("hello", HELLO)
    await recorder.until("ready")
    await recorder.send("ping", 1)
    await recorder.until("pong")
    await recorder.send("text", "grüße 🎉 you")
    await recorder.until("turn_done")
    await recorder.send("text", "call")
    call = await recorder.until("tool_call")
    await recorder.send("tool_result", call[3], "sunny")
    await recorder.until("turn_done")
    await recorder.send("start")
    await recorder.send("audio", speech("and you"))
    await recorder.send("end")
    await recorder.until("turn_done")
    await recorder.send("text", "interrupted before it ends")
    sound = await recorder.until("audio", plays=False)
    await recorder.send("played", sound[2], len(sound[4]) // 2, 0)
    await recorder.send("stop")
    await recorder.until("turn_done", plays=False)
    await recorder.send("text", "and on")  # what was not answered comes with it, so that the next text stands alone
    await recorder.until("turn_done")
    await recorder.send("text", "fail")
    await recorder.until("turn_done")
    await recorder.send("config", {"speed": 1.5})
    await recorder.until("configured")
    await recorder.send("bye")
    await recorder.until("bye")


async def main() -> None:
    async with start() as running:
        url = f"{running.url.replace('http', 'ws', 1)}/v1/voice"
        async with connect(url, subprotocols=["voxlane.v1"], compression=None) as socket:  # type: ignore[list-item]
            recorder = Recorder(socket)
            async with asyncio.timeout(20):
                await converse(recorder)
    target = Path(__file__).parent / "data" / "exchange.json"
    document = {"client": recorder.client, "server": recorder.server}
    target.write_text(json.dumps(document, indent=0) + "\n", encoding="ascii")


if __name__ == "__main__":
    asyncio.run(main())
