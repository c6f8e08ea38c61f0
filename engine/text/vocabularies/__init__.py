"""Tokenizer files in their formats, each into one Vocabulary."""
