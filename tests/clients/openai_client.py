"""openai-python over the Realtime API; with `--beta` its older `client.beta.realtime`."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from client_script import ASKED, FORECAST, LISTENS_S, SKY, Place, Refused, play
from openai_caller import TRANSCRIBED, calling, message, stock_client

LISTENING = {"type": "server_vad", "interrupt_response": True}


def said(response: Any) -> str:
    """Return the words of a response's message."""
    part = response.output[0].content[0]
    return str(part.transcript or part.text)


async def connect(place: Place) -> dict[str, Any]:
    """Open a session and configure it."""
    async with calling(place.url, place.key, LISTENING):
        return {}


async def voice(place: Place) -> dict[str, Any]:
    """Ask aloud."""
    async with calling(place.url, place.key, LISTENING) as caller:
        caller.microphone.say(place.clips["question"])
        asked = (await caller.until(TRANSCRIBED)).transcript
        return {"asked": asked, "said": said((await caller.until("response.done")).response)}


async def interruption(place: Place) -> dict[str, Any]:
    """Ask for a story, cut in, and see what is left of the story."""
    async with calling(place.url, place.key, LISTENING) as caller:
        caller.microphone.say(place.clips["story"])
        await caller.until("response.output_audio.delta")
        await asyncio.sleep(LISTENS_S)
        caller.microphone.say(place.clips["cut_in"])
        (story,) = (await caller.until("response.done")).response.output
        answer = (await caller.until("response.done")).response
        kept = (await caller.retrieve(story.id)).content[0].transcript
        return {"kept": kept, "said": said(answer)}


async def tool(place: Place) -> dict[str, Any]:
    """Let the model call a function and use its result."""
    async with calling(place.url, place.key, LISTENING) as caller:
        await caller.remember(message("user", ASKED))
        (call,) = (await caller.respond(tool_choice="required")).output
        await caller.remember({"type": "function_call_output", "call_id": call.call_id, "output": FORECAST})
        told = await caller.respond(tool_choice="none")
        return {"called": call.name, "arguments": json.loads(call.arguments), "said": said(told)}


async def text(place: Place) -> dict[str, Any]:
    """Type a question and read the answer."""
    async with calling(place.url, place.key, LISTENING) as caller:
        await caller.remember(message("user", SKY))
        return {"said": said(await caller.respond(output_modalities=["text"]))}


async def push_to_talk(place: Place) -> dict[str, Any]:
    """Send a recording and commit it."""
    async with calling(place.url, place.key, None) as caller:
        await caller.send(place.clips["question"])
        await caller.connection.input_audio_buffer.commit()
        asked = (await caller.until(TRANSCRIBED)).transcript
        return {"asked": asked, "said": said(await caller.respond())}


async def beta(place: Place) -> dict[str, Any]:
    """Open a session of the beta version."""
    async with (
        stock_client(place.url, place.key) as client,
        client.beta.realtime.connect(model="gpt-realtime") as connection,
    ):
        event: Any = await connection.recv()
        if event.type == "error":
            raise Refused(event.error.message)
        return {"first": event.type}


play("openai", connect, voice, interruption, tool, text, push_to_talk, beta=beta)
