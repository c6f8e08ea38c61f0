"""Watching conversations: a log line and a span for each turn, recordings, and a webhook at the end of a call."""
