"""langchain-openai: ChatOpenAI over HTTP."""

from __future__ import annotations

from typing import Any

from client_script import ASKED, CHAT_MODEL, FORECAST, MAX_TOKENS, SKY, Place, play
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool as as_tool
from langchain_openai import ChatOpenAI


@as_tool
def get_weather(city: str) -> str:
    """Get the current weather of a city."""
    return FORECAST


def chat(place: Place, **more: Any) -> ChatOpenAI:
    """Return the chat model."""
    return ChatOpenAI(
        model=CHAT_MODEL, base_url=place.api, api_key=place.key, temperature=0, max_tokens=MAX_TOKENS, **more
    )


async def connect(place: Place) -> dict[str, Any]:
    """Ask for one token."""
    await chat(place).ainvoke("Hello!")
    return {}


async def tool(place: Place) -> dict[str, Any]:
    """Let the model call a function and use its result, by chat completions and by responses."""
    for responses in (False, True):
        model = chat(place, use_responses_api=responses)
        messages: list[Any] = [HumanMessage(ASKED)]
        first = await model.bind_tools([get_weather], tool_choice="required").ainvoke(messages)
        (call,) = first.tool_calls
        result: ToolMessage = await get_weather.ainvoke(call)
        told = await model.bind_tools([get_weather], tool_choice="none").ainvoke([*messages, first, result])
        assert told.text, responses
    return {"called": call["name"], "arguments": call["args"], "said": told.text}


async def text(place: Place) -> dict[str, Any]:
    """Read an answer as it comes, by chat completions and by responses."""
    for responses in (False, True):
        pieces = [piece.text async for piece in chat(place, use_responses_api=responses).astream(SKY)]
        assert len(pieces) > 2
        assert "".join(pieces), responses
    return {"said": "".join(pieces)}


play("langchain-openai", connect, tool, text)
