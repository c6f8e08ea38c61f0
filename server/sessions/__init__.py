"""Running conversations: their WebSockets, and the state that outlives a WebSocket."""
