"""Addresses where there is nothing, and what to use instead: a sentence for each that people try. Pure.

It knows OpenAI's other endpoints, their older names, and base URLs with one `/v1` too few or too many.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches

_WHAT_EXISTS = (
    "There are chat (POST /v1/chat/completions, POST /v1/responses), speech and conversations: GET / lists them."
)

_INSTEAD: Mapping[str, str] = {
    "/v1": "The endpoints are below it, as GET /v1/models and POST /v1/chat/completions: GET / lists them.",
    "/v1/completions": "Use POST /v1/chat/completions: the prompt is the content of a message.",
    "/v1/embeddings": f"This server has no model that makes embeddings. {_WHAT_EXISTS}",
    "/v1/realtime/sessions": "Use POST /v1/realtime/client_secrets: it takes the same settings under `session`, in the"
    " names of the current API, and its answer has the secret under `value`.",
    "/v1/realtime/transcription_sessions": "Use POST /v1/realtime/client_secrets with a `session` of the `type`"
    " transcription: its answer has the secret under `value`.",
    "/v1/engines": "Use GET /v1/models.",
    "/health": "Use GET /healthz, /livez or /readyz.",
    "/v1/health": "Use GET /healthz, /livez or /readyz.",
    "/api/chat": "This is not Ollama: use POST /v1/chat/completions.",
    "/api/generate": "This is not Ollama: use POST /v1/chat/completions.",
    "/api/tags": "This is not Ollama: use GET /v1/models.",
}

_ELSEWHERE = (
    "assistants", "batches", "containers", "conversations", "evals", "files", "fine_tuning", "images", "moderations",
    "organization", "threads", "uploads", "vector_stores", "videos",
)  # fmt: skip
"""OpenAI's families of endpoints that are not here."""


def instead_of(path: str, served: Collection[str]) -> str:
    """Return what to do instead of asking this path, where `served` are the paths that there are."""
    path = path.rstrip("/") or "/"
    if path in _INSTEAD:
        return _INSTEAD[path]
    if (right := _with_one_v1(path, served)) is not None:
        return f"Use {right}: the base URL ends with /v1, once."
    family = path.removeprefix("/v1/").partition("/")[0]
    if path.startswith("/v1/") and family in _ELSEWHERE:
        return f"{family} are not served here. {_WHAT_EXISTS}"
    close = get_close_matches(path, served, n=1, cutoff=0.8)
    return f"Did you mean {close[0]}? GET / lists all addresses." if close else "GET / lists all addresses."


def other_methods(allowed: Iterable[str]) -> str:
    """Return what to do instead of using a method that an address does not have."""
    methods = [method for method in sorted(allowed) if method != "HEAD"]
    return f"Use {' or '.join(methods)}." if methods else ""


def _with_one_v1(path: str, served: Collection[str]) -> str | None:
    """Return the address that differs from this one only in its `/v1`."""
    bare = path
    while bare.startswith("/v1/"):
        bare = bare.removeprefix("/v1")
    right = f"/v1{bare}"
    return right if right != path and (right in served or right in _INSTEAD) else None
