"""The asyncio process: sockets, protocols, conversations. It never imports torch."""
