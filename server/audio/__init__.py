"""Clips in, sound out: files, formats and names of voices for the HTTP endpoints and the commands."""
