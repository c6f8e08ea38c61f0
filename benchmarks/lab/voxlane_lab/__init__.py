"""Test the interruptions of any voice server: a person, a virtual sound card, a clock, and figures."""
