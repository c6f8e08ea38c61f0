"""Where conversations are kept so that they outlive a server process: in memory, in SQLite, in Redis or Valkey."""
