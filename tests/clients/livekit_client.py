"""LiveKit's AgentSession over its RealtimeModel, with a scripted microphone and a loudspeaker that takes its time.

With `--beta` it uses the older RealtimeModelBeta.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from importlib.metadata import version
from typing import Any

from client_script import ASKED, FORECAST, INSTRUCTIONS, LISTENS_S, MAX_TOKENS, SKY, Place, Refused, play
from livekit import rtc
from livekit.agents import Agent, AgentSession, function_tool
from livekit.agents.voice.io import AudioInput, AudioOutput, AudioOutputCapabilities
from livekit.plugins.openai.realtime import RealtimeModel
from microphone import RATE, Microphone

OLD = version("livekit-agents").startswith("1.2.")


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
            if hasattr(self, "on_playback_started"):  # since 1.3
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

    async def refusal(self) -> None:
        """Wait for an error."""
        while not self.all("error"):
            self._news.clear()
            await self._news.wait()


class Caller:
    """The session of one agent, with a microphone and what it tells."""

    def __init__(self, place: Place, *, manual: bool = False) -> None:
        detection: dict[str, Any] = {"turn_detection": None} if manual else {}
        self.model = RealtimeModel(
            base_url=place.websocket, api_key=place.key, model="gpt-realtime", tool_choice="none", **detection
        )
        self.model.update_options(max_response_output_tokens=MAX_TOKENS)
        mode: dict[str, Any] = {"turn_detection": "manual"} if manual else {}
        if not OLD:  # else it sends silence for the first three seconds of the agent's first words
            mode["aec_warmup_duration"] = None
        self.session: AgentSession[None] = AgentSession(llm=self.model, **mode)
        self.agent, self.ear, self.microphone = Guide(), Ear(), Microphone()
        self.watcher = Watcher(self.session)
        self.session.input.audio, self.session.output.audio = self.ear, Loudspeaker()

    async def reply_begins(self, count: int) -> None:
        """Wait until so many replies have been heard to begin."""
        await self.watcher.until("speaking", count)

    async def reply_ends(self, count: int) -> None:
        """Hear so many replies, the last one to its end."""
        await self.reply_begins(count)
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
        return await shown

    def replies(self) -> list[Any]:
        """Return the agent's messages in the session's history."""
        items = [event.item for event in self.watcher.all("conversation_item_added")]
        return [item for item in items if getattr(item, "role", "") == "assistant"]

    def asked(self) -> str:
        """Return what the session has understood last."""
        return str([event.transcript for event in self.watcher.all("user_input_transcribed") if event.is_final][-1])


@contextlib.asynccontextmanager
async def calling(place: Place, *, manual: bool = False) -> AsyncIterator[Caller]:
    """Start a session and close it."""
    caller = Caller(place, manual=manual)
    await caller.session.start(caller.agent)
    speaking = asyncio.create_task(caller.microphone.run(caller.ear.push))
    try:
        yield caller
        assert not caller.watcher.all("error"), caller.watcher.all("error")
    finally:
        speaking.cancel()
        await caller.session.aclose()
        await caller.model.aclose()


async def connect(place: Place) -> dict[str, Any]:
    """Open a session; the agent says something first."""
    async with calling(place) as caller:
        await asyncio.wait_for(caller.session.generate_reply(instructions="Greet the person."), 30)
        return {}


async def voice(place: Place) -> dict[str, Any]:
    """Ask aloud."""
    async with calling(place) as caller:
        caller.microphone.say(place.clips["question"])
        await caller.reply_ends(1)
        return {"asked": caller.asked(), "said": caller.replies()[-1].text_content}


async def interruption(place: Place) -> dict[str, Any]:
    """Ask for a story and cut in."""
    async with calling(place) as caller:
        caller.microphone.say(place.clips["story"])
        await caller.reply_begins(1)
        await asyncio.sleep(LISTENS_S)
        caller.microphone.say(place.clips["cut_in"])
        await caller.reply_ends(2)
        story, answer = caller.replies()
        assert (story.interrupted, answer.interrupted) == (True, False)
        kept = (await caller.retrieve(story.id))["content"][0]["transcript"]
        return {"kept": kept, "said": answer.text_content}


async def tool(place: Place) -> dict[str, Any]:
    """Let the model call a function and use its result."""
    async with calling(place) as caller:
        await asyncio.wait_for(caller.session.generate_reply(user_input=ASKED, tool_choice="required"), 30)
        (ran,) = caller.watcher.all("function_tools_executed")
        (call,), (output,) = ran.function_calls, ran.function_call_outputs
        assert output.output == FORECAST
        said = caller.replies()[-1].text_content
        return {"called": call.name, "arguments": json.loads(call.arguments), "said": said}


async def text(place: Place) -> dict[str, Any]:
    """Type a question."""
    async with calling(place) as caller:
        await asyncio.wait_for(caller.session.generate_reply(user_input=SKY), 30)
        return {"said": caller.replies()[-1].text_content}


async def push_to_talk(place: Place) -> dict[str, Any]:
    """Say something and commit the turn."""
    async with calling(place, manual=True) as caller:
        caller.microphone.say(place.clips["question"])
        await asyncio.sleep(len(place.clips["question"]) / 2 / RATE)
        if version("livekit-agents").startswith(
            "1.2."
        ):  # there commit_user_turn asks for a recogniser of the client's own
            caller.agent.realtime_llm_session.commit_audio()
            caller.session.generate_reply()
        else:
            caller.session.commit_user_turn()
        await caller.reply_ends(1)
        return {"asked": caller.asked(), "said": caller.replies()[-1].text_content}


async def beta(place: Place) -> dict[str, Any]:
    """Open a session of the beta version; the session's error event is what an application sees."""
    from livekit.plugins.openai.realtime import RealtimeModelBeta

    model = RealtimeModelBeta(base_url=place.websocket, api_key=place.key, model="gpt-realtime")
    session: AgentSession[None] = AgentSession(llm=model)
    watcher = Watcher(session)
    await session.start(Guide())
    try:
        await watcher.refusal()
    finally:
        await session.aclose()
    raise Refused(str(watcher.all("error")[0].error.error.body))


play("livekit-agents", connect, voice, interruption, tool, text, push_to_talk, beta=beta)
