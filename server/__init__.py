"""The server process, on asyncio: sockets, protocols, conversations. It never imports torch."""
