"""LFM2-Audio: speech and text in, text and speech out, by one language model."""
