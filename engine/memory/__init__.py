"""KV blocks, the pages they are stored in, and the state rows of streams."""
