"""Calls over WebRTC: the peer connection (aiortc), the tracks, and the table of calls."""
