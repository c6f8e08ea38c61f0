"""openai-agents (Python): its RealtimeRunner."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from agents import function_tool
from agents.realtime import RealtimeAgent, RealtimeModelSendRawMessage, RealtimeRunner
from agents_caller import Audience, choose_tools
from client_script import ASKED, FORECAST, INSTRUCTIONS, LISTENS_S, MAX_TOKENS, SKY, Place, play
from microphone import Microphone
from openai_caller import beside


@dataclass(slots=True)
class Talk:
    """A running session."""

    session: Any
    audience: Audience
    microphone: Microphone = field(default_factory=Microphone)
    called: dict[str, Any] = field(default_factory=dict)

    def words(self, role: str, place: int = -1) -> str:
        """Return what one side has said, as the SDK's history has it."""
        items = [item for item in self.audience.all("history_updated")[-1].history if getattr(item, "role", "") == role]
        part = items[place].content[0]
        return str(getattr(part, "transcript", None) or getattr(part, "text", ""))


@contextlib.asynccontextmanager
async def talking(place: Place, **settings: Any) -> AsyncIterator[Talk]:
    """Run an agent with one tool."""

    @function_tool
    async def get_weather(city: str) -> str:
        """Get the current weather of a city."""
        talk.called["city"] = city
        await choose_tools(session, "none")
        return FORECAST

    runner = RealtimeRunner(RealtimeAgent(name="Guide", instructions=INSTRUCTIONS, tools=[get_weather]))
    url = f"{place.websocket}/realtime?model=gpt-realtime"
    initial: Any = {"max_output_tokens": MAX_TOKENS, "tool_choice": "none", **settings}
    session = await runner.run(model_config={"api_key": place.key, "url": url, "initial_model_settings": initial})
    async with session:
        talk = Talk(session, Audience(session))
        listening = "turn_detection" not in settings
        lives = [talk.audience.listen()] + ([talk.microphone.run(session.send_audio)] if listening else [])
        async with beside(*lives):
            yield talk
        assert talk.audience.all("error") == []


async def connect(place: Place) -> dict[str, Any]:
    """Open a session and wait until the server has accepted its settings."""
    async with talking(place) as talk:
        while not any(event.data.type == "raw_server_event" for event in talk.audience.all("raw_model_event")):
            await talk.audience.until("raw_model_event", len(talk.audience.all("raw_model_event")) + 1)
        return {}


async def voice(place: Place) -> dict[str, Any]:
    """Ask aloud."""
    async with talking(place) as talk:
        talk.microphone.say(place.clips["question"])
        await talk.audience.until("agent_end", 1)
        return {"asked": talk.words("user"), "said": talk.words("assistant")}


async def interruption(place: Place) -> dict[str, Any]:
    """Ask for a story and cut in; the SDK's history shows what was heard of the story."""
    async with talking(place) as talk:
        talk.microphone.say(place.clips["story"])
        await talk.audience.until("audio", 1)
        await asyncio.sleep(LISTENS_S)
        talk.microphone.say(place.clips["cut_in"])
        await talk.audience.until("agent_end", 2)
        return {"kept": talk.words("assistant", -2), "said": talk.words("assistant")}


async def tool(place: Place) -> dict[str, Any]:
    """Let the model call a function and use its result."""
    async with talking(place) as talk:
        await choose_tools(talk.session, "required")
        await talk.session.send_message(ASKED)
        await talk.audience.until("agent_end", 2)
        (ended,) = talk.audience.all("tool_end")
        assert ended.output == FORECAST
        return {"called": ended.tool.name, "arguments": talk.called, "said": talk.words("assistant")}


async def text(place: Place) -> dict[str, Any]:
    """Type a question."""
    async with talking(place) as talk:
        await talk.session.send_message(SKY)
        await talk.audience.until("agent_end", 1)
        return {"said": talk.words("assistant")}


async def push_to_talk(place: Place) -> dict[str, Any]:
    """Send a recording, commit it and ask for the answer."""
    async with talking(place, turn_detection=None) as talk:
        await talk.session.send_audio(place.clips["question"], commit=True)
        await talk.session.model.send_event(RealtimeModelSendRawMessage({"type": "response.create"}))
        await talk.audience.until("agent_end", 1)
        return {"asked": talk.words("user"), "said": talk.words("assistant")}


play("openai-agents", connect, voice, interruption, tool, text, push_to_talk)
