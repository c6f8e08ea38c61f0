"""Conversations that are going on: their WebSockets, and what outlives those."""
