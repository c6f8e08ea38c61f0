"""OpenAI Realtime over WebSocket: events in JSON, one module for each part of the protocol."""
