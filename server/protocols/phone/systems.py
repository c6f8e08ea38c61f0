"""Tells which telephone system speaks, from its first messages and the subprotocols that it offers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from voxlane.server.protocols.dialect import BadMessage
from voxlane.server.protocols.phone import asterisk, jambonz
from voxlane.server.protocols.phone.asterisk import Asterisk
from voxlane.server.protocols.phone.exotel import Exotel
from voxlane.server.protocols.phone.genesys import Genesys
from voxlane.server.protocols.phone.jambonz import Jambonz
from voxlane.server.protocols.phone.line_events import CallFacts, LineCodec, Message
from voxlane.server.protocols.phone.plivo import Plivo
from voxlane.server.protocols.phone.reading import call_facts, event_name, json_object
from voxlane.server.protocols.phone.telnyx import Telnyx
from voxlane.server.protocols.phone.twilio import Twilio
from voxlane.server.protocols.phone.vonage import Vonage

MOST_FIRST_MESSAGES = 3
"""Messages after which the system must be known: all of them say so in the first two."""

SUBPROTOCOLS = (*jambonz.SUBPROTOCOLS, asterisk.SUBPROTOCOL)
"""Subprotocols that telephone systems offer and want to see accepted."""

_NOT_KNOWN = "no telephone system that is known here begins like this"


def accepted_subprotocol(offered: Sequence[str]) -> str | None:
    """Return the subprotocol to accept; None if none is offered that is known."""
    return next((one for one in offered if one in SUBPROTOCOLS), None)


def recognise(messages: Sequence[Message], subprotocols: Sequence[str]) -> LineCodec | None:
    """Return the codec of the system that sent these first messages; None if more of them are needed.

    The codec has not read them: it must be given all of them. Raise BadMessage if no system begins like this.
    """
    if any(one in jambonz.SUBPROTOCOLS for one in subprotocols):
        return Jambonz()
    for message in messages[:MOST_FIRST_MESSAGES]:
        make = _maker(message)
        if make is not None:
            return make()
    if len(messages) >= MOST_FIRST_MESSAGES:
        raise BadMessage(_NOT_KNOWN)
    return None


def _maker(message: Message) -> Callable[[], LineCodec] | None:
    """Return the codec's class; None if the message could come from several systems."""
    if isinstance(message, bytes):
        raise BadMessage("sound comes before the message that begins a call")
    if message.startswith("MEDIA_START"):
        return Asterisk  # it explains what is wrong
    body = json_object(message)
    if body.get("type") == "open" and "version" in body:
        return Genesys
    if "event" not in body and "callSid" in body and "sampleRate" in body:
        return Jambonz
    name = event_name(body)
    if name == "start":
        return _by_start(body)
    if name == "MEDIA_START":
        return Asterisk
    if name.startswith("websocket:"):
        return Vonage
    if name in ("media", "dtmf", "mark", "stop"):
        raise BadMessage(f"{name} comes before start")
    return None


def _by_start(body: dict[str, Any]) -> Callable[[], LineCodec]:
    start = body.get("start")
    if not isinstance(start, dict):
        raise BadMessage("start must be an object")
    if "streamSid" in start:
        return Twilio
    if "stream_sid" in start:
        return Exotel
    if "streamId" in start:
        return Plivo
    if "stream_id" in body:
        return Telnyx
    raise BadMessage(_NOT_KNOWN)


def with_query(facts: CallFacts, query: Mapping[str, str]) -> CallFacts:
    """Return facts with what the query of the connection adds: a token, numbers, parameters. The call's own win."""
    mine = {**query, **facts.parameters}
    if facts.token:
        mine["token"] = facts.token
    call_id = query.get("call", "") or facts.call_id  # a dialplan's own name for the call
    return call_facts(facts.system, call_id, mine, caller=facts.caller, called=facts.called)
