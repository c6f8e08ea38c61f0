"""A conversation with a real server: an interruption that is meant; in a soak six turns, with a cough and a murmur.

The loudspeaker stands still while the server thinks about a sound that was made into a reply: however slow the machine
is, the reply is not over before.
A reply that was lowered or held is compared with the same reply in a second conversation at the same time, which
nothing disturbs: same seed, so the same samples.
"""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from voxlane.server.client import Event
from voxlane.server.conversation.turns.overlap import DUCK_GAIN

from .caller import RATE, Caller, calling, say

pytestmark = pytest.mark.weights


def cough() -> np.ndarray:
    chance = np.random.default_rng(1)
    time = np.arange(RATE // 4) / RATE
    burst = np.convolve(chance.normal(0, 0.3, len(time)) * np.exp(-time / 0.06), np.ones(6) / 3, "same")
    return (np.clip(burst, -1, 1) * 32767).astype(np.int16)


async def reply_to(caller: Caller, turn: str | np.ndarray, disturbance: np.ndarray | None = None) -> bytes:
    """Take a turn, make a sound into its answer, and hear the answer to its end; return what came of it."""
    since, heard = len(caller.events), len(caller.played)
    if isinstance(turn, str):
        await caller.client.say(turn)
    else:
        caller.speak(turn)
    if disturbance is not None:
        await caller.hear(0.4, since)
        caller.listening = False
        caller.speak(disturbance)
        await caller.until_one_of(("hold", "duck"), since)
        caller.listening = True
        await caller.until("release", since)
    reply = await caller.until("reply", since)
    done = await caller.until("turn_done", since, turn=reply["turn"])
    await caller.finish_playing()
    names = [event.name for event in caller.events[since:]]
    assert ("release" in names) == ("hold" in names or "duck" in names) == (disturbance is not None)
    assert (done["how"], "interrupted" in names) == ("done", False)
    sent, played = caller.sound(reply["epoch"]), b"".join(caller.played[heard:])
    check_played(np.frombuffer(sent, "<i2"), np.frombuffer(played, "<i2"), lowered="duck" in names)
    return sent


async def replies_to(caller: Caller, *turns: tuple[str, np.ndarray | None]) -> list[bytes]:
    """Take turns, each with its disturbance or none; return the answers."""
    return [await reply_to(caller, turn, disturbance) for turn, disturbance in turns]


def check_played(sent: np.ndarray, played: np.ndarray, *, lowered: bool) -> None:
    """Assert that nothing is lost or repeated at the loudspeaker, and that nothing else is lowered than what may be."""
    assert len(played) == len(sent)
    changed = np.flatnonzero(played != sent)
    assert (len(changed) > 0) == lowered
    before, after = np.abs(sent[changed].astype(int)), np.abs(played[changed].astype(int))
    assert (after < before).all()
    assert (after >= before * DUCK_GAIN - 1).all()


async def interrupt(caller: Caller, turn: np.ndarray, other: np.ndarray) -> Event:
    """Take a turn and cut into its answer with another one; return how the answer ended."""
    since = len(caller.events)
    caller.speak(turn)
    await caller.hear(0.8, since)
    caller.listening = False
    caller.speak(other)
    cut = await caller.until("interrupted", since)
    caller.listening = True
    told = [event for event in caller.events if event.name == "reply_text" and event["epoch"] == cut["epoch"]]
    reply = "".join(event["text"] for event in told)
    assert reply.startswith(cut["heard"])
    assert 0 < len(cut["heard"]) < len(reply)
    return cut


def said_by(caller: Caller) -> list[str]:
    """Return what the server understood, in small letters."""
    return [event["text"].lower() for event in caller.events if event.name == "user_turn"]


async def test_a_question_cuts_into_an_answer_and_is_answered(server):
    sky, name = (say(server, text) for text in ("Why is the sky blue?", "Wait, what is your name?"))
    async with calling(server.url) as caller:
        cut = await interrupt(caller, sky, name)
        done = await caller.until("reply_done", caller.events.index(cut))
        assert done["text"].strip()
        after = [event for event in caller.events if event.sequence > cut.sequence and event.name == "audio"]
        assert after
        assert all(event["epoch"] > cut["epoch"] for event in after)
        first, second = said_by(caller)
        assert ("sky" in first, "name" in second) == (True, True)


@pytest.mark.soak
async def test_six_turns_with_interruptions(server):
    first, second = "Tell me about the sea.", "And what about the mountains?"
    sky, name, seven = (
        say(server, text)
        for text in ("Why is the sky blue?", "Wait, what is your name?", "What do you get when you add three and four?")
    )
    murmur = say(server, "Mhm.")
    async with calling(server.url) as caller, calling(server.url) as other:
        held, undisturbed = await asyncio.gather(
            replies_to(caller, (first, cough()), (second, murmur)), replies_to(other, (first, None), (second, None))
        )
        assert held == undisturbed
        await reply_to(caller, "Thank you.")
        cut = await interrupt(caller, sky, name)
        await caller.until("reply_done", caller.events.index(cut))
        await reply_to(caller, seven)
        after = [event for event in caller.events if event.sequence > cut.sequence and event.name == "audio"]
        assert all(event["epoch"] > cut["epoch"] for event in after)
        turns = [event["turn"] for event in caller.events if event.name == "turn_done"]
        replies = {event["turn"] for event in caller.events if event.name == "reply"}
        assert len(turns) == len(set(turns))
        assert len(replies) == 6
        assert replies <= set(turns)
        said = said_by(caller)
        assert ["sky" in said[3], "name" in said[4], "three" in said[5] or "3" in said[5]] == [True] * 3
