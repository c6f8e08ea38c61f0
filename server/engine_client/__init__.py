"""Clients of the engine process and of a remote chat server."""
