"""The ways to those who do the work: the engine child, or another chat server."""
