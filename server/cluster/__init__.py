"""Cells on many machines: Ray Core places, starts and restarts them; HAProxy is told where they are."""
