"""A client secret's session, which is in OpenAI's words, as the beginning of a conversation in the native dialect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from voxlane.server.conversation.values import SessionConfig
from voxlane.server.protocols.dialect import BadMessage, Capabilities
from voxlane.server.protocols.openai_realtime.session import configuration, usual_session
from voxlane.server.protocols.openai_realtime.update import updated
from voxlane.server.protocols.openai_realtime.values import Wrong


def secret_defaults(session: Mapping[str, Any], defaults: SessionConfig, capabilities: Capabilities) -> SessionConfig:
    """Return the defaults of a connection with a client secret: what its session sets, and ours for the rest."""
    usual = usual_session(defaults, capabilities)
    try:
        plain = configuration(usual, defaults, capabilities)
        asked = configuration(updated(usual, dict(session), usual), defaults, capabilities)
    except Wrong as wrong:  # it was right when the secret was made: the voice may have gone since
        raise BadMessage(str(wrong)) from wrong
    names = [one.name for one in fields(SessionConfig)]
    changed = {name: getattr(asked, name) for name in names if getattr(asked, name) != getattr(plain, name)}
    return replace(defaults, **changed)
