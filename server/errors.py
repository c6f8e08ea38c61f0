"""All errors that may be shown to a client or to the user of a command.

VoxlaneError
├── ConfigError              the configuration cannot be used; names the key and the file
├── InvalidRequest           400  the sender's message is wrong; `param` names the field
│   ├── ContextTooLong       400  prompt and output can never fit the model's context
│   ├── BadAudio             400  an audio file is broken, or of a kind we do not read
│   ├── NotInBackground      400  a response that is not made in the background cannot be cancelled
│   ├── PreviousNotFound     400  the response that a new one follows is not kept
│   └── UnsupportedParameter 400  a parameter that is known but not supported
├── Unauthorized             401
│   ├── NotResumable         401  no conversation waits for this resume token
│   └── KeyRevoked           401  the operator has revoked the key
├── Forbidden                403  not allowed for this sender; `param` names the field
├── NotFound                 404
│   ├── ModelNotFound        404
│   ├── ResponseNotFound     404
│   └── VoiceNotFound        404
├── MethodNotAllowed         405
├── NotInstalled             501  an extra of the installation is missing; the hint says how to get it
├── WebSocketOnly            426  a plain HTTP request to a WebSocket address
├── RequestTimeout           408  the body did not arrive in time
├── TooLarge                 413
├── Overloaded               429  retryable: the queue is full
│   └── Full                 503  the limit of conversations is reached
│       ├── NoRoom           503  the server is at its measured limit
│       └── TenantFull       429  the limit of this key's conversations is reached
├── TimedOut                 408  a conversation's client was silent for too long
│   └── SlowReader           408  its client does not read
├── TooFast                  429  it sends more than the limits allow
│   └── QuotaReached         429  retryable: a limit per minute of this key is reached
├── ResumedElsewhere         409  its conversation was resumed on another connection
├── SessionLimit             403  the conversation has reached its time limit
├── Unavailable              503  retryable
│   ├── EngineNotReady       503  still loading, or being restarted
│   ├── EngineLost           503  the engine died under this request
│   ├── StoreUnavailable     503  the store of conversations does not answer
│   ├── TooManyConnections   503  the limit of connections is reached
│   └── Draining             503  the server is going down
│       └── HandOver         503  the conversation goes on at the next server process
├── EngineStartFailed        503  not retryable; the hint is the engine's one-line reason
│   └── EngineGivenUp             in `voxlane serve`: many restarts in a row have failed
├── PlayerFailed                  in commands: the program that plays sound failed
├── ConversationFailed            in commands: the server could not be reached, or ended it
├── ServerFailed                  in commands: the server could not be reached, or refused
├── ModelFailed              500  the model's output is not finite, or a step failed
└── InternalError            500  a bug of ours

Codes and public texts only; `http/reply.py` and the dialects write them to the wire.
"""

from __future__ import annotations

from voxlane.server import limits


class VoxlaneError(Exception):
    """Carry a constant public text and a `hint` made of names and numbers; `detail` is only for the log.

    A hint may be shown to the sender: it never holds content, and text from outside enters it only through quote().
    """

    code = "internal_error"
    kind = "server_error"  # OpenAI's `type`
    text = "Something went wrong on our side."
    http_status = 500
    close_code = 1011
    retryable = False

    def __init__(
        self,
        hint: str = "",
        *,
        param: str | None = None,
        detail: str = "",
        retry_after_s: int = limits.RETRY_AFTER_SECONDS,
    ) -> None:
        super().__init__(hint or self.text)
        self.retry_after_s = retry_after_s  # when another try may help, where one helps at all
        self.hint = hint
        self.param = param
        self.detail = detail

    @property
    def message(self) -> str:
        """Return the text for the sender."""
        if not self.hint:
            return self.text
        # The engine's one-line details have no full stop; after our sentence they need one.
        return f"{self.text} {self.hint}{'' if self.hint.endswith(('.', '!', '?')) else '.'}"


class ConfigError(VoxlaneError):
    """The configuration cannot be used."""

    code, text = "invalid_config", "The configuration is not valid."


