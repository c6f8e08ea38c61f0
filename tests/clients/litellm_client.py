"""litellm's SDK: chat, speech and transcription over HTTP."""

from __future__ import annotations

import json
from typing import Any

import litellm
from client_script import ASKED, CHAT_MODEL, FORECAST, MAX_TOKENS, SKY, Place, play, wav

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


async def ask(place: Place, messages: list[Any], **more: Any) -> Any:
    """Ask the chat model."""
    return await litellm.acompletion(
        model=f"openai/{CHAT_MODEL}",
        api_base=place.api,
        api_key=place.key,
        messages=messages,
        temperature=0,
        max_tokens=MAX_TOKENS,
        **more,
    )


async def connect(place: Place) -> dict[str, Any]:
    """Ask for one token."""
    await ask(place, [{"role": "user", "content": "Hello!"}])
    return {}


async def voice(place: Place) -> dict[str, Any]:
    """Let a question be transcribed, answered and spoken."""
    where: Any = {"api_base": place.api, "api_key": place.key}
    sent = ("question.wav", wav(place.clips["question"]))
    asked = (await litellm.atranscription(model="openai/whisper-1", file=sent, **where)).text
    answer = (await ask(place, [{"role": "user", "content": asked}])).choices[0].message.content
    spoken = await litellm.aspeech(model="openai/tts-1", voice="alloy", input=answer, response_format="wav", **where)
    heard = await litellm.atranscription(model="openai/whisper-1", file=("answer.wav", spoken.content), **where)
    return {"asked": asked, "said": heard.text}


async def tool(place: Place) -> dict[str, Any]:
    """Let the model call a function and use its result."""
    messages: list[Any] = [{"role": "user", "content": ASKED}]
    first = (await ask(place, messages, tools=[WEATHER], tool_choice="required")).choices[0].message
    (call,) = first.tool_calls
    messages += [first, {"role": "tool", "tool_call_id": call.id, "content": FORECAST}]
    told = await ask(place, messages, tools=[WEATHER], tool_choice="none")
    return {
        "called": call.function.name,
        "arguments": json.loads(call.function.arguments),
        "said": told.choices[0].message.content,
    }


async def text(place: Place) -> dict[str, Any]:
    """Read an answer as it comes."""
    stream = await ask(place, [{"role": "user", "content": SKY}], stream=True)
    pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert len(pieces) > 2
    return {"said": "".join(pieces)}


play("litellm", connect, voice, tool, text)
