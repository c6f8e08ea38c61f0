"""Attention over paged keys and values, rotary positions, and copies of pages."""