class InvalidRequest(VoxlaneError):
    """The sender's message is wrong."""

    code, kind, text = "invalid_request", "invalid_request_error", "The request is not valid."
    http_status, close_code = 400, 4400


class ContextTooLong(InvalidRequest):
    """Prompt and output can never fit the model's context."""

    code, text = "context_length_exceeded", "The request does not fit the model's context."


class BadAudio(InvalidRequest):
    """An audio file is broken, or of a kind that we do not read."""

    code, text = "invalid_audio", "The audio cannot be used."


class NotInBackground(InvalidRequest):
    """A response cannot be cancelled: it is not made in the background."""

    code = "not_in_background"
    text = (
        "Only a response with `background: true` can be cancelled, and this server makes none: "
        "to cancel a response that is being made, close its connection."
    )


class PreviousNotFound(InvalidRequest):
    """The response that a new one follows is not kept."""

    code = "previous_response_not_found"
    text = "There is no such response of this key: it is too old, was not stored or was deleted."


class UnsupportedParameter(InvalidRequest):
    """A parameter is known but not supported."""

    code, text = "unsupported_parameter", "The request asks for something this server does not do."


class Unauthorized(VoxlaneError):
    """The key is missing or wrong."""

    code, kind, text = (
        "invalid_api_key",
        "authentication_error",
        "A valid API key is needed: Authorization: Bearer KEY.",
    )
    http_status, close_code = 401, 4401


class NotResumable(Unauthorized):
    """No conversation waits for this resume token."""

    code, text = (
        "invalid_resume_token",
        "This resume token is unknown or was used before, or its conversation is over: begin a new one without it.",
    )


class KeyRevoked(Unauthorized):
    """The operator has revoked the key."""

    code, text = "key_revoked", "This key has been revoked."


class Forbidden(VoxlaneError):
    """The operator does not allow this sender to ask for it."""

    code, kind, text = "not_allowed", "permission_error", "This server does not allow what the request asks for."
    http_status, close_code = 403, 4403


class NotFound(VoxlaneError):
    """There is nothing at this address."""

    code, kind, text = "not_found", "invalid_request_error", "There is nothing at this address."
    http_status, close_code = 404, 4400


class ModelNotFound(NotFound):
    """The named model is not served."""

    code, text = "model_not_found", "This model is not served here."


class ResponseNotFound(NotFound):
    """No response of this key is kept under this id."""

    code = "response_not_found"
    text = "There is no such response of this key: it is too old, was not stored or was deleted."


class VoiceNotFound(NotFound):
    """No voice was made under this name."""

    code, text = "voice_not_found", "There is no voice of this name that could be deleted."


class MethodNotAllowed(VoxlaneError):
    """The address does not support this method."""

    code, kind, text = "method_not_allowed", "invalid_request_error", "This method is not allowed here."
    http_status, close_code = 405, 4400


class NotInstalled(VoxlaneError):
    """An extra of the installation is missing."""

    code, kind, text = "not_installed", "invalid_request_error", "This server cannot do that as it is installed."
    http_status, close_code = 501, 4400


class WebSocketOnly(VoxlaneError):
    """A plain HTTP request to a WebSocket address."""

    code, kind, text = (
        "websocket_only",
        "invalid_request_error",
        "This address takes WebSocket connections alone: connect to it with ws:// or wss://.",
    )
    http_status, close_code = 426, 4400


class RequestTimeout(VoxlaneError):
    """The request's body did not arrive in time."""

    code, kind, text = "request_timeout", "invalid_request_error", "The request's body did not arrive in time."
    http_status, close_code, retryable = 408, 4408, True


class TooLarge(VoxlaneError):
    """The message is over the size limit."""

    code, kind, text = "too_large", "invalid_request_error", "The request is too large."
    http_status, close_code = 413, 1009


class Overloaded(VoxlaneError):
    """The queue is full."""

    code, kind, text = "overloaded", "rate_limit_error", "The server is busy: try again shortly."
    http_status, close_code, retryable = 429, 1013, True


