"""Logits to tokens, and the rows of decode steps."""
