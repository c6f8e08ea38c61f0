"""Qwen3-ASR: speech recognition by a language model."""
