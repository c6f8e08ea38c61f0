"""What the documents share that tell telephone systems what to do with a call. Pure.

A system asks when a call comes in: it is told to connect the call to us. It may ask again when our part of the call is
over: it is told to transfer the call or to hang up. Numbers in documents come from the configuration and from the
telephone system, never from what a model says.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from xml.etree.ElementTree import Element, SubElement, tostring

XML = "text/xml"
JSON = "application/json"


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


@dataclass(frozen=True, slots=True)
class NextStep:
    """What a telephone system does with a caller when our part of the call is over."""

    target: str  # the number or SIP address to connect the caller with
    called: str = ""  # the number that was called: it is shown to the target


@dataclass(frozen=True, slots=True)
class AnswerFields:
    """The names of the fields that say which call it is; a dot leads into an object."""

    call_id: str
    caller: str
    called: str


def _always(values: Mapping[str, str]) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """How a system asks for documents, and what it is told."""

    path: str  # as /v1/phone/twiml; what follows is asked at …/next
    title: str  # the system's name for people
    kind: str  # what its documents are called
    fields: AnswerFields
    answer: Callable[[StreamOrder], Document]
    busy: Callable[[], Document]
    follow_up: Callable[[NextStep | None], Document] | None = None  # None: it does not ask what follows
    lists_actions: bool = False  # its JSON documents are lists
    as_json: bool = False  # requests and documents are JSON; False: forms and XML
    by_get: bool = False  # it may ask with the fields in the query
    announced_by: Mapping[str, str] = field(default_factory=dict)  # what a request about a call that comes in says
    is_over: Callable[[Mapping[str, str]], bool] = _always  # whether a request is about a call that has ended

    def announces(self, values: Mapping[str, str]) -> bool:
        """Return whether a request is about a call that comes in."""
        return all(values.get(name) == value for name, value in self.announced_by.items())


def xml(root: Element) -> Document:
    """Return an XML document."""
    return Document(XML, tostring(root, encoding="utf-8", xml_declaration=True))


def json_document(value: object) -> Document:
    """Return a JSON document."""
    return Document(JSON, json.dumps(value).encode())


def busy(verb: str) -> Document:
    """Return a refusal: the caller hears that the line is busy."""
    response = Element("Response")
    SubElement(response, verb, {"reason": "busy"})
    return xml(response)


def dial(step: NextStep | None, sip: str) -> Document:
    """Return a document that transfers a call, a SIP address in an element of this name; None hangs up."""
    response = Element("Response")
    if step is None:
        SubElement(response, "Hangup")
    else:
        SubElement(SubElement(response, "Dial"), sip if is_sip(step.target) else "Number").text = step.target
    return xml(response)


def is_sip(target: str) -> bool:
    """Return whether a target is a SIP address."""
    return target.startswith(("sip:", "sips:"))
