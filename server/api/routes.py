"""The table of routes: every address, who may use it, and its endpoints.

The router, the middleware and the description at /openapi.json are made of this table. To add an endpoint, describe it
in its own file with `@endpoint`, and add a line here.
"""

from __future__ import annotations

from voxlane.server.api import (
    calls,
    chat,
    client_secrets,
    docs,
    health,
    models,
    openapi,
    page,
    phone,
    responses,
    sockets,
    speech,
    transcriptions,
    voices,
)
from voxlane.server.api.endpoint import Address, RouteTable, SocketAddress
from voxlane.server.http.access import FILES, KEYED, METRICS, OPEN, OWN_KEY, PROBE
from voxlane.server.protocols.phone.system import PHONE_ADDRESS

CALLS = calls.CALLS
RESPONSE = "/v1/responses/{response_id}"

TABLE = RouteTable(
    (
        Address("/v1/chat/completions", KEYED, post=chat.completions),
        Address("/v1/responses", KEYED, post=responses.create_response),
        Address(RESPONSE, KEYED, get=responses.get_response, delete=responses.delete_response),
        Address(f"{RESPONSE}/input_items", KEYED, get=responses.list_input_items),
        Address(f"{RESPONSE}/cancel", KEYED, post=responses.cancel_response),
        Address("/v1/audio/speech", KEYED, post=speech.speech),
        Address("/v1/audio/transcriptions", KEYED, post=transcriptions.transcriptions),
        Address("/v1/audio/translations", KEYED, post=transcriptions.translations),
        Address("/v1/audio/voices", KEYED, get=voices.list_voices, post=voices.create_voice),
        Address("/v1/audio/voices/{name}", KEYED, delete=voices.delete_voice),
        Address("/v1/realtime/client_secrets", KEYED, post=client_secrets.client_secrets),
        Address(CALLS, OWN_KEY, post=calls.create_call, options=calls.MAY_CALL),
        Address(f"{CALLS}/{{name}}/hangup", OWN_KEY, post=calls.HANG_UP_CALL),
        Address(f"{CALLS}/{{name}}", OWN_KEY, delete=calls.DELETE_CALL),
        Address(f"{CALLS}/{{name:path}}", OWN_KEY, options=calls.MAY_END_CALL),
        *phone.ADDRESSES,
        Address("/v1/models", KEYED, get=models.list_models),
        Address("/v1/models/{name:path}", KEYED, get=models.get_model),
        Address("/livez", PROBE, get=health.livez),
        Address("/readyz", PROBE, get=health.readyz),
        Address("/healthz", PROBE, get=health.healthz),
        Address("/metrics", METRICS, get=health.metrics),
        Address("/", OPEN, get=page.index),
        Address("/openapi.json", OPEN, get=openapi.openapi),
        Address("/docs", OPEN, get=docs.docs),
        Address("/client/{name:path}", FILES, get=page.file),
    ),
    (
        SocketAddress(
            "/v1/voice", sockets.voice, "Conversations in our own protocol, MessagePack: `docs/protocol.md`."
        ),
        SocketAddress(
            "/v1/realtime", sockets.realtime, "Conversations in OpenAI's Realtime protocol, JSON: `docs/openai.md`."
        ),
        SocketAddress(
            PHONE_ADDRESS,
            sockets.phone,
            "Telephone calls, in the protocol of the telephone system that connects them: `docs/telephony.md`.",
        ),
        SocketAddress(f"{PHONE_ADDRESS}/{{name}}", sockets.phone, "The same, for systems that append a name: Genesys."),
    ),
)
