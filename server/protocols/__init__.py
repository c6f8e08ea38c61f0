"""Client protocols, called dialects: bytes to events and back, one module or package each. No sockets, no clock."""
