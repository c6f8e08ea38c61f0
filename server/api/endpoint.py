"""The record of an endpoint: its handler, and what /openapi.json tells of it. routes.py has the table of them all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket

from voxlane.server.config import LimitsConfig
from voxlane.server.errors import (
    Draining,
    EngineLost,
    EngineNotReady,
    Forbidden,
    InvalidRequest,
    ModelFailed,
    ModelNotFound,
    NoRoom,
    Overloaded,
    RequestTimeout,
    TooLarge,
    UnsupportedParameter,
    VoxlaneError,
)
from voxlane.server.http.access import Access

Schema = dict[str, Any]
Errors = tuple[type[VoxlaneError], ...]

JSON = "application/json"
EVENTS = "text/event-stream"
FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"

READING: Errors = (InvalidRequest, UnsupportedParameter, RequestTimeout, TooLarge)
"""Errors of a request that has a body."""

WORKING: Errors = (
    Forbidden, ModelNotFound, Overloaded, NoRoom, EngineNotReady, EngineLost, Draining, ModelFailed,
)  # fmt: skip
"""Errors of a request to the engine."""

Binary = Annotated[str, Meta(extra_json_schema={"contentMediaType": "application/octet-stream"})]
"""A file's bytes."""


def enumerated(names: Iterable[str]) -> str:
    """Return names of parameters as they stand in a sentence."""
    return ", ".join(f"`{one}`" for one in sorted(names))


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of a server that its description depends on."""

    limits: LimitsConfig
    with_key: bool
    model: str  # "": it does not chat


@dataclass(frozen=True, slots=True)
class Sent:
    """A request's body: a type, with examples by what they show."""

    kind: Any
    examples: Mapping[str, Any]
    file: tuple[str, str] | None = None  # a form's file: its name and description
    adapt: Callable[[Schema, Facts], None] | None = None  # writes what depends on the server into the schema


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer: its types by their media types; that of an event stream is the type of an event."""

    description: str
    content: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of an address."""

    handler: Callable[[Request], Awaitable[ASGIApp]]
    name: str
    tag: str
    summary: str
    description: str
    answers: Mapping[int, Answer]
    errors: Errors = ()  # beside those that the middleware raises
    request: Mapping[str, Sent] = field(default_factory=dict)  # by media type
    parameter: tuple[str, str] = ("", "")  # the name in the address: its description and an example
    query: tuple[type[Struct], Mapping[str, object]] | None = None  # its type and examples
    public: bool = False  # needs no key, whatever the rest of the address needs


def endpoint(
    name: str, tag: str, summary: str, description: str, answers: Mapping[int, Answer], errors: Errors = (), **more: Any
) -> Callable[[Callable[[Request], Awaitable[ASGIApp]]], Endpoint]:
    """Describe a handler: see Endpoint for the parameters."""
    return lambda handler: Endpoint(handler, name, tag, summary, description, answers, errors, **more)


@dataclass(frozen=True, slots=True)
class Address:
    """One line in the table of routes: an address, who may use it, and an endpoint for each method."""

    path: str
    access: Access
    get: Endpoint | None = None
    post: Endpoint | None = None
    delete: Endpoint | None = None
    options: Endpoint | None = None

    def endpoints(self) -> dict[str, Endpoint]:
        """Return the endpoints by their methods."""
        methods = {"get": self.get, "post": self.post, "delete": self.delete, "options": self.options}
        return {method: one for method, one in methods.items() if one is not None}


@dataclass(frozen=True, slots=True)
class SocketAddress:
    """An address for WebSockets."""

    path: str
    handler: Callable[[WebSocket], Awaitable[None]]
    description: str


@dataclass(frozen=True, slots=True, eq=False)
class RouteTable:
    """All addresses."""

    addresses: tuple[Address, ...]
    sockets: tuple[SocketAddress, ...]

    def routes(self) -> list[BaseRoute]:
        """Return them as the router wants them."""
        return [
            *(
                Route(one.path, each.handler, methods=[method.upper()])
                for one in self.addresses
                for method, each in one.endpoints().items()
            ),
            *(WebSocketRoute(one.path, one.handler) for one in self.sockets),
        ]

    def accesses(self) -> dict[str, Access]:
        """Return the access of each address."""
        return {one.path: one.access for one in self.addresses}
