"""What clients speak: one module per dialect, bytes to events and back. No sockets, no clock; see `dialect`."""
