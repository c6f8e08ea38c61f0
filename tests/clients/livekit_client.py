"""LiveKit's AgentSession over its RealtimeModel, with a scripted microphone and a loudspeaker that takes its time.

Arguments: the server's URL, its key, and a folder with what the person says.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from livekit import rtc
from livekit.agents import Agent, AgentSession, function_tool
from livekit.agents.voice.io import AudioInput, AudioOutput, AudioOutputCapabilities
from livekit.plugins.openai.realtime import RealtimeModel
from microphone import RATE, Microphone

INSTRUCTIONS = "You are a friendly voice assistant. Answer in one short sentence."
LISTENS_S = 1.2
ASKED = "What is the weather in Paris?"
FORECAST = "It is raining in Paris, 11 degrees."


class Ear(AudioInput):
    """Hands the microphone's frames to the session."""

    def __init__(self) -> None:
        super().__init__(label="script")
        self._frames: asyncio.Queue[rtc.AudioFrame] = asyncio.Queue()

    async def push(self, pcm: bytes) -> None:
        """Take a frame of the microphone's."""
        await self._frames.put(rtc.AudioFrame(pcm, RATE, 1, len(pcm) // 2))

    async def __anext__(self) -> rtc.AudioFrame:
        return await self._frames.get()


class Loudspeaker(AudioOutput):
    """Plays for as long as the sound lasts, and says how far it came when it is stopped."""

    def __init__(self) -> None:
        super().__init__(label="clock", capabilities=AudioOutputCapabilities(pause=False), sample_rate=RATE)
        self._began_s: float | None = None
        self._length_s = 0.0
        self._end: asyncio.TimerHandle | None = None

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        await super().capture_frame(frame)
        if self._began_s is None:
            self._began_s, self._length_s = time.time(), 0.0
            self.on_playback_started(created_at=self._began_s)
        self._length_s += frame.duration

    def flush(self) -> None:
        super().flush()
        if self._began_s is not None and self._end is None:
            left_s = self._began_s + self._length_s - time.time()
            self._end = asyncio.get_running_loop().call_later(max(0.0, left_s), self._finish, False)

    def clear_buffer(self) -> None:
        if self._began_s is not None:
            self._finish(True)

    def _finish(self, interrupted: bool) -> None:
        if self._end is not None:
            self._end.cancel()
        assert self._began_s is not None
        played_s = min(time.time() - self._began_s, self._length_s)
        self._began_s = self._end = None
        self.on_playback_finished(playback_position=played_s, interrupted=interrupted)


class Guide(Agent):
    """An agent with one tool."""

    def __init__(self) -> None:
        super().__init__(instructions=INSTRUCTIONS)

    @function_tool
    async def get_weather(self, city: str) -> str:
        """Get the current weather of a city."""
        assert city
        return FORECAST


class Watcher:
    """Keeps what the session tells."""

    KINDS = (
        "agent_state_changed",
        "user_input_transcribed",
        "function_tools_executed",
        "conversation_item_added",
        "error",
    )

    def __init__(self, session: AgentSession[None]) -> None:
        self.events: list[Any] = []
        self._news = asyncio.Event()
        for kind in self.KINDS:
            session.on(kind, self.take)

    def take(self, event: Any) -> None:
        """Note an event."""
        self.events.append(event)
        self._news.set()

    def all(self, kind: str) -> list[Any]:
        """Return the events of a type so far."""
        return [event for event in self.events if event.type == kind]

    def states(self, name: str) -> int:
        """Return how often the agent has come into a state."""
        return sum(event.new_state == name for event in self.all("agent_state_changed"))

    async def until(self, name: str, count: int) -> None:
        """Wait until the agent has come into a state so many times since the beginning."""
        async with asyncio.timeout(60):
            while self.states(name) < count:
                assert not self.all("error"), self.all("error")
                self._news.clear()
                await self._news.wait()


class Caller:
    """The session of one agent, with a microphone and what it tells."""

    def __init__(self, url: str, key: str) -> None:
        address = url.replace("http", "ws", 1) + "/v1"
        self.model = RealtimeModel(base_url=address, api_key=key, model="gpt-realtime", tool_choice="none")
        self.model.update_options(max_response_output_tokens=30)
        self.session: AgentSession[None] = AgentSession(llm=self.model)
        self.agent, self.ear, self.microphone = Guide(), Ear(), Microphone()
        self.watcher = Watcher(self.session)
        self.session.input.audio, self.session.output.audio = self.ear, Loudspeaker()
        self._replies = 0

    async def reply_begins(self) -> None:
        """Wait until the next reply is heard."""
        self._replies += 1
        await self.watcher.until("speaking", self._replies)

    async def reply_ends(self) -> None:
        """Hear the next reply to its end."""
        await self.reply_begins()
        await self.watcher.until("listening", self.watcher.states("listening") + 1)

    async def retrieve(self, item: str) -> dict[str, Any]:
        """Return an item as the server remembers it."""
        shown: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

        def take(event: dict[str, Any]) -> None:
            if event["type"] == "conversation.item.retrieved" and not shown.done():
                shown.set_result(event["item"])

        remote = self.agent.realtime_llm_session
        remote.on("openai_server_event_received", take)
        remote.send_event({"type": "conversation.item.retrieve", "item_id": item})
        return await asyncio.wait_for(shown, 60)


async def converse(url: str, key: str, clips: dict[str, bytes]) -> None:
    """Hold the conversation."""
    caller = Caller(url, key)
    watcher = caller.watcher
    await caller.session.start(caller.agent)
    speaking = asyncio.create_task(caller.microphone.run(caller.ear.push))
    caller.microphone.say(clips["question"])
    await caller.reply_ends()
    caller.microphone.say(clips["story"])
    await caller.reply_begins()
    await asyncio.sleep(LISTENS_S)
    caller.microphone.say(clips["cut_in"])
    await caller.reply_ends()
    items = [event.item for event in watcher.all("conversation_item_added")]
    replies = [item for item in items if getattr(item, "role", "") == "assistant"]
    assert [reply.interrupted for reply in replies] == [False, True, False]
    assert (await caller.retrieve(replies[1].id))["content"][0]["transcript"]
    await asyncio.wait_for(caller.session.generate_reply(user_input=ASKED, tool_choice="required"), 60)
    (ran,) = watcher.all("function_tools_executed")
    assert [output.output for output in ran.function_call_outputs] == [FORECAST]
    assert len([event for event in watcher.all("user_input_transcribed") if event.is_final]) == 3
    speaking.cancel()
    await caller.session.aclose()
    await caller.model.aclose()
    assert not watcher.all("error"), watcher.all("error")


def main() -> None:
    """Run it."""
    url, key, folder = sys.argv[1:]
    clips = {file.stem: file.read_bytes() for file in Path(folder).glob("*.pcm")}
    asyncio.run(asyncio.wait_for(converse(url, key, clips), 120))


main()
