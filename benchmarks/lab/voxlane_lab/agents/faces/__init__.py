"""The server's side of each protocol, for planted agents: one module each."""