class Full(Overloaded):
    """The limit of conversations is reached."""

    code, text = "full", "There is no room for another conversation: try again shortly."
    http_status = 503


class NoRoom(Full):
    """The server is as busy as it may be for the conversations that it has; `detail` is the measure that says so."""

    code, text = "no_room", "This server has no room for more right now: try again shortly, or elsewhere."


class TenantFull(Full):
    """The limit of this key's conversations is reached."""

    code, text = "too_many_conversations", "This key has as many conversations as it may: end one, or try again later."
    http_status = 429


class TimedOut(VoxlaneError):
    """The client of a conversation sent nothing for too long."""

    code, kind, text = "timed_out", "invalid_request_error", "Nothing was received for too long."
    http_status, close_code = 408, 4408


class SlowReader(TimedOut):
    """The client of a conversation does not read its messages."""

    code, text = "slow_reader", "What was sent to you is not being received."


class TooFast(VoxlaneError):
    """The client of a conversation sends more than the limits allow."""

    code, kind, text = "too_fast", "rate_limit_error", "More was sent than the limits allow."
    http_status, close_code = 429, 4429


class QuotaReached(TooFast):
    """A limit per minute of this key is reached."""

    code, text, retryable = "rate_limit_exceeded", "This key has reached a limit: try again later.", True


class ResumedElsewhere(VoxlaneError):
    """The conversation was resumed on another connection."""

    code, kind, text = "resumed_elsewhere", "invalid_request_error", "The conversation goes on on another connection."
    http_status, close_code = 409, 4409


class SessionLimit(VoxlaneError):
    """The conversation has reached its time limit."""

    code, kind, text = "session_limit", "permission_error", "The conversation has reached its time limit."
    http_status, close_code = 403, 4440


class Unavailable(VoxlaneError):
    """Nothing can be served right now."""

    code, text = "unavailable", "The server cannot serve this right now: try again shortly."
    http_status, close_code, retryable = 503, 1013, True


class EngineNotReady(Unavailable):
    """The engine is loading or being restarted."""

    code, text = "engine_not_ready", "The engine is not ready."


class EngineLost(Unavailable):
    """The engine died under this request."""

    code, text, close_code = "engine_lost", "The engine was lost and is being restarted.", 1012


class StoreUnavailable(Unavailable):
    """The store of conversations does not answer."""

    code, text = "store_unavailable", "Conversations cannot be looked up right now: try again shortly."


class TooManyConnections(Unavailable):
    """The limit of connections is reached."""

    code, text = "too_many_connections", "This server has as many open connections as it takes: try again shortly."


class Draining(Unavailable):
    """The server is going down."""

    code, text, close_code = "draining", "The server is shutting down: try again elsewhere or later.", 1012


class HandOver(Draining):
    """The server is going down, and its conversation goes on at the next process: the client resumes it there."""

    code, text = "hand_over", "The server restarts: resume the conversation now."


class EngineStartFailed(VoxlaneError):
    """The engine cannot start; the hint is its one-line reason."""

    code, text = "engine_start_failed", "The engine could not start."
    http_status = 503


class EngineGivenUp(EngineStartFailed):
    """The engine was lost and cannot be started again; the server ends so that its supervisor can act."""

    code, text = "engine_given_up", "The engine cannot be started again."


class PlayerFailed(VoxlaneError):
    """The program that plays sound failed; raised in commands only."""

    code, text = "player_failed", "The sound could not be played."


class ConversationFailed(VoxlaneError):
    """The server could not be reached, or has ended the conversation; raised in commands only."""

    code, text = "conversation_failed", "The conversation could not be held."


class ServerFailed(VoxlaneError):
    """The server could not be reached, or has refused a command's request; raised in commands only."""

    code, text = "server_failed", "The server did not do it."


class ModelFailed(VoxlaneError):
    """The engine ended a request with `failed`: its logits were not finite, or a step failed and is in the log."""

    code, text = "model_failed", "The model failed: its output is not finite, or the log shows a broken step."


class InternalError(VoxlaneError):
    """A bug of ours."""
