"""The telephone systems: one file each reads and writes the messages of its system. No sockets, no clock."""
