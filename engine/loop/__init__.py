"""The engine's loop: it reads commands, plans steps, runs them and sends the results."""
