"""Tenants: the holders of keys, their limits, and the file that their keys are kept in."""
