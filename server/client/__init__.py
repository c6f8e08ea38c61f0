"""A client of the native dialect, for programs that talk to a voxlane server."""

from voxlane.server.client.voice_client import FIELDS, SUBPROTOCOL, Event, SentAway, VoiceClient

__all__ = ["FIELDS", "SUBPROTOCOL", "Event", "SentAway", "VoiceClient"]
