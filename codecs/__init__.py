"""Pure functions on bytes and arrays. They know formats; they do not know the engine or the server."""
