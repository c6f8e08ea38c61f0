"""The client sides of the protocols that the lab speaks, one module each."""
