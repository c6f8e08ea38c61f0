"""Telephone calls: the player and the microphone of a line, keys, tools, passes, and the loop that drives a call."""
