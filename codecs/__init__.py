"""Audio formats, resampling and voice detection: pure functions on bytes and arrays. No engine, no server."""
