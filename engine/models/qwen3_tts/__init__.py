"""Qwen3-TTS: speech by a language model over codec frames."""
