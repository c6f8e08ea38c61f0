"""All telephone systems, and which of them speaks: its first messages and the subprotocols that it offers tell.

To add one, write its file beside this one, with its `TelephoneSystem` at the end, and add that to SYSTEMS.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from voxlane.server.protocols.dialect import BadMessage
from voxlane.server.protocols.phone.asterisk import ASTERISK
from voxlane.server.protocols.phone.documents import Documents
from voxlane.server.protocols.phone.exotel import EXOTEL
from voxlane.server.protocols.phone.genesys import GENESYS
from voxlane.server.protocols.phone.jambonz import JAMBONZ
from voxlane.server.protocols.phone.line_events import CallFacts, LineCodec, Message
from voxlane.server.protocols.phone.plivo import PLIVO
from voxlane.server.protocols.phone.reading import call_facts, event_name, json_object
from voxlane.server.protocols.phone.sinch import SINCH
from voxlane.server.protocols.phone.system import PHONE_ADDRESS, FirstMessage, TelephoneSystem
from voxlane.server.protocols.phone.telnyx import TELNYX
from voxlane.server.protocols.phone.twilio import TWILIO
from voxlane.server.protocols.phone.vonage import VONAGE

SYSTEMS: Mapping[str, TelephoneSystem] = {
    one.name: one for one in (TWILIO, TELNYX, PLIVO, VONAGE, SINCH, EXOTEL, GENESYS, JAMBONZ, ASTERISK)
}
"""The telephone systems by their names. Where two know a first message, the one that comes before has it."""

DOCUMENTS: Mapping[str, Documents] = {name: one.documents for name, one in SYSTEMS.items() if one.documents}
"""How systems ask for documents, by the names of the systems."""

NEXT_ADDRESS = f"{PHONE_ADDRESS}/next"
"""Where a dialplan asks what follows after a call."""

MOST_FIRST_MESSAGES = 3
"""Messages after which the system must be known: all of them say so in the first two."""

_NOT_KNOWN = "no telephone system that is known here begins like this"


def accepted_subprotocol(offered: Sequence[str]) -> str | None:
    """Return the subprotocol to accept; None if none is offered that is known."""
    known = {subprotocol for system in SYSTEMS.values() for subprotocol in system.subprotocols}
    return next((one for one in offered if one in known), None)


def recognise(messages: Sequence[Message], subprotocols: Sequence[str]) -> LineCodec | None:
    """Return the codec of the system that sent these first messages; None if more of them are needed.

    The codec has not read them: it must be given all of them. Raise BadMessage if no system begins like this.
    """
    for system in SYSTEMS.values():
        if system.known_by_subprotocol and not set(system.subprotocols).isdisjoint(subprotocols):
            return system.codec()
    for message in messages[:MOST_FIRST_MESSAGES]:
        first = _first(message)
        for system in SYSTEMS.values():
            if system.begins(first):
                return system.codec()
        if event_name(first.body) == "start":
            raise BadMessage(_NOT_KNOWN)
        if first.event in ("media", "dtmf", "mark", "stop"):
            raise BadMessage(f"{first.event} comes before start")
    if len(messages) >= MOST_FIRST_MESSAGES:
        raise BadMessage(_NOT_KNOWN)
    return None


def _first(message: Message) -> FirstMessage:
    if isinstance(message, bytes):
        raise BadMessage("sound comes before the message that begins a call")
    if ASTERISK.begins(FirstMessage(message)):  # it may be plain text
        return FirstMessage(message)
    body = json_object(message)
    event = body.get("event")
    start = body.get("start") if event == "start" else {}
    if not isinstance(start, dict):
        raise BadMessage("start must be an object")
    return FirstMessage(message, body, event if isinstance(event, str) else "", start)


def with_query(facts: CallFacts, query: Mapping[str, str]) -> CallFacts:
    """Return facts with what the query of the connection adds: a token, numbers, parameters. The call's own win."""
    mine = {**query, **facts.parameters}
    if facts.token:
        mine["token"] = facts.token
    call_id = query.get("call", "") or facts.call_id  # a dialplan's own name for the call
    return call_facts(facts.system, call_id, mine, caller=facts.caller, called=facts.called)
