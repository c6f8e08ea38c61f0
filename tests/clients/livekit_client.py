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


async def converse(url: str, key: str, clips: dict[str, bytes]) -> None:
    """Hold the conversation."""
    model = RealtimeModel(
        base_url=url.replace("http", "ws", 1) + "/v1",
        api_key=key,
        model="gpt-realtime",
        tool_choice="none",
    )
    model.update_options(max_response_output_tokens=30)
    session: AgentSession[None] = AgentSession(llm=model)
    watcher, microphone, ear, agent = Watcher(session), Microphone(), Ear(), Guide()
    session.input.audio, session.output.audio = ear, Loudspeaker()
    await session.start(agent)
    speaking = asyncio.create_task(microphone.run(ear.push))
    spoken = 0

    async def heard_out() -> None:
        nonlocal spoken
        await watcher.until("speaking", spoken + 1)
        listening = watcher.states("listening")
        spoken += 1
        await watcher.until("listening", listening + 1)

    microphone.say(clips["question"])
    await heard_out()
    microphone.say(clips["story"])
    await watcher.until("speaking", spoken + 1)
    spoken += 1
    await asyncio.sleep(LISTENS_S)
    microphone.say(clips["cut_in"])
    await heard_out()
    said = [
        event.item for event in watcher.all("conversation_item_added") if getattr(event.item, "role", "") == "assistant"
    ]
    assert [item.interrupted for item in said] == [False, True, False]
    remote = agent.realtime_llm_session
    shown = asyncio.get_running_loop().create_future()

    def server_event(event: dict[str, Any]) -> None:
        if event["type"] == "conversation.item.retrieved" and not shown.done():
            shown.set_result(event["item"])

    remote.on("openai_server_event_received", server_event)
    remote.send_event({"type": "conversation.item.retrieve", "item_id": said[1].id})
    assert (await asyncio.wait_for(shown, 60))["content"][0]["transcript"]
    await asyncio.wait_for(session.generate_reply(user_input=ASKED, tool_choice="required"), 60)
    (ran,) = watcher.all("function_tools_executed")
    assert [output.output for output in ran.function_call_outputs] == [FORECAST]
    assert len([event for event in watcher.all("user_input_transcribed") if event.is_final]) == 3
    speaking.cancel()
    await session.aclose()
    await model.aclose()
    assert not watcher.all("error"), watcher.all("error")


def main() -> None:
    """Run it."""
    url, key, folder = sys.argv[1:]
    clips = {file.stem: file.read_bytes() for file in Path(folder).glob("*.pcm")}
    asyncio.run(asyncio.wait_for(converse(url, key, clips), 120))


main()
