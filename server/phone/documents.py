"""Documents that tell telephone systems what to do with a call: connect it to us, then transfer it or hang up. Pure.

Numbers in them come from the configuration and from the telephone system, never from what a model says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode
from xml.etree.ElementTree import Element, SubElement, tostring

from voxlane.server.phone.passes import NextStep

XML = "text/xml"
JSON = "application/json"

_NUMBER = re.compile(r"\+?[0-9]{2,15}")

VONAGE_SOUND = "audio/l16;rate=16000"
PLIVO_SOUND = "audio/x-mulaw;rate=8000"
"""The format of the sound on Plivo's lines: that of the telephone network itself."""


@dataclass(frozen=True, slots=True)
class Document:
    """A document and its content type."""

    kind: str
    body: bytes


@dataclass(frozen=True, slots=True)
class StreamOrder:
    """What a telephone system is told to connect a call to us."""

    stream_url: str  # as wss://example.org/v1/phone
    token: str  # the pass of the call
    next_url: str  # where to ask what follows
    called: str = ""  # the number that was called


# ---- connecting a call


def twiml(order: StreamOrder) -> Document:
    """Return the answer for Twilio and SignalWire."""
    response = Element("Response")
    connect = SubElement(response, "Connect", {"action": order.next_url, "method": "POST"})
    stream = SubElement(connect, "Stream", {"url": order.stream_url})
    SubElement(stream, "Parameter", {"name": "token", "value": order.token})
    return _xml(response)


def texml(order: StreamOrder) -> Document:
    """Return the answer for Telnyx: without rtp the line would play nothing but MP3 files."""
    response = Element("Response")
    connect = SubElement(response, "Connect")
    # Whether parameters or a query arrive is not documented for TeXML: the pass is in both, and the first one counts.
    url = f"{order.stream_url}?{urlencode({'token': order.token})}"
    sound = {"codec": "PCMU", "bidirectionalMode": "rtp", "bidirectionalCodec": "PCMU"}
    stream = SubElement(connect, "Stream", {"url": url, "track": "inbound_track", **sound})
    SubElement(stream, "Parameter", {"name": "token", "value": order.token})
    SubElement(response, "Redirect", {"method": "POST"}).text = order.next_url  # its Connect has no action
    return _xml(response)


def plivo_xml(order: StreamOrder) -> Document:
    """Return the answer for Plivo; what follows the stream is done when the stream has ended."""
    response = Element("Response")
    options = {"bidirectional": "true", "keepCallAlive": "true", "contentType": PLIVO_SOUND}
    stream = SubElement(response, "Stream", {**options, "extraHeaders": f"token={order.token}"})
    stream.text = order.stream_url
    SubElement(response, "Redirect", {"method": "POST"}).text = order.next_url
    return _xml(response)


def ncco(order: StreamOrder) -> Document:
    """Return the answer for Vonage; it asks at `next_url` when the stream has ended, and follows what it is told."""
    endpoint = {
        "type": "websocket",
        "uri": order.stream_url,
        "content-type": VONAGE_SOUND,
        "headers": {"token": order.token},
    }
    connect = {
        "action": "connect",
        "eventType": "synchronous",
        "eventUrl": [order.next_url],
        "eventMethod": "POST",
        **_from(order.called),
        "endpoint": [endpoint],
    }
    return _ncco([connect])


# ---- refusing it


def twiml_busy() -> Document:
    """Return the refusal for Twilio, SignalWire and Telnyx: the caller hears that the line is busy."""
    response = Element("Response")
    SubElement(response, "Reject", {"reason": "busy"})
    return _xml(response)


def plivo_busy() -> Document:
    """Return the refusal for Plivo."""
    response = Element("Response")
    SubElement(response, "Hangup", {"reason": "busy"})
    return _xml(response)


def ncco_busy() -> Document:
    """Return the refusal for Vonage, which knows no busy line: the call ends."""
    return _ncco([])


# ---- after it


def twiml_next(step: NextStep | None) -> Document:
    """Return what follows at Twilio, SignalWire and Telnyx; None hangs up."""
    return _dial(step, sip="Sip")


def plivo_next(step: NextStep | None) -> Document:
    """Return what follows at Plivo; None hangs up."""
    return _dial(step, sip="User")


def ncco_next(step: NextStep | None) -> Document:
    """Return what follows at Vonage; None does nothing more, which hangs up."""
    if step is None:
        return _ncco([])
    if _is_sip(step.target):
        endpoint = {"type": "sip", "uri": step.target}
    else:
        endpoint = {"type": "phone", "number": step.target.removeprefix("+")}
    return _ncco([{"action": "connect", **_from(step.called), "endpoint": [endpoint]}])


def _dial(step: NextStep | None, sip: str) -> Document:
    response = Element("Response")
    if step is None:
        SubElement(response, "Hangup")
    else:
        dial = SubElement(response, "Dial")
        SubElement(dial, sip if _is_sip(step.target) else "Number").text = step.target
    return _xml(response)


def _is_sip(target: str) -> bool:
    return target.startswith(("sip:", "sips:"))


def _from(called: str) -> Mapping[str, str]:
    """Return the caller of a connection that Vonage makes: it must be a number of the customer's."""
    return {"from": called} if _NUMBER.fullmatch(called) else {}


def _xml(root: Element) -> Document:
    return Document(XML, tostring(root, encoding="utf-8", xml_declaration=True))


def _ncco(actions: list[Mapping[str, object]]) -> Document:
    return Document(JSON, json.dumps(actions).encode())
